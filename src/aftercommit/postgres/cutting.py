"""How a connection is given up while a statement is under way, also behind a pooler: cancel, wait a little, cut.

In this order: a pooler forgets a client that is gone, and with it whose statement is to be cancelled. The server would
go on with the statement, and hold its locks. The session is not killed by its number: behind a pooler the number is not
the server's.
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

# How long it may take to cancel a statement, and behind a pooler until its answer comes, before the wire is cut anyhow.
_CANCEL_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 1.0


def _closed() -> PGconn:
    nowhere = pq.PGconn.connect_start(b"=")
    nowhere.finish()
    return nowhere


# What a connection that is given up, or taken back, is connected to.
CLOSED: Final = _closed()


def cut(connection: psycopg.BaseConnection[Any], *, awaits_answer: bool) -> Callable[[], None]:
    """What cancels the statement under way and then cuts the wire. It blocks, for a few seconds at most.

    `awaits_answer` is for poolers, which pass a request to cancel on after they have taken it: the statement's answer
    shows that the server has got it.
    """
    if connection.closed:
        return lambda: None
    server = connection.pgconn
    cancelling = threading.Thread(target=_cancel, args=(_cancelling(server),), daemon=True)
    wire = socket.socket(fileno=os.dup(server.socket))
    return functools.partial(_end, server, wire, cancelling, awaits_answer)


def _end(server: PGconn, wire: socket.socket, cancelling: threading.Thread, awaits_answer: bool) -> None:
    # `server` is only held: once nobody holds it, it says goodbye, and that may be before the cancel.
    cancelling.start()
    # A server that hangs does not keep us from the cut.
    cancelling.join(_CANCEL_SECONDS)
    with wire, contextlib.suppress(OSError):
        if awaits_answer:
            # Not select(), which refuses the file numbers of a process with many connections.
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
