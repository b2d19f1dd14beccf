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

from aftercommit.errors import AftercommitError
from aftercommit.postgres.commits import AnyConnection, AsyncConnection
from aftercommit.postgres.cutting import CLOSED, cut
from aftercommit.postgres.database import is_direct

_LEAVE_ENDS: Final = (
    "leave COMMIT and ROLLBACK to the consumer, and use `with connection.transaction():` for what may be undone alone"
)


class MisusedConnection(AftercommitError):
    """A handler ended its transaction, closed its connection, or left it in use."""


class LentAsync(psycopg.AsyncConnection[Any]):
    """An asyncio connection that refuses to end its transaction."""

    async def commit(self) -> None:
        """Refused."""
        raise MisusedConnection(f"commit() in a handler: {_LEAVE_ENDS}")

    async def rollback(self) -> None:
        """Refused."""
        raise MisusedConnection(f"rollback() in a handler: {_LEAVE_ENDS}")

    async def close(self) -> None:
        """Refused."""
        raise MisusedConnection("close() in a handler: leave the connection open, the consumer goes on with it")


class LentSync(psycopg.Connection[Any]):
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
    return lent


def lend_sync(connection: psycopg.Connection[Any]) -> LentSync:
    """The same, blocking."""
    lent = LentSync.__new__(LentSync)
    lent.__dict__.update(connection.__dict__, lock=threading.Lock(), **_own(connection))
    return lent


def _own(connection: AnyConnection) -> dict[str, Any]:
    # Our connection is in autocommit mode and sends BEGIN itself; a handler's is inside a transaction.
    return {"_adapters": AdaptersMap(connection.adapters), "_autocommit": False}


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
    if is_busy(lent):
        return False
    lent.pgconn = CLOSED
    return True


def is_busy(connection: AnyConnection) -> bool:
    """Whether a statement, stream, COPY or pipeline is under way."""
    server = connection.pgconn
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
