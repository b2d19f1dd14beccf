"""The connections for handlers, kept between slices and shared by the consumers of a process."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from aftercommit.postgres.commits import AnyConnection, AsyncConnection
from aftercommit.postgres.database import Database, is_direct, prepare_as_told
from aftercommit.postgres.elastic_limit import ElasticLimit
from aftercommit.postgres.resilience import LOST, close_quietly


class Permit(AbstractAsyncContextManager[None]):
    """May be held several times at once."""

    def __init__(self, limit: ElasticLimit, owner: str) -> None:
        self._limit = limit
        self._owner = owner

    async def __aenter__(self) -> None:
        await self._limit.acquire(self._owner)

    async def __aexit__(self, *_: object) -> None:
        self._limit.release(self._owner)


class ConsumerConnections:
    """Connections of some consumers: opened when needed, dropped when broken.

    Hold a permit while you use one: it limits how many are in use at the same time.
    """

    def __init__(self, database: Database, max_connections: int = 1) -> None:
        self._limit = ElasticLimit(max_connections)
        self._database = database
        self._idle: list[AsyncConnection] = []
        self._idle_sync: list[psycopg.Connection[Any]] = []
        self._generation = 0
        # Threads of handlers that were given up may return a connection at any time.
        self._lock = threading.Lock()

    @property
    def places(self) -> int:
        """How many may be in use."""
        return self._limit.places

    @property
    def has_idle(self) -> bool:
        """Whether an asyncio connection is open and free, with no pooler between."""
        return bool(self._idle) and is_direct(self._idle[-1]) and self._limit.used < self._limit.places

    def make_room(self, connections: int) -> None:
        """Let at least so many be in use."""
        self._limit.places = max(self._limit.places, connections)

    def permit(self, owner: str) -> AbstractAsyncContextManager[None]:
        """Hold it to use one connection. An outbox whose handlers have none need not wait for those that hang."""
        return Permit(self._limit, owner)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[AsyncConnection]:
        """An asyncio connection, outside any transaction."""
        generation = self._generation
        connection = self._idle.pop() if self._idle else await self._connect()
        prepare_as_told(connection)
        try:
            yield connection
        finally:
            if _is_clean(connection) and generation == self._generation:
                self._idle.append(connection)
            else:
                await close_quietly(connection)

    @contextmanager
    def lend_sync(self) -> Iterator[psycopg.Connection[Any]]:
        """The same for a thread."""
        with self._lock:
            generation = self._generation
            idle = self._idle_sync.pop() if self._idle_sync else None
        connection = idle or self._connect_sync()
        prepare_as_told(connection)
        try:
            yield connection
        finally:
            with self._lock:
                kept = _is_clean(connection) and generation == self._generation
                if kept:
                    self._idle_sync.append(connection)
            if not kept:
                connection.close()

    async def server_started(self) -> datetime | None:
        """When the server was started that accepts connections now; None if none does.

        Tells a lost connection from a lost database, and from one that went on elsewhere.
        """
        try:
            connection = await self._connect()
            try:
                row = await (await connection.execute("select pg_catalog.pg_postmaster_start_time()")).fetchone()
            finally:
                await close_quietly(connection)
        except (psycopg.Error, *LOST):
            return None
        return row[0] if row else None

    async def close(self) -> None:
        """Close idle connections now and lent ones when they come back."""
        with self._lock:
            self._generation += 1
            idle, self._idle_sync = self._idle_sync, []
        for connection in idle:
            connection.close()
        while self._idle:
            await close_quietly(self._idle.pop())

    def _connect_sync(self) -> psycopg.Connection[Any]:
        _close_one(self._idle)
        return self._database.connect_sync()

    async def _connect(self) -> AsyncConnection:
        with self._lock:
            _close_one(self._idle_sync)
        connection = await self._database.connect()
        # Our own connections read JSON as bytes; a handler reads it as its program has set up psycopg.
        json_oid = psycopg.adapters.types["json"].oid
        for written in (Format.TEXT, Format.BINARY):
            loader = psycopg.adapters.get_loader(json_oid, written)
            if loader is not None:
                connection.adapters.register_loader(json_oid, loader)
        return connection


_CURSORS: Final = (psycopg.AsyncCursor, psycopg.Cursor)


def restore(connection: AnyConnection) -> None:
    """Reset row and cursor types: a handler may choose others for itself, but not for the next one."""
    if connection.row_factory is tuple_row and connection.cursor_factory in _CURSORS:
        return
    connection.row_factory = tuple_row
    if isinstance(connection, psycopg.AsyncConnection):
        connection.cursor_factory = psycopg.AsyncCursor
    else:
        connection.cursor_factory = psycopg.Cursor


def _close_one(idle: list[Any]) -> None:
    """Close an idle one of the other kind before one is opened: so there are no more than may be in use."""
    with suppress(IndexError):
        connection = idle.pop()
        connection.pgconn.finish()


def _is_clean(connection: AnyConnection) -> bool:
    return connection.info.transaction_status == TransactionStatus.IDLE
