"""A feed behind a real socket that behaves well, or badly in exactly the way a test says.

Every request is answered by the next act of the script (`streams`, `polls`), or well when the script is over.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

PATIENCE = 60.0


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]


class Reply:
    """The other end of one connection."""

    def __init__(self, feed: "ScriptedFeed", request: Request, writer: asyncio.StreamWriter) -> None:
        self.feed = feed
        self.request = request
        self.writer = writer

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} x", f"content-length: {len(body)}", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)

    async def begin_stream(self) -> None:
        """The head of a stream and its first bytes; the end of the connection is its end."""
        await self.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        await self.write(b"retry: 10\n: connected\n\n")

    async def events(self, most: int | None = None) -> None:
        """Events after the reader's place, at most so many, waiting for them as long as it takes."""
        place = number_of(self.request.headers.get("last-event-id"))
        sent = 0
        while most is None or sent < most:
            for event in self.feed.after(place):
                if most is not None and sent == most:
                    return
                await self.write(frame(event))
                place, sent = event["seq"], sent + 1
            if most is None or sent < most:
                await self.feed.changed()


Act: TypeAlias = Callable[[Reply], Awaitable[None]]


@dataclass
class ScriptedFeed:
    """The feed: its events, its script, and what was asked of it."""

    events: list[dict[str, Any]] = field(default_factory=list)
    streams: deque[Act] = field(default_factory=deque)
    polls: deque[Act] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    open_connections: int = 0
    url: str = ""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, count: int = 1) -> None:
        """So many more events."""
        for _ in range(count):
            number = len(self.events) + 1
            self.events.append(
                {"event_id": f"e{number}", "ts": "2025-11-12T10:30:00.000Z", "seq": number, "message": f"line {number}"}
            )
        self.ring()

    def after(self, number: int) -> list[dict[str, Any]]:
        return [event for event in self.events if event["seq"] > number]

    def ring(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def changed(self) -> None:
        await self._news.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until something that this feed sees has come about."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self._news.wait()

    def asked(self, ending: str) -> list[Request]:
        return [request for request in self.requests if request.path.endswith(ending)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            request = parsed(await reader.readuntil(b"\r\n\r\n"))
            self.requests.append(request)
            self.ring()
            script, well = (self.streams, stream_well) if request.path.endswith("/stream") else (self.polls, poll_well)
            act = script.popleft() if script else well
            await self._perform(act, Reply(self, request, writer), reader)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self.open_connections -= 1
        self.ring()

    async def _perform(self, act: Act, reply: Reply, reader: asyncio.StreamReader) -> None:
        """The act, until it is over or the client has gone."""
        acting = asyncio.ensure_future(act(reply))
        gone = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((acting, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (acting, gone):
            task.cancel()
        await asyncio.gather(acting, gone, return_exceptions=True)


@asynccontextmanager
async def scripted_feed(
    events: int = 0, streams: Iterable[Act] = (), polls: Iterable[Act] = ()
) -> AsyncIterator[ScriptedFeed]:
    """A feed that is served while the block runs."""
    feed = ScriptedFeed(streams=deque(streams), polls=deque(polls))
    feed.publish(events)
    server = await asyncio.start_server(feed.serve, "127.0.0.1", 0)
    feed.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/logs"
    try:
        yield feed
    finally:
        # Also what proves that a follower lets go of what it has opened.
        await feed.until(lambda: feed.open_connections == 0)
        server.close()


def parsed(head: bytes) -> Request:
    first, *lines = head.decode("latin-1").split("\r\n")
    target = urlsplit(first.split(" ")[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    return Request(target.path, {name: values[0] for name, values in parse_qs(target.query).items()}, headers)


def number_of(cursor: str | None) -> int:
    return int(cursor.rpartition("#")[2]) if cursor else 0


def cursor_of(event: dict[str, Any]) -> str:
    return f"{event['ts']}#{event['seq']:03d}"


def frame(event: dict[str, Any]) -> bytes:
    return f"id: {cursor_of(event)}\nevent: log\ndata: {json.dumps(event)}\n\n".encode()


async def stream_well(reply: Reply) -> None:
    """A stream as it should be."""
    await reply.begin_stream()
    await reply.events()


async def poll_well(reply: Reply) -> None:
    """A page as it should be: 100 at most, and 304 when nothing is new."""
    after = reply.request.query.get("afterCursor")
    found = reply.feed.after(number_of(after))
    page = found[: int(reply.request.query.get("limit", "100"))]
    tag = f'W/"{after}-{len(reply.feed.events)}"'
    if reply.request.headers.get("if-none-match") == tag:
        await reply.answer(304, etag=tag)
        return
    pagination = {
        "afterCursor": after,
        "nextCursor": cursor_of(page[-1]) if page else None,
        "hasMore": len(found) > len(page),
        "limit": 100,
        "returned": len(page),
    }
    body = json.dumps({"logs": page, "pagination": pagination}).encode()
    await reply.answer(200, body, content_type="application/json", etag=tag)


def refuse(status: int, retry_after: int | None = None, **details: Any) -> Act:
    """An error in the common body."""

    async def act(reply: Reply) -> None:
        body = {"error": f"code_{status}", "message": f"told {status}", "details": details}
        headers = {} if retry_after is None else {"retry_after": str(retry_after)}
        await reply.answer(status, json.dumps(body).encode(), content_type="application/json", **headers)

    return act


def stream_then(*pieces: bytes, events: int = 0) -> Act:
    """A stream that sends so many events, then these bytes, then ends."""

    async def act(reply: Reply) -> None:
        await reply.begin_stream()
        await reply.events(events)
        for piece in pieces:
            await reply.write(piece)

    return act


def answer_with(body: bytes, **headers: str) -> Act:
    """200 with this body."""

    async def act(reply: Reply) -> None:
        await reply.answer(200, body, **headers)

    return act


async def drop(reply: Reply) -> None:
    """No answer at all: the connection is reset."""
    reply.writer.transport.abort()


async def fall_silent(reply: Reply) -> None:
    """A stream that begins and never says anything again."""
    await reply.begin_stream()
    await asyncio.Event().wait()


async def stop_beating(reply: Reply) -> None:
    """A stream that announces how often it beats, and stops."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-heartbeat-interval: 0.1\r\n\r\n"
    await reply.write(head + b": connected\n\n")
    await asyncio.Event().wait()


async def only_headers(reply: Reply) -> None:
    """What a proxy does that keeps the body to itself."""
    await reply.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    await asyncio.Event().wait()


async def never_answer(reply: Reply) -> None:
    """Takes the request, and that is all."""
    await asyncio.Event().wait()
