"""Thousands of readers of a stream in one thread: they count the logs that come, and do nothing else."""

import select
import socket
import time
from typing import Final

from bench import feed_logs
from bench.feed_server import Server, address_of
from bench.stage import ContestantFailed

PATIENCE: Final = 60.0
AT_ONCE: Final = 200
PIECE: Final = 1 << 18
REQUEST: Final = "GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nAuthorization: {bearer}\r\n\r\n"


class Readers:
    """Open streams, each its own connection."""

    def __init__(self, server: Server, count: int) -> None:
        """Connected, and greeted: all of them have their headers and the first bytes."""
        self.count = count
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._piece = bytearray(PIECE)
        request = REQUEST.format(path=server.path, bearer=feed_logs.bearer()).encode()
        for first in range(0, count, AT_ONCE):
            opened = [self._open(server, request) for _ in range(min(AT_ONCE, count - first))]
            for reader in opened:
                _greeted(reader)
                reader.setblocking(False)

    def until(self, logs: int, since: float = 0.0, delays: list[float] | None = None) -> None:
        """Until so many logs have come to all of them together; how long after `since` each came, in milliseconds."""
        piece, sockets, poll, mark = self._piece, self._sockets, self._poll.poll, feed_logs.MARK
        came, deadline = 0, time.monotonic() + PATIENCE
        while came < logs:
            ready = poll(PATIENCE)
            if not ready or time.monotonic() > deadline:
                raise ContestantFailed(f"{came} of {logs} logs came within {PATIENCE:g} seconds")
            for number, _ in ready:
                size = sockets[number].recv_into(piece)
                if not size:
                    raise ContestantFailed("a stream was ended by the server")
                found = piece.count(mark, 0, size)
                came += found
                if delays is not None:
                    delays.extend([1000 * (time.perf_counter() - since)] * found)

    def close(self) -> None:
        """Leave."""
        self._poll.close()
        for reader in self._sockets.values():
            reader.close()
        self._sockets.clear()

    def _open(self, server: Server, request: bytes) -> socket.socket:
        reader = socket.create_connection(address_of(server), PATIENCE)
        reader.sendall(request)
        self._sockets[reader.fileno()] = reader
        self._poll.register(reader.fileno(), select.EPOLLIN)
        return reader


def _greeted(reader: socket.socket) -> None:
    """Read up to the end of the first block of the stream."""
    came = b""
    while b"\n\n" not in came:
        piece = reader.recv(65_536)
        came += piece
        if not piece or (b"\r\n" in came and b" 200 " not in came.partition(b"\r\n")[0]):
            raise ContestantFailed(f"a stream was not opened: {came[:200]!r}")
