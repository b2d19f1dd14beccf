"""A server of the feed cases in a process of its own: ours, or one that somebody writes by hand for the same work.

Says where it listens, and then does what it is told line by line: `emit 10` lets ten logs happen at once.
"""

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, cast
from urllib.parse import parse_qsl

import psycopg

from aftercommit import Database
from aftercommit.access.bearer import BearerAccess
from aftercommit.access.tokens import TokenVerifier
from aftercommit.feed import Feed
from aftercommit.feed.app import FeedApp
from aftercommit.feed.live.response import HEADERS
from aftercommit.feed.live.streams import StreamCaps
from aftercommit.feed.strands.hub import HubSettings
from aftercommit.http import sse
from aftercommit.http.asgi import Asgi, Receive, Scope, Send, chunk
from aftercommit.server.http_server import HttpServer, listen, url_of
from bench import feed_logs, loops

# As ours in everything but the protocol class with its guards, and the lifespan that they do not have.
PLAIN: Final = {"http": "httptools", "lifespan": "off", "interface": "asgi3"}
MANY: Final = 50_000
RING: Final = 2000
CONNECTIONS: Final = 4
RAW_PAGE: Final = f"""
    select id, ts, stream_seq, correlation_id, schema_version, payload from {feed_logs.SCHEMA}.log
    where aggregate_type = 'investigation' and aggregate_id = %s and stream_seq > %s order by stream_seq limit %s
"""
TAG: Final = 'W/"0123456789abcdef01234567"'
OPENING: Final = sse.opening(3000)
START: Final = {"type": "http.response.start", "status": 200, "headers": HEADERS}
RAW_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % each for each in HEADERS) + b"transfer-encoding: chunked\r\n\r\n"
)


class Contestant(Protocol):
    """A server that can let logs happen."""

    def serving(self) -> Any:
        """Runs while the block runs; gives its address."""

    async def emit(self, logs: int) -> None:
        """So many logs at once."""


class Ours:
    """The feed as a user has it: token, permission, rate limits and existence checked, items redacted."""

    def __init__(self, dsn: str) -> None:
        self._feed = feed_logs.declared()
        access = BearerAccess(TokenVerifier(feed_logs.keys()), Database(dsn), self._feed.outbox)
        caps, hub = StreamCaps(max_streams=MANY, max_streams_per_user=MANY), HubSettings(preload_entries=RING)
        feeds = {feed_logs.PATH: self._feed}
        self._app = FeedApp(Database(dsn), feeds, access, exists=_exists, caps=caps, hub=hub)
        self._number = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = HttpServer(self._app, on_stop=self._app.drain)
        async with server:
            await server.answers()
            self._number = (await self._app.hub.strand(self._feed, feed_logs.KEY)).head
            yield server.url

    async def emit(self, logs: int) -> None:
        """As if a page of the log had been read: what reading it costs is no part of handing it to readers."""
        strands, outbox = self._app.hub._kept, self._feed.outbox
        for _ in range(logs):
            self._number += 1
            strands.take(outbox, feed_logs.stored(self._number))
        await strands.page_is_through(outbox)


class Plain:
    """Any ASGI application on a plain uvicorn."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async with HttpServer(self._app, options=PLAIN) as server:
            await server.answers()
            yield server.url

    async def emit(self, logs: int) -> None:
        raise NotImplementedError


class FanOut(Plain):
    """What somebody writes on uvicorn: one waiter per connection, which sends what it has not sent yet."""

    def __init__(self) -> None:
        super().__init__(self._stream)
        self._frames: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await send(dict(START))
        await send({"type": "http.response.body", "body": OPENING, "more_body": True})
        sent = len(self._frames)
        while True:
            if sent == len(self._frames):
                waiter = loop.create_future()
                self._waiting.append(waiter)
                await waiter
            body = b"".join(self._frames[sent:]) if len(self._frames) > sent + 1 else self._frames[sent]
            sent = len(self._frames)
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def emit(self, logs: int) -> None:
        self._frames += [frame()] * logs
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set_result(None)


class RawWriter(asyncio.Protocol):
    """Nothing but a loop over open connections: no HTTP server, no place per reader, nobody is ever slow."""

    open: Final[list[asyncio.WriteTransport]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are not of asyncio's classes.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(RAW_HEAD + chunk(OPENING))
        self.open.append(self._transport)

    @classmethod
    @asynccontextmanager
    async def serving(cls) -> AsyncIterator[str]:
        bound = listen("127.0.0.1", 0)
        server = await asyncio.get_running_loop().create_server(cls, sock=bound)
        yield url_of(bound)
        server.close()

    @classmethod
    async def emit(cls, logs: int) -> None:
        data = chunk(frame() * logs)
        for transport in cls.open:
            transport.write(data)


@cache
def frame() -> bytes:
    """A log on a stream as ours sends it, ready: always the same."""
    identity = feed_logs.cursor_of(1).replace("%23", "#")
    return sse.event(feed_logs.item(1), name="log", identity=identity)


def starlette_304() -> Plain:
    """A trivial route of Starlette with a constant answer."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def unchanged(request: Request) -> Response:
        return Response(status_code=304, headers={"etag": TAG})

    return Plain(Starlette(routes=[Route(feed_logs.PATH, unchanged)]))


def fastapi_304() -> Plain:
    """A trivial route of FastAPI: a parameter of the path, one of the query, and a constant answer."""
    from fastapi import FastAPI, Response

    app = FastAPI()

    @app.get(feed_logs.PATH)
    async def unchanged(investigation_id: str, limit: int = 100) -> Response:
        return Response(status_code=304, headers={"etag": TAG})

    return Plain(app)


def ready_bytes(body_file: str, headers_file: str) -> Plain:
    """An answer as it is, to whoever asks for whatever."""
    body, told = Path(body_file).read_bytes(), json.loads(Path(headers_file).read_text())
    headers = [(name.encode(), value.encode()) for name, value in told.items()]

    async def same(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return Plain(same)


def starlette_ready(body_file: str, headers_file: str) -> Plain:
    """The same from a trivial route of Starlette."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    body, headers = Path(body_file).read_bytes(), json.loads(Path(headers_file).read_text())

    async def same(request: Request) -> Response:
        return Response(body, headers=headers)

    return Plain(Starlette(routes=[Route(feed_logs.PATH, same)]))


class RawHistory(Plain):
    """A page by hand: one query, the rows as dicts, dumped. No token, no limits, no filters, no redaction."""

    def __init__(self, dsn: str) -> None:
        super().__init__(self._page)
        self._dsn = dsn
        self._connections: asyncio.LifoQueue[psycopg.AsyncConnection[Any]] = asyncio.LifoQueue()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        for _ in range(CONNECTIONS):
            self._connections.put_nowait(await psycopg.AsyncConnection.connect(self._dsn, autocommit=True))
        async with super().serving() as url:
            yield url

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = dict(parse_qsl(scope["query_string"].decode()))
        connection = await self._connections.get()
        try:
            after = int(asked["afterCursor"].rpartition("#")[2])
            rows = await (await connection.execute(RAW_PAGE, (feed_logs.KEY, after, int(asked["limit"])))).fetchall()
        finally:
            self._connections.put_nowait(connection)
        body = json.dumps({"logs": [_line_by_hand(row) for row in rows]}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _line_by_hand(row: tuple[Any, ...]) -> dict[str, Any]:
    event_id, ts, seq, correlation_id, version, log = row
    told = {name: log[name] for name in ("source", "service", "level", "message", "investigation_id", "context")}
    known = {"event_id": str(event_id), "ts": ts.isoformat(), "seq": seq, "correlation_id": correlation_id}
    return {**known, **told, "schema_version": version}


async def _exists(feed: Feed, key: str) -> bool:
    return True


ROLES: Final[dict[str, Callable[..., Any]]] = {
    "ours": Ours,
    "fan-out": FanOut,
    "raw writer": lambda: RawWriter,
    "starlette 304": starlette_304,
    "fastapi 304": fastapi_304,
    "ready bytes": ready_bytes,
    "starlette ready": starlette_ready,
    "raw history": RawHistory,
}


async def run(role: str, *arguments: str) -> None:
    """Serve and obey until standard input is closed."""
    contestant: Contestant = ROLES[role](*arguments)
    told = asyncio.StreamReader()
    async with contestant.serving() as url:
        # As `aftercommit serve` does in a process of its own; here for everybody.
        gc.collect()
        gc.freeze()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        while line := await told.readline():
            await contestant.emit(int(line.split()[1]))


if __name__ == "__main__":
    loops.run(run(*sys.argv[1:]))
