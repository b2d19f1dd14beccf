"""A TCP proxy in front of PostgreSQL with network faults that a test switches on and off.

    async with FaultProxy(dsn) as proxy:
        connection = await psycopg.AsyncConnection.connect(proxy.dsn)
        proxy.faults.delay = 0.2                     # all connections
        proxy.connections[0].faults.trickle = True   # one connection
        proxy.reset()                                # cut all connections
        proxy.heal()

It recognises COMMIT in PostgreSQL's protocol. It delays, withholds or cuts data, and does not change any.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from aftercommit.errors import DeclarationError

_CHUNK: Final = 1 << 16
_STARTUP_HEADER: Final = 4
_HEADER: Final = 5
# Requests for SSL and GSS encryption, which come before the startup message and get an answer of one byte.
_ENCRYPTION_REQUESTS: Final = frozenset({80877103, 80877104})
_TEXT_KEPT: Final = 64


@dataclass(slots=True)
class NetworkFaults:
    """The current faults of a connection; a test may change them at any time.

    `delay`: data waits so many seconds, in both directions. `trickle`: one byte at a time. `black_hole`: both sides
    stay connected but nothing arrives, as behind a firewall that drops packets. `cut_at_commit`: the next COMMIT
    reaches the server, but the connection is reset instead of its answer, so the client cannot know the outcome.
    """

    delay: float = 0.0
    trickle: bool = False
    black_hole: bool = False
    cut_at_commit: bool = False

    def heal(self) -> None:
        """Remove all faults. Data that a black hole has withheld is passed on."""
        for one in fields(self):
            setattr(self, one.name, one.default)


class CommitWatch:
    """Reads the messages of a client, from the startup message on, and recognises COMMIT."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0
        self._started = False

    def sees_commit(self, data: bytes) -> bool:
        """Whether this data completes a COMMIT."""
        self._buffer += data
        # Read all messages, or the next call would begin in the middle of one.
        return sum(_is_commit(kind, text) for kind, text in self._messages()) > 0

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        while True:
            dropped = min(self._skip, len(self._buffer))
            del self._buffer[:dropped]
            self._skip -= dropped
            header = _HEADER if self._started else _STARTUP_HEADER
            if self._skip or len(self._buffer) < header:
                return
            kind = bytes(self._buffer[:1]) if self._started else b""
            (length,) = struct.unpack_from("!I", self._buffer, header - 4)
            size = header - 4 + max(4, length)
            # The beginning of a message is enough.
            if len(self._buffer) < min(size, header + _TEXT_KEPT):
                return
            body = bytes(self._buffer[header : min(size, header + _TEXT_KEPT)])
            if not self._started:
                self._started = struct.unpack_from("!I", body)[0] not in _ENCRYPTION_REQUESTS
            self._skip = size
            yield kind, body


def _is_commit(kind: bytes, body: bytes) -> bool:
    if kind == b"P":
        # Parse: the statement's name, then its text.
        body = body.partition(b"\0")[2]
    return kind in (b"Q", b"P") and body.lstrip().upper().startswith((b"COMMIT", b"END"))


@dataclass(eq=False)
class ProxiedConnection:
    """One client connection through the proxy, with its own faults besides the proxy's."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    shared: NetworkFaults
    faults: NetworkFaults = field(default_factory=NetworkFaults)
    commits_cut: int = 0
    _withholding: bool = False
    _watch: CommitWatch = field(default_factory=CommitWatch)

    def reset(self) -> None:
        """Cut the connection on both sides; the client gets a TCP reset."""
        for writer in (self.client, self.server):
            wire = writer.get_extra_info("socket")
            if wire is not None and wire.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def to_server(self, reader: asyncio.StreamReader) -> None:
        """Forward data from the client."""
        while data := await reader.read(_CHUNK):
            commits = self._watch.sees_commit(data)
            if commits and (self.faults.cut_at_commit or self.shared.cut_at_commit):
                self.faults.cut_at_commit = self.shared.cut_at_commit = False
                self._withholding = True
            await self._carry(data, self.server)

    async def to_client(self, reader: asyncio.StreamReader) -> None:
        """Forward data from the server, or cut the connection if this answer must not arrive."""
        while data := await reader.read(_CHUNK):
            if self._withholding:
                self.commits_cut += 1
                self.reset()
                return
            await self._carry(data, self.client)

    async def _carry(self, data: bytes, to: asyncio.StreamWriter) -> None:
        while self.faults.black_hole or self.shared.black_hole:  # noqa: ASYNC110 - switched by assignment
            await asyncio.sleep(0.01)
        size = 1 if self.faults.trickle or self.shared.trickle else len(data)
        for start in range(0, len(data), size):
            delay = max(self.faults.delay, self.shared.delay)
            if delay > 0:
                await asyncio.sleep(delay)
            to.write(data[start : start + size])
            await to.drain()


class FaultProxy:
    """A proxy for the server of a DSN, on a free port of 127.0.0.1; connect to its `dsn`."""

    def __init__(self, dsn: str) -> None:
        self._target = conninfo_to_dict(dsn)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.faults = NetworkFaults()
        self.connections: list[ProxiedConnection] = []
        self.commits_cut = 0

    @property
    def port(self) -> int:
        """The port of the proxy."""
        if self._server is None:
            raise DeclarationError("the proxy is not started: use `async with FaultProxy(dsn) as proxy`")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def dsn(self) -> str:
        """The DSN through the proxy, without encryption, so that the proxy sees COMMIT."""
        user = quote(str(self._target.get("user") or ""), safe="")
        password = self._target.get("password")
        credentials = user if password is None else f"{user}:{quote(str(password), safe='')}"
        database = quote(str(self._target.get("dbname") or ""), safe="")
        return (
            f"postgresql://{credentials}@127.0.0.1:{self.port}/{database}?sslmode=disable&gssencmode=disable"
            "&connect_timeout=5"
        )

    def reset(self) -> None:
        """Cut every connection."""
        for connection in list(self.connections):
            connection.reset()

    def heal(self) -> None:
        """Remove all faults of the proxy and of its connections."""
        self.faults.heal()
        for connection in self.connections:
            connection.faults.heal()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            # A connection that arrives during the shutdown.
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await self._connect()
        except OSError:
            # The server is down.
            writer.transport.abort()
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        connection = ProxiedConnection(writer, server_writer, self.faults)
        self.connections.append(connection)
        ways = [
            asyncio.ensure_future(connection.to_server(reader)),
            asyncio.ensure_future(connection.to_client(server_reader)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.connections.remove(connection)
            self.commits_cut += connection.commits_cut
            writer.transport.abort() if connection.commits_cut else writer.close()
            server_writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(self._target.get("host") or "127.0.0.1"), int(self._target.get("port") or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)
