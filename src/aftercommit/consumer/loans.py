"""The connection that handlers get: a twin of the consumer's own, which is closed when the handler has returned.

Tasks, threads and generators that outlive their handler hold only the twin, and find it closed. They cannot use, or
keep busy, the connection on which the consumer commits.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from aftercommit.errors import AftercommitError
from aftercommit.postgres.commits import AnyConnection, AsyncConnection
from aftercommit.postgres.cutting import CLOSED, cut
from aftercommit.postgres.database import is_direct

_LEAVE_ENDS: Final = (
    "leave COMMIT and ROLLBACK to the consumer, and use `with connection.transaction():` for what may be undone alone"
)


class MisusedConnection(AftercommitError):
    """A handler ended its transaction, closed its connection, or left it in use."""


class _Watched:
    """Notes when something uses the connection: every statement needs `pgconn`."""

    server: PGconn
    touched: bool
    lender: AdaptersMap
    _adapters: AdaptersMap | None

    @property
    def adapters(self) -> AdaptersMap:
        """Its own adapters, made when it is first used."""
        if self._adapters is None:
            self._adapters = AdaptersMap(self.lender)
        return self._adapters

    @property
    def pgconn(self) -> PGconn:
        """The session."""
        self.touched = True
        return self.server

    @pgconn.setter
    def pgconn(self, server: PGconn) -> None:
        self.server = server


class LentAsync(_Watched, psycopg.AsyncConnection[Any]):
    """An asyncio connection that refuses to end its transaction. `touched`: it was used since the flag was cleared."""

    async def commit(self) -> None:
        """Refused."""
        raise MisusedConnection(f"commit() in a handler: {_LEAVE_ENDS}")

    async def rollback(self) -> None:
        """Refused."""
        raise MisusedConnection(f"rollback() in a handler: {_LEAVE_ENDS}")

    async def close(self) -> None:
        """Refused."""
        raise MisusedConnection("close() in a handler: leave the connection open, the consumer goes on with it")


class LentSync(_Watched, psycopg.Connection[Any]):
    """The same, blocking."""

    def commit(self) -> None:
        """Refused."""
        raise MisusedConnection(f"commit() in a handler: {_LEAVE_ENDS}")

    def rollback(self) -> None:
        """Refused."""
        raise MisusedConnection(f"rollback() in a handler: {_LEAVE_ENDS}")

    def close(self) -> None:
        """Refused."""
        raise MisusedConnection("close() in a handler: leave the connection open, the consumer goes on with it")


def lend_async(connection: AsyncConnection) -> LentAsync:
    """A twin of this connection: the same session, with its own adapters, row types and lock."""
    lent = LentAsync.__new__(LentAsync)
    lent.__dict__.update(connection.__dict__, lock=asyncio.Lock(), **_own(connection))
    del lent.__dict__["pgconn"]
    return lent


def lend_sync(connection: psycopg.Connection[Any]) -> LentSync:
    """The same, blocking."""
    lent = LentSync.__new__(LentSync)
    lent.__dict__.update(connection.__dict__, lock=threading.Lock(), **_own(connection))
    del lent.__dict__["pgconn"]
    return lent


def _own(connection: AnyConnection) -> dict[str, Any]:
    # Our connection is in autocommit mode and sends BEGIN itself; a handler's is inside a transaction.
    return {
        "_adapters": None,
        "_autocommit": False,
        "lender": connection.adapters,
        "server": connection.pgconn,
        "touched": False,
    }


def take_back(lent: LentAsync | LentSync) -> bool:
    """Close the twin; False, and nothing done, while something is at work on it."""
    if isinstance(lent, LentAsync):
        return not lent.lock.locked() and _taken_back(lent)
    if not lent.lock.acquire(blocking=False):
        return False
    try:
        return _taken_back(lent)
    finally:
        lent.lock.release()


def _taken_back(lent: LentAsync | LentSync) -> bool:
    if is_busy(lent.server):
        return False
    lent.server = CLOSED
    return True


def is_busy(server: PGconn) -> bool:
    """Whether a statement, stream, COPY or pipeline is under way."""
    return server.transaction_status == TransactionStatus.ACTIVE or server.pipeline_status != PipelineStatus.OFF


def abandon(connection: AnyConnection, *twins: AnyConnection) -> Callable[[], None]:
    """Give up a connection that something else is at work on: the server rolls its transaction back.

    It waits for nobody and frees nothing that another thread may use. Returns a function that ends the connection,
    which may take a moment.
    """
    ending = cut(connection, awaits_answer=not is_direct(connection))
    for each in (connection, *twins):
        each.pgconn = CLOSED
    return ending
