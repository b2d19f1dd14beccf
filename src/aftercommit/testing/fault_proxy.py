"""A bad network in front of PostgreSQL: a small TCP proxy whose faults are switched on and off by code.

    async with FaultProxy(dsn) as proxy:
        connection = await psycopg.AsyncConnection.connect(proxy.dsn)
        proxy.faults.delay = 0.2                 # for everybody
        proxy.connections[0].faults.trickle = True   # for one connection
        proxy.reset()                            # cut them all
        proxy.heal()

Knows just enough of PostgreSQL's protocol to see a COMMIT go by. Never changes a byte: it delays, withholds or cuts.
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
# Requests that come before the startup message and are answered with one byte: SSL and GSS encryption.
_ENCRYPTION_REQUESTS: Final = frozenset({80877103, 80877104})
_TEXT_KEPT: Final = 64


@dataclass(slots=True)
class NetworkFaults:
    """What is wrong with a connection now; everything may be switched at any time.

    `delay`: each piece of data waits so many seconds, both ways. `trickle`: one byte at a time. `black_hole`: both
    sides stay connected and nothing arrives any more, as behind a firewall that forgot us. `cut_at_commit`: the next
    COMMIT reaches the server, and when it answers, the connection is reset instead: the client cannot know.
    """

    delay: float = 0.0
    trickle: bool = False
    black_hole: bool = False
    cut_at_commit: bool = False

    def heal(self) -> None:
        """Nothing is wrong any more. What a black hole has withheld is passed on."""
        for one in fields(self):
            setattr(self, one.name, one.default)


class CommitWatch:
    """Follows the messages of a client, and says when one of them is a COMMIT."""

    def __init__(self) -> None:
        """At the startup message."""
        self._buffer = bytearray()
        self._skip = 0
        self._started = False

    def sees_commit(self, data: bytes) -> bool:
        """Whether a COMMIT ends within what has come so far and did not before."""
        self._buffer += data
        # All of them are looked at, or the next call would begin in the middle of a message.
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
            # Only the beginning of a message matters, however large the rest of it is.
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
    """One client and its connection to the server, with faults of its own on top of the proxy's."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    shared: NetworkFaults
    faults: NetworkFaults = field(default_factory=NetworkFaults)
    commits_cut: int = 0
    _withholding: bool = False
    _watch: CommitWatch = field(default_factory=CommitWatch)

    def reset(self) -> None:
        """Cut the connection to both sides at once, the client's with a reset rather than a goodbye."""
        for writer in (self.client, self.server):
            wire = writer.get_extra_info("socket")
            if wire is not None and wire.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def to_server(self, reader: asyncio.StreamReader) -> None:
        """Carry what the client says."""
        while data := await reader.read(_CHUNK):
            commits = self._watch.sees_commit(data)
            if commits and (self.faults.cut_at_commit or self.shared.cut_at_commit):
                self.faults.cut_at_commit = self.shared.cut_at_commit = False
                self._withholding = True
            await self._carry(data, self.server)

    async def to_client(self, reader: asyncio.StreamReader) -> None:
        """Carry what the server answers, unless it is the answer that must not arrive."""
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
    """Stands between clients and the server of a DSN, on a free port of 127.0.0.1; `dsn` leads through it."""

    def __init__(self, dsn: str) -> None:
        """Not listening yet."""
        self._target = conninfo_to_dict(dsn)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.faults = NetworkFaults()
        self.connections: list[ProxiedConnection] = []
        self.commits_cut = 0

    @property
    def port(self) -> int:
        """The port it listens on."""
        if self._server is None:
            raise DeclarationError("the proxy is not started: use `async with FaultProxy(dsn) as proxy`")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def dsn(self) -> str:
        """The same database and user through the proxy; encryption is off, or no COMMIT could be seen."""
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
        """No faults, neither for all nor for one."""
        self.faults.heal()
        for connection in self.connections:
            connection.faults.heal()

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cut everybody off and stop listening."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            # It knocked while we were closing, and nobody would see it out.
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await self._connect()
        except OSError:
            # What a client sees of a server that is down.
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
