"""The connections on which history is read: a few, opened when needed and kept. When all are busy, readers wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from aftercommit.errors import DatabaseSilent, DatabaseUnavailable
from aftercommit.postgres.bounded import Unanswered, answered_within
from aftercommit.postgres.database import Database, is_direct
from aftercommit.postgres.resilience import close_quietly, is_lost
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements


class HistoryConnections:
    """Connections for single queries."""

    def __init__(self, database: Database, max_connections: int) -> None:
        self._database = database
        self._free = asyncio.Semaphore(max_connections)
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self.questions = 0
        self.unanswered = 0

    @asynccontextmanager
    async def answered(self) -> AsyncIterator[None]:
        """Bound the time of all queries in the block, made for one reader. Raises DatabaseSilent when it is over.

        Waiting for a free connection, or for a new one, counts too.
        """
        try:
            async with answered_within(self._database.answer_timeout):
                yield
        except DatabaseSilent:
            self.unanswered += 1
            # The server hangs, or the network: idle connections would hang as well.
            await self.close()
            raise

    async def ask(self, statement: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of one query. Raises DatabaseUnavailable when the database cannot be reached.

        A lost query is repeated once: its connection may have died while it was idle, and a query changes nothing.
        """
        self.questions += 1
        try:
            try:
                return await self._ask(statement, parameters)
            except (psycopg.Error, DatabaseUnavailable) as problem:
                if not is_lost(problem) or isinstance(problem, Unanswered):
                    raise
                return await self._ask(statement, parameters)
        except Unanswered:
            # `answered` turns it into DatabaseSilent.
            raise
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as problem:
            if not is_lost(problem):
                raise
            error = " ".join(str(problem).split())
            raise DatabaseUnavailable(f"the database was lost while a feed was read: {error}") from problem

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await close_quietly(self._idle.pop())

    async def _ask(self, statement: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        async with self._lend() as connection:
            return await (await connection.execute(statement, parameters, prepare=True)).fetchall()

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with self._free:
            connection = self._idle.pop() if self._idle else await reading_connection(self._database)
            try:
                yield connection
            except psycopg.Error:
                if connection.broken:
                    # The idle ones have probably died with it.
                    await self.close()
                raise
            finally:
                if connection.info.transaction_status == TransactionStatus.IDLE:
                    self._idle.append(connection)
                else:
                    await close_quietly(connection)


async def reading_connection(database: Database) -> psycopg.AsyncConnection[Any]:
    """A connection for the statements of feeds. Behind a pooler, session settings are not changed."""
    connection = await database.connect(bounded=True)
    if is_direct(connection):
        try:
            await connection.execute(Statements(Shape())["feed_plan"])
        except BaseException:
            await close_quietly(connection)
            raise
    return connection
