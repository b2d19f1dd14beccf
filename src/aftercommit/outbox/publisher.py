"""Runs the statements of a publish on the caller's connection, in a blocking half and an async one.

Every transaction of the application pays for what happens here, so one event without a key takes the short way: one
statement, no rows to fetch, no conversation.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from psycopg import sql

from aftercommit.errors import NotInTransaction, SchemaNotMigrated, UnsupportedConnection
from aftercommit.outbox.insert import Receipt, Script, Style
from aftercommit.text import MIGRATE

Rows = Sequence[Sequence[Any]]
Errors = tuple[type[Exception], ...]

# No such table, column, schema: what PostgreSQL says of an outbox that is not there, or is older than this code.
_NOT_THERE = frozenset({"42P01", "42703", "3F000"})


class SyncPublisher(ABC):
    """A blocking connection."""

    style: Style
    errors: Errors

    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether what is written now is undone by the caller's rollback."""

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run one statement in the caller's transaction."""

    @abstractmethod
    def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run one statement in the caller's transaction and return its rows."""

    def require_transaction(self) -> None:
        """Refuse a connection on which the event would commit alone."""
        if not self.in_transaction():
            raise NotInTransaction(_OUTSIDE)

    def run(self, script: Script) -> Receipt:
        """Hold the script's conversation with the database."""
        try:
            question = next(script)
            while True:
                question = script.send(self.fetch(*question))
        except StopIteration as end:
            return _receipt(end)


class AsyncPublisher(ABC):
    """An asyncio connection. `errors` are those that stand for one of PostgreSQL's, as with the blocking one."""

    style: Style
    errors: Errors

    @abstractmethod
    async def in_transaction(self) -> bool:
        """Whether what is written now is undone by the caller's rollback."""

    @abstractmethod
    async def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run one statement in the caller's transaction."""

    @abstractmethod
    async def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run one statement in the caller's transaction and return its rows."""

    async def require_transaction(self) -> None:
        """Refuse a connection on which the event would commit alone."""
        if not await self.in_transaction():
            raise NotInTransaction(_OUTSIDE)

    async def run(self, script: Script) -> Receipt:
        """Hold the script's conversation with the database."""
        try:
            question = next(script)
            while True:
                question = script.send(await self.fetch(*question))
        except StopIteration as end:
            return _receipt(end)


_OUTSIDE = (
    "publish was called outside a transaction, where the event would commit without the rows it speaks of: "
    "open a transaction first, or say publish(…, outside_transaction=True) if the event stands alone"
)


def refuse_missing(problem: Exception, schema: str) -> None:
    """Raise our own error for a driver's that says that the tables of the outbox are not there, with the remedy.

    A session may have had more to write than our statement; what is said about that is left to the caller.
    """
    ran = getattr(problem, "statement", None)
    is_ours = ran is None or f"{sql.Identifier(schema).as_string()}.outbox" in ran
    if is_ours and (original := _original(problem)) is not None:
        raise SchemaNotMigrated(
            f"cannot publish to outbox {schema!r}, which is not there or older than this code ({original}): {MIGRATE}"
        ) from problem


def _original(problem: Exception) -> str | None:
    """What PostgreSQL said, if it was that something is not there; every driver and wrapper keeps it elsewhere."""
    for each in (problem, getattr(problem, "orig", None), problem.__cause__):
        if {getattr(each, name, None) for name in ("sqlstate", "pgcode")} & _NOT_THERE:
            return str(each).partition("\n")[0]
    return None


def _receipt(end: StopIteration) -> Receipt:
    receipt: Receipt = end.value
    return receipt


def style_of_driver(driver: str) -> Style:
    """How placeholders look for a driver underneath SQLAlchemy or Django."""
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
