"""Runs the statements of a publish on the caller's connection: a blocking base class and an async one.

This is part of the application's transactions, so an event without an idempotency key costs one statement, and no rows
are fetched. Many events go by COPY where the driver has it: an INSERT of the first one, then a COPY of the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from psycopg import sql

from aftercommit.errors import NotInTransaction, SchemaNotMigrated, UnsupportedConnection
from aftercommit.outbox.insert import COPY_FROM, Copy, Inserter, Receipt, Script, Style
from aftercommit.outbox.row_maker import EventRows
from aftercommit.text import MIGRATE

Rows = Sequence[Sequence[Any]]
Errors = tuple[type[Exception], ...]

# No such table, column or schema: the outbox does not exist, or is older than this code.
_NOT_THERE = frozenset({"42P01", "42703", "3F000"})


class SyncPublisher(ABC):
    """A blocking connection. `errors` are its driver's exceptions for errors from PostgreSQL."""

    style: Style
    errors: Errors

    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a rollback by the caller would undo a statement that is run now."""

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run one statement in the caller's transaction."""

    @abstractmethod
    def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run one statement in the caller's transaction and return its rows."""

    @abstractmethod
    def can_copy(self) -> bool:
        """Whether this connection can run a COPY of UTF-8 text now."""

    @abstractmethod
    def copy(self, copy: Copy) -> None:
        """Run a COPY in the caller's transaction. It raises the errors that `execute` would raise."""

    def require_transaction(self) -> None:
        """Raise NotInTransaction if a statement would commit by itself."""
        if not self.in_transaction():
            raise NotInTransaction(_OUTSIDE)

    def write(self, rows: EventRows, inserter: Inserter, *, alone: bool) -> None:
        """Write events without an idempotency key. `alone` if no transaction needs to be open: one statement then."""
        if alone or len(rows) < COPY_FROM or not self.can_copy():
            self.execute(*inserter.statement(rows, self.style))
        elif _may_copy(self.fetch(*inserter.first(rows, self.style))):
            self.copy(inserter.others(rows))
        else:
            self.execute(*inserter.statement(rows[1:], self.style))

    def run(self, script: Script) -> Receipt:
        """Run the statements of a script."""
        try:
            question = next(script)
            while True:
                question = script.send(self.fetch(*question))
        except StopIteration as end:
            return _receipt(end)


class AsyncPublisher(ABC):
    """An asyncio connection."""

    style: Style
    errors: Errors

    @abstractmethod
    async def in_transaction(self) -> bool:
        """Whether a rollback by the caller would undo a statement that is run now."""

    @abstractmethod
    async def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run one statement in the caller's transaction."""

    @abstractmethod
    async def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run one statement in the caller's transaction and return its rows."""

    @abstractmethod
    async def can_copy(self) -> bool:
        """Whether this connection can run a COPY of UTF-8 text now."""

    @abstractmethod
    async def copy(self, copy: Copy) -> None:
        """Run a COPY in the caller's transaction. It raises the errors that `execute` would raise."""

    async def require_transaction(self) -> None:
        """Raise NotInTransaction if a statement would commit by itself."""
        if not await self.in_transaction():
            raise NotInTransaction(_OUTSIDE)

    async def write(self, rows: EventRows, inserter: Inserter, *, alone: bool) -> None:
        """Write events without an idempotency key. `alone` if no transaction needs to be open: one statement then."""
        if alone or len(rows) < COPY_FROM or not await self.can_copy():
            await self.execute(*inserter.statement(rows, self.style))
        elif _may_copy(await self.fetch(*inserter.first(rows, self.style))):
            await self.copy(inserter.others(rows))
        else:
            await self.execute(*inserter.statement(rows[1:], self.style))

    async def run(self, script: Script) -> Receipt:
        """Run the statements of a script."""
        try:
            question = next(script)
            while True:
                question = script.send(await self.fetch(*question))
        except StopIteration as end:
            return _receipt(end)


_OUTSIDE = (
    "publish was called outside a transaction, where the event would commit without your own changes: "
    "begin a transaction first, or call publish(…, outside_transaction=True) if the event belongs to no other change"
)


def refuse_missing(problem: Exception, schema: str) -> None:
    """Raise SchemaNotMigrated if a driver's error says that the tables of the outbox do not exist.

    A session may have flushed other statements, too; their errors are left to the caller.
    """
    ran = getattr(problem, "statement", None)
    is_ours = ran is None or f"{sql.Identifier(schema).as_string()}.outbox" in ran
    if is_ours and (original := _original(problem)) is not None:
        raise SchemaNotMigrated(
            f"cannot publish to outbox {schema!r}, which does not exist or is older than this code ({original}): "
            f"{MIGRATE}"
        ) from problem


def _original(problem: Exception) -> str | None:
    """PostgreSQL's message if something does not exist; each driver and wrapper has it in another place."""
    for each in (problem, getattr(problem, "orig", None), problem.__cause__):
        if {getattr(each, name, None) for name in ("sqlstate", "pgcode")} & _NOT_THERE:
            return str(each).partition("\n")[0]
    return None


def _may_copy(answer: Rows) -> bool:
    # No row if a trigger of the application dropped the first event.
    return bool(answer and answer[0][0])


def _receipt(end: StopIteration) -> Receipt:
    receipt: Receipt = end.value
    return receipt


def style_of_driver(driver: str) -> Style:
    """The placeholder style of a driver under SQLAlchemy."""
    styles: dict[str, Style] = {
        "psycopg": "psycopg",
        "psycopg_async": "psycopg",
        "asyncpg": "asyncpg",
        "psycopg2": "text",
    }
    try:
        return styles[driver]
    except KeyError:
        raise UnsupportedConnection(
            f"the driver {driver!r} is not supported: use psycopg (postgresql+psycopg:), asyncpg or psycopg2"
        ) from None
