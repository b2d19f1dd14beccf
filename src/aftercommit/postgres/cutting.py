"""Gives up a connection while a statement runs, also behind a pooler: cancel, wait a little, close the socket.

The order matters. A pooler forgets a client that has disconnected, and with it which statement to cancel; the server
would go on with the statement and keep its locks. pg_terminate_backend is no way out: behind a pooler, the client does
not know the pid.
"""

import contextlib
import functools
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn

# The time to send the cancel request, and behind a pooler to wait for the answer, before the socket is closed anyway.
_CANCEL_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 1.0


def _closed() -> PGconn:
    nowhere = pq.PGconn.connect_start(b"=")
    nowhere.finish()
    return nowhere


# A closed connection, which takes the place of one that was given up.
CLOSED: Final = _closed()


def cut(connection: psycopg.BaseConnection[Any], *, awaits_answer: bool) -> Callable[[], None]:
    """A function that cancels the running statement and then closes the socket. It blocks for a few seconds at most.

    `awaits_answer` is for poolers, which forward a cancel request after they have confirmed it: the answer of the
    statement shows that the server has received it.
    """
    if connection.closed:
        return lambda: None
    server = connection.pgconn
    cancelling = threading.Thread(target=_cancel, args=(_cancelling(server),), daemon=True)
    wire = socket.socket(fileno=os.dup(server.socket))
    return functools.partial(_end, server, wire, cancelling, awaits_answer)


def _end(server: PGconn, wire: socket.socket, cancelling: threading.Thread, awaits_answer: bool) -> None:
    # `server` is an argument to keep it alive: its finalizer would disconnect, maybe before the cancel.
    cancelling.start()
    # With a timeout, because the server may hang.
    cancelling.join(_CANCEL_SECONDS)
    with wire, contextlib.suppress(OSError):
        if awaits_answer:
            # Not select(), which fails for the file descriptors of a process with many connections.
            answers = select.poll()
            answers.register(wire, select.POLLIN)
            answers.poll(_ANSWER_SECONDS * 1000)
        wire.shutdown(socket.SHUT_RDWR)


def _cancel(cancelling: Callable[[], None]) -> None:
    with contextlib.suppress(psycopg.Error):
        cancelling()


def _cancelling(server: PGconn) -> Callable[[], None]:
    if psycopg.capabilities.has_cancel_safe():
        return server.cancel_conn().blocking
    return server.get_cancel().cancel
