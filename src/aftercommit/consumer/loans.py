"""What handlers get in their hands: a twin of a consumer's own connection, which ends when the handler has returned.

Tasks, threads and generators that outlive their handler hold the twin, and find it closed. Nobody but the consumer can
use, or keep busy, the connection on which it commits.
"""

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap
from psycopg.pq import PipelineStatus, TransactionStatus

from aftercommit.errors import AftercommitError
from aftercommit.postgres.database import is_direct

AnyConnection = psycopg.AsyncConnection[Any] | psycopg.Connection[Any]

_LEAVE_ENDS: Final = (
    "leave COMMIT and ROLLBACK to the consumer, and use `with connection.transaction():` for what may be undone alone"
)


class MisusedConnection(AftercommitError):
    """A handler did something with its connection that is not its to do, or did not let go of it."""


class LentAsync(psycopg.AsyncConnection[Any]):
    """An asyncio connection whose transaction is not its user's to end."""

    async def commit(self) -> None:
        """Refused."""
        raise MisusedConnection(f"commit() in a handler: {_LEAVE_ENDS}")

    async def rollback(self) -> None:
        """Refused."""
        raise MisusedConnection(f"rollback() in a handler: {_LEAVE_ENDS}")

    async def close(self) -> None:
        """Refused."""
        raise MisusedConnection("close() in a handler: leave it open, the consumer goes on with it")


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
        raise MisusedConnection("close() in a handler: leave it open, the consumer goes on with it")


def _closed() -> pq.abc.PGconn:
    nowhere = pq.PGconn.connect_start(b"=")
    nowhere.finish()
    return nowhere


# How long it may take to cancel a statement, and behind a pooler until its answer comes, before the wire is cut anyhow.
_CANCEL_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 1.0
# What a connection that is taken back is connected to.
_CLOSED: Final = _closed()


def lend_async(connection: psycopg.AsyncConnection[Any]) -> LentAsync:
    """A twin for handlers: the same session, with adapters, row types and a lock of its own."""
    lent = LentAsync.__new__(LentAsync)
    lent.__dict__.update(connection.__dict__, lock=asyncio.Lock(), **_own(connection))
    return lent


def lend_sync(connection: psycopg.Connection[Any]) -> LentSync:
    """The same, blocking."""
    lent = LentSync.__new__(LentSync)
    lent.__dict__.update(connection.__dict__, lock=threading.Lock(), **_own(connection))
    return lent


def _own(connection: AnyConnection) -> dict[str, Any]:
    # Our connection is in autocommit mode and sends BEGIN itself; a handler's is one inside a transaction.
    return {"_adapters": AdaptersMap(connection.adapters), "_autocommit": False}


def take_back(lent: LentAsync | LentSync) -> bool:
    """End a loan: whoever still holds it finds it closed. False, and nothing done, while something is at work on it."""
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
    lent.pgconn = _CLOSED
    return True


def is_busy(connection: AnyConnection) -> bool:
    """Whether a statement, a stream, a COPY or a pipeline is under way."""
    server = connection.pgconn
    return server.transaction_status == TransactionStatus.ACTIVE or server.pipeline_status != PipelineStatus.OFF


def abandon(connection: AnyConnection, *twins: AnyConnection) -> Callable[[], None]:
    """Give up a connection that something else is at work on: the server undoes its transaction.

    Nobody is waited for, and nothing freed that another thread may be using: whoever works on the connection sees its
    end. Returns what ends it, which may take a moment.
    """
    ending = cut(connection)
    for each in (connection, *twins):
        each.pgconn = _CLOSED
    return ending


def cut(connection: AnyConnection) -> Callable[[], None]:
    """What cancels the statement under way and then cuts the wire.

    In this order: a pooler forgets a client that is gone, and with it whose statement is to be cancelled. The server
    would go on with the statement, and hold its locks. The session is not killed by its number: behind a pooler the
    number is not the server's.
    """
    if connection.closed:
        return lambda: None
    cancelling = threading.Thread(target=_cancel, args=(_cancelling(connection),), daemon=True)
    wire = socket.socket(fileno=os.dup(connection.pgconn.socket))
    direct = is_direct(connection)

    def end() -> None:
        cancelling.start()
        # A server that hangs does not keep us from the cut.
        cancelling.join(_CANCEL_SECONDS)
        with wire, contextlib.suppress(OSError):
            if not direct:
                # A pooler passes the request on when it has taken it; then the statement is answered.
                select.select([wire], [], [], _ANSWER_SECONDS)
            wire.shutdown(socket.SHUT_RDWR)

    return end


def _cancel(cancelling: Callable[[], None]) -> None:
    with contextlib.suppress(psycopg.Error):
        cancelling()


def _cancelling(connection: AnyConnection) -> Callable[[], None]:
    if psycopg.capabilities.has_cancel_safe():
        return connection.pgconn.cancel_conn().blocking
    return connection.pgconn.get_cancel().cancel
