"""Runs the statements of a publish on the caller's connection: a blocking base class and an async one.

This is part of the application's transactions, so an event without an idempotency key costs one statement, and no rows
are fetched. Many events go by COPY where the driver has it: an INSERT of the first one, then a COPY of the others.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any

from psycopg import sql

from aftercommit.errors import NotInTransaction, SchemaNotMigrated, UnsupportedConnection
from aftercommit.outbox.insert import COPY_FROM, Copy, Inserter, Receipt, Script, Style
from aftercommit.outbox.row_maker import CORRELATION, ID, TYPE, EventRows
from aftercommit.telemetry import log_event
from aftercommit.text import MIGRATE

logger = logging.getLogger("aftercommit.outbox")

Rows = Sequence[Sequence[Any]]
Errors = tuple[type[Exception], ...]

# No such table, column or schema: the outbox does not exist, or is older than this code.
_NOT_THERE = frozenset({"42P01", "42703", "3F000"})


class SyncPublisher(ABC):
    """A blocking connection. `errors` are its driver's exceptions for errors from PostgreSQL.

    `style` and `style_of_one` are how the driver takes the values of many events and of one. An adapter that
    `fits_class` is right for every object of the connection's class.
    """

    style: Style
    style_of_one: Style
    errors: Errors
    fits_class = False

    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a rollback by the caller would undo a statement that is run now."""

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run one statement in the caller's transaction."""

    @abstractmethod
    def execute_one(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run the statement of one event, whose values are given in `style_of_one`."""

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
            raise outside_transaction()

    def publish(self, rows: EventRows, inserter: Inserter, key: str | None, *, alone: bool) -> Receipt:
        """Write events, once per idempotency key if there is one. `alone`: outside a transaction, too."""
        if not rows:
            return Receipt(())
        if not alone:
            self.require_transaction()
        try:
            if key is not None:
                return _told(self.run(inserter.script(rows, self.style, key)), rows, inserter)
            if len(rows) == 1:
                self.execute_one(*inserter.one(rows[0], self.style_of_one))
            else:
                self.write_many(rows, inserter, alone=alone)
        except self.errors as problem:
            refuse_missing(problem, inserter.schema)
            raise
        return _told(Receipt(tuple([row[ID] for row in rows])), rows, inserter)

    def write_many(self, rows: EventRows, inserter: Inserter, *, alone: bool) -> None:
        """Write many events without an idempotency key. `alone`: in one statement."""
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
    style_of_one: Style
    errors: Errors
    fits_class = False

    @abstractmethod
    async def in_transaction(self) -> bool:
        """Whether a rollback by the caller would undo a statement that is run now."""

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any]) -> Awaitable[Any]:
        """Run one statement in the caller's transaction."""

    @abstractmethod
    def execute_one(self, statement: str, parameters: Sequence[Any]) -> Awaitable[Any]:
        """Run the statement of one event, whose values are given in `style_of_one`."""

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
            raise outside_transaction()

    async def publish(self, rows: EventRows, inserter: Inserter, key: str | None, *, alone: bool) -> Receipt:
        """Write events, once per idempotency key if there is one. `alone`: outside a transaction, too."""
        if not rows:
            return Receipt(())
        if not alone:
            await self.require_transaction()
        try:
            if key is not None:
                return _told(await self.run(inserter.script(rows, self.style, key)), rows, inserter)
            if len(rows) == 1:
                await self.execute_one(*inserter.one(rows[0], self.style_of_one))
            else:
                await self.write_many(rows, inserter, alone=alone)
        except self.errors as problem:
            refuse_missing(problem, inserter.schema)
            raise
        return _told(Receipt(tuple([row[ID] for row in rows])), rows, inserter)

    async def write_many(self, rows: EventRows, inserter: Inserter, *, alone: bool) -> None:
        """Write many events without an idempotency key. `alone`: in one statement."""
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


def outside_transaction() -> NotInTransaction:
    """The error of a publish whose event would commit by itself."""
    return NotInTransaction(
        "publish was called outside a transaction, where the event would commit without your own changes: "
        "begin a transaction first, or call publish(…, outside_transaction=True) if the event belongs to no other "
        "change"
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


def _told(receipt: Receipt, rows: EventRows, inserter: Inserter) -> Receipt:
    """The receipt, once the log line of the publish is written."""
    if logger.isEnabledFor(logging.INFO) and not receipt.duplicate:
        first = rows[0]
        log_event(
            logger,
            logging.INFO,
            "outbox_enqueued",
            outbox=inserter.schema,
            count=len(rows),
            event_id=str(first[ID]),
            event_type=first[TYPE],
            correlation_id=first[CORRELATION] or str(first[ID]),
        )
    return receipt


def _receipt(end: StopIteration) -> Receipt:
    receipt: Receipt = end.value
    return receipt


_STYLES: dict[str, Style] = {"psycopg": "psycopg", "psycopg_async": "psycopg", "asyncpg": "asyncpg", "psycopg2": "text"}


def style_of_driver(driver: str) -> Style:
    """The placeholder style of a driver under SQLAlchemy."""
    try:
        return _STYLES[driver]
    except KeyError:
        raise UnsupportedConnection(
            f"the driver {driver!r} is not supported: use psycopg (postgresql+psycopg:), asyncpg or psycopg2"
        ) from None
