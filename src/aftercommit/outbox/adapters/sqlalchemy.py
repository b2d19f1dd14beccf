"""SQLAlchemy 2: Session, scoped_session, Connection and their async versions, over psycopg, asyncpg or psycopg2.

The statement goes to the driver unchanged (`exec_driver_sql`), in the caller's transaction. SQLAlchemy has no COPY: it
goes to the driver's own connection, and its errors go through SQLAlchemy.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from sqlalchemy import AdaptedConnection, Connection, CursorResult
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from aftercommit.outbox.adapters.psycopg import can_copy, copy_async, copy_blocking
from aftercommit.outbox.insert import Copy, Style
from aftercommit.outbox.publisher import AsyncPublisher, Rows, SyncPublisher, style_of_driver


def find(connection: Any) -> SyncPublisher | AsyncPublisher | None:
    """The adapter for a SQLAlchemy session or connection."""
    if isinstance(connection, scoped_session | async_scoped_session):
        connection = connection()
    if isinstance(connection, AsyncSession | AsyncConnection):
        return AsyncSqlalchemy(connection)
    if isinstance(connection, Session | Connection):
        return Sqlalchemy(connection)
    return None


def _is_autocommit(connection: Connection) -> bool:
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def _flush(session: Session) -> None:
    """Write the session's pending changes first, as its own queries do.

    The row lock of an aggregate orders the events of its writers. An event that is written before its row is locked
    could overtake another. A listener that publishes is inside a flush already.
    """
    if session.autoflush and not session._flushing:
        session.flush()


class Sqlalchemy(SyncPublisher):
    """A Session or Connection."""

    errors = (DBAPIError,)

    def __init__(self, target: Session | Connection) -> None:
        bind = target.get_bind() if isinstance(target, Session) else target
        self.style: Style = style_of_driver(bind.dialect.driver)
        self.style_of_one = self.style
        self._target = target
        self._known: Connection | None = None

    def _connection(self) -> Connection:
        if self._known is None:
            self._known = self._target.connection() if isinstance(self._target, Session) else self._target
        return self._known

    def in_transaction(self) -> bool:
        """True unless the connection is in AUTOCOMMIT: SQLAlchemy begins a transaction with the first statement."""
        return not _is_autocommit(self._connection())

    def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Flush the session, then run a statement on the driver."""
        self._run(statement, parameters).close()

    execute_one = execute

    def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Flush the session, then run a statement and return its rows."""
        return self._run(statement, parameters).fetchall()

    def can_copy(self) -> bool:
        """With psycopg 3 and asyncpg."""
        driver = self._connection().connection.driver_connection
        if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
            return can_copy(driver)
        return self.style == "asyncpg"

    def copy(self, copy: Copy) -> None:
        """Run a COPY on the driver's connection, after the first event has begun the transaction."""
        connection = self._connection()
        driver: Any = connection.connection.dbapi_connection
        try:
            if isinstance(driver, AdaptedConnection):
                _copy_adapted(driver, copy)
            else:
                copy_blocking(driver, copy)
        except Exception as problem:  # noqa: BLE001 - SQLAlchemy decides which errors it wraps
            connection._handle_dbapi_exception(problem, copy.statement, None, None, None)

    def _run(self, statement: str, parameters: Sequence[Any]) -> CursorResult[Any]:
        if isinstance(self._target, Session):
            _flush(self._target)
        return self._connection().exec_driver_sql(statement, tuple(parameters))


def _copy_adapted(driver: Any, copy: Copy) -> None:
    """COPY on an asyncio driver. SQLAlchemy knows the errors of psycopg; those of asyncpg need its translation."""
    if isinstance(driver.driver_connection, psycopg.AsyncConnection):
        driver.run_async(lambda connection: copy_async(connection, copy))
        return
    from aftercommit.outbox.adapters import asyncpg

    try:
        driver.run_async(lambda connection: asyncpg.copy_async(connection, copy))
    except Exception as problem:  # noqa: BLE001 - it raises those that it does not translate again
        driver._handle_exception(problem)


class AsyncSqlalchemy(AsyncPublisher):
    """An AsyncSession or AsyncConnection.

    A step from asyncio into SQLAlchemy costs as much as a small statement, so a publish takes one step.
    """

    errors = (DBAPIError,)

    def __init__(self, target: AsyncSession | AsyncConnection) -> None:
        bind = target.get_bind() if isinstance(target, AsyncSession) else target
        self.style: Style = style_of_driver(bind.dialect.driver)
        self.style_of_one = self.style
        self._target: Any = target
        self._needs_transaction = False

    async def in_transaction(self) -> bool:
        """True unless the connection is in AUTOCOMMIT: SQLAlchemy begins a transaction with the first statement."""
        inside: bool = await self._target.run_sync(lambda target: Sqlalchemy(target).in_transaction())
        return inside

    async def require_transaction(self) -> None:
        """Checked in the same step as the first statement, before it is sent."""
        self._needs_transaction = True

    async def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Flush the session, then run a statement on the driver."""
        await self._target.run_sync(lambda target: self._checked(target).execute(statement, parameters))

    execute_one = execute

    async def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Flush the session, then run a statement and return its rows."""
        rows: Rows = await self._target.run_sync(lambda target: self._checked(target).fetch(statement, parameters))
        return rows

    async def can_copy(self) -> bool:
        """With psycopg 3 and asyncpg."""
        can: bool = await self._target.run_sync(lambda target: self._checked(target).can_copy())
        return can

    async def copy(self, copy: Copy) -> None:
        """Run a COPY on the driver's connection."""
        await self._target.run_sync(lambda target: self._checked(target).copy(copy))

    def _checked(self, target: Session | Connection) -> Sqlalchemy:
        publisher = Sqlalchemy(target)
        if self._needs_transaction:
            publisher.require_transaction()
        return publisher
