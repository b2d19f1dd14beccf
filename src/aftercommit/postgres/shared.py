"""The few connections that the services of a process share, whatever the number of its outboxes.

Each statement borrows a connection, and gives it back when the answer is there. Leases have connections of their own,
so that no slow question delays their renewal. docs/decisions/0033-outboxes-share-connections.md
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import psycopg
from psycopg.abc import Params
from psycopg.pq import TransactionStatus

from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.database import Database, is_direct
from aftercommit.postgres.elastic_limit import ElasticLimit
from aftercommit.postgres.handler_connections import ConsumerConnections
from aftercommit.postgres.resilience import close_quietly
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

CONTROL: Final = 2
CARRYING: Final = 3
READING: Final = 2
# More than the statements of 50 outboxes: psycopg forgets prepared statements beyond this number.
PREPARED: Final = 1000


class ConnectionPool:
    """Connections for one statement, or one transaction, at a time. `opening` is executed on each new direct one."""

    def __init__(self, database: Database, size: int, opening: bytes | None = None) -> None:
        self.user = ""
        self._database = database
        self._opening = opening
        self._limit = ElasticLimit(size)
        self._idle: list[AsyncConnection] = []
        self._lent: set[AsyncConnection] = set()
        self._generation = 0

    def make_room(self, connections: int) -> None:
        """Let at least so many be in use."""
        self._limit.places = max(self._limit.places, connections)

    async def take(self) -> AsyncConnection:
        """A connection of one's own, to be given back."""
        await self._limit.acquire()
        try:
            generation = self._generation
            connection = self._idle.pop() if self._idle else await self._connect()
        except BaseException:
            self._limit.release()
            raise
        if generation == self._generation:
            self._lent.add(connection)
        return connection

    async def give_back(self, connection: AsyncConnection) -> None:
        """Keep it for the next, unless it is broken, inside a transaction or out of date."""
        is_clean = connection.pgconn.transaction_status == TransactionStatus.IDLE
        is_current = connection in self._lent
        self._lent.discard(connection)
        try:
            if is_clean and is_current and len(self._idle) < self._limit.places:
                self._idle.append(connection)
            else:
                await close_quietly(connection)
        finally:
            self._limit.release()

    def drop(self, connection: AsyncConnection) -> None:
        """After a cut: the server may still be answering, and a late cancel request could hit the next statement."""
        connection.pgconn.finish()

    async def renew(self) -> None:
        """Close idle connections now and lent ones when they come back: the next ones are new."""
        self._generation += 1
        self._lent.clear()
        while self._idle:
            await close_quietly(self._idle.pop())

    async def _connect(self) -> AsyncConnection:
        connection = await self._database.connect()
        connection.prepared_max = PREPARED
        self.user = connection.info.user
        if self._opening is not None and is_direct(connection):
            try:
                await connection.execute(self._opening)
            except BaseException:
                await close_quietly(connection)
                raise
        return connection


class SharedConnection(psycopg.AsyncConnection[Any]):
    """A service's way to a pool: runs single statements, one after the other, each on any connection of the pool.

    It has no session: for a transaction, use `exclusive`. Everything else fails.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._shared = pool
        # What one service asks stays in order, as on a connection.
        self._order = asyncio.Lock()

    async def execute(
        self, query: Any, params: Params | None = None, *, prepare: bool | None = None, binary: bool = False
    ) -> psycopg.AsyncCursor[Any]:
        """Run one statement."""
        async with self._order:
            connection = await self._shared.take()
            try:
                return await connection.execute(query, params, prepare=prepare, binary=binary)
            except asyncio.CancelledError:
                self._shared.drop(connection)
                raise
            finally:
                await self._shared.give_back(connection)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[AsyncConnection]:
        """A connection of the pool for as long as the block takes."""
        async with self._order:
            connection = await self._shared.take()
            try:
                yield connection
            except asyncio.CancelledError:
                self._shared.drop(connection)
                raise
            finally:
                await self._shared.give_back(connection)


@asynccontextmanager
async def exclusive(connection: AsyncConnection) -> AsyncIterator[AsyncConnection]:
    """The connection itself, or, if it is a shared one, a connection of the pool for as long as the block takes."""
    if isinstance(connection, SharedConnection):
        async with connection.lend() as own:
            yield own
    else:
        yield connection


class SharedConnections:
    """The connections of all relays and workers in a process, to one database. `Engine` makes one for its outboxes.

    `handlers`: what handlers get. `sweeping`: upkeep is for one outbox at a time.

    A service enters it for a session. If the session fails, the next one gets new connections; after the last, all are
    closed.
    """

    def __init__(self, database: Database) -> None:
        """Connects to nothing yet."""
        self.handlers = ConsumerConnections(database)
        self.sweeping = asyncio.Semaphore(1)
        self._control = ConnectionPool(database, CONTROL)
        self._carrying = ConnectionPool(database, CARRYING, Statements(Shape())["plan_by_index"])
        self._reading = ConnectionPool(database, READING)
        self._sessions = 0

    @property
    def user(self) -> str:
        """The database user, once there was a connection."""
        return self._control.user

    def make_room(self, *, carriers: int = 1, handlers: int = 1) -> None:
        """Let at least so many carriers and handlers be at work."""
        self._carrying.make_room(carriers)
        self.handlers.make_room(handlers)

    def control(self) -> SharedConnection:
        """For leases, and what is asked as often."""
        return SharedConnection(self._control)

    def carrying(self) -> SharedConnection:
        """For a carrier."""
        return SharedConnection(self._carrying)

    def reading(self) -> SharedConnection:
        """For pages of the log, letters and measurements, which may take longer."""
        return SharedConnection(self._reading)

    async def __aenter__(self) -> Self:
        self._sessions += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sessions -= 1
        if error is not None or not self._sessions:
            for pool in (self._control, self._carrying, self._reading):
                await pool.renew()
