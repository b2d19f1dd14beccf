"""The sample feed of the server tests: books with numbered lines, a database of the test's own, a running server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import psycopg

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.key_count import Rate
from aftercommit.access.token_keys import TokenKeys
from aftercommit.access.tokens import TokenVerifier, mint
from aftercommit.feed import TIME_AND_SEQ, AtLeast, ByStream, Equals, Feed, Limits, LogEvent, PagedBody, Wire, timestamp
from aftercommit.feed.app import FeedApp
from aftercommit.feed.live.streams import StreamTimes
from aftercommit.http.asgi import Asgi
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay
from aftercommit.relay.transports import LogTransport
from aftercommit.schema import migrate
from aftercommit.server.http_server import HttpServer
from aftercommit.server.protocol import Guards
from aftercommit.testing.signals import Signals

SCHEMA = "journal"
LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
PATH = "/books/{book_id}/lines"
KEYS = json.dumps(
    {
        "issuer": "tests",
        "audience": "feeds",
        "keys": [{"kty": "oct", "kid": "one", "alg": "HS256", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}],
    }
)
# Heartbeats and rotation are far away unless a test asks for them; what waits for the timer does not wait for long.
TIMES = StreamTimes(tick_seconds=0.02, progress_seconds=0.05, drain_seconds=1.0, retry_seconds=0.1)


@dataclass(frozen=True)
class LineWritten:
    """Somebody wrote a line into a book."""

    book_id: str
    text: str
    level: str = "INFO"
    author: str = "nobody"


def journal_outbox() -> Outbox:
    """Declared anew: a feed belongs to its declaration."""
    outbox = Outbox(SCHEMA, numbered=["book"])
    outbox.declare("line.written", LineWritten, aggregate="book", key="book_id")
    return outbox


def to_item(event: LogEvent[LineWritten]) -> Mapping[str, Any]:
    line = event.payload
    return {
        "event_id": str(event.event_id),
        "seq": event.stream_seq,
        "ts": timestamp(event.ts),
        "text": line.text,
        "level": line.level,
        "author": line.author,
    }


def journal_feed(outbox: Outbox, **options: Any) -> Feed:
    """Lines of a book."""
    declared: dict[str, Any] = {
        "select": ByStream("book"),
        "types": ("line.written",),
        "cursor": TIME_AND_SEQ,
        "facets": {"level": "level", "author": "author"},
        "filters": (
            AtLeast("minLevel", facet="level", order=LEVELS, default="DEBUG"),
            Equals("author", facet="author"),
        ),
        "item": to_item,
        "limits": Limits(default=100, least=1, most=1000),
        "wire": Wire(cursor="afterCursor", limit="limit", body=PagedBody("lines"), event_name="line"),
        "permission": "book:{key}:read",
        "rates": (Rate("user", 100_000, 60), Rate("resource", 100_000, 60)),
    }
    return Feed(options.pop("name", "lines"), outbox, **{**declared, **options})


def prepare_journal(dsn: str) -> None:
    """The journal's schema, made once per session."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        outbox = journal_outbox()
        journal_feed(outbox)
        migrate.up(connection, outbox.shape)


@dataclass
class Journal:
    """A migrated database of the test's own, a writer on it, and servers that read it."""

    dsn: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outbox = journal_outbox()
        self.feed = journal_feed(self.outbox, **self.options)
        self.keys = TokenKeys.from_text(KEYS)
        self.signals = Signals()
        self.relay = Relay(self.outbox, Database(self.dsn), LogTransport(), probe=self.signals)
        self.written = 0

    @property
    def database(self) -> Database:
        return Database(self.dsn)

    def token(self, user: str = "ada", permissions: Sequence[str] = ("book:*:read",), seconds: float = 3600) -> str:
        return mint(self.keys, user, permissions, timedelta(seconds=seconds))

    def bearer(self, *arguments: Any, **options: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(*arguments, **options)}"}

    def publish(self, *lines: LineWritten) -> None:
        """Commit lines in a transaction of their own; the relay appends them when it runs."""
        with psycopg.connect(self.dsn) as connection:
            self.outbox.publish(connection, list(lines))
        self.written += len(lines)

    async def write(self, *texts: str, book: str = "b-1", level: str = "INFO", author: str = "nobody") -> None:
        """Lines that are in the log when this returns."""
        self.publish(*(LineWritten(book, text, level, author) for text in texts))
        await self.signals.wait_total("relay.appended", self.written)

    def app(self, access: Any = None, feed: Feed | None = None, **options: Any) -> FeedApp:
        """An application over the journal's feed."""
        access = access or BearerAccess(TokenVerifier(self.keys))
        path, database = options.pop("path", PATH), options.pop("database", self.database)
        return FeedApp(database, {path: feed or self.feed}, access, **{"times": TIMES, **options})

    @asynccontextmanager
    async def served(
        self, app: FeedApp | None = None, outer: Asgi | None = None, **options: Any
    ) -> AsyncIterator["Reading"]:
        """A running server over real sockets, in this process, and somebody who reads from it."""
        feeds = app or self.app()
        guards: Guards | None = options.pop("guards", None)
        server = HttpServer(
            outer or feeds, guards=guards, drain_seconds=feeds.streams.times.drain_seconds, on_stop=feeds.drain
        )
        async with server:
            await server.answers()
            async with httpx.AsyncClient(base_url=server.url, headers=self.bearer(), timeout=60) as client:
                yield Reading(feeds, server, client)


@dataclass
class Reading:
    """A server and a client of it."""

    app: FeedApp
    server: HttpServer
    client: httpx.AsyncClient

    async def poll(
        self, book: str = "b-1", headers: Mapping[str, str] | None = None, **parameters: Any
    ) -> httpx.Response:
        return await self.client.get(f"/books/{book}/lines", params=parameters, headers=headers)

    async def texts(self, **parameters: Any) -> list[str]:
        answer = await self.poll(**parameters)
        assert answer.status_code == 200, answer.text
        return [line["text"] for line in answer.json()["lines"]]

    @asynccontextmanager
    async def stream(
        self, book: str = "b-1", headers: Mapping[str, str] | None = None, **parameters: Any
    ) -> AsyncIterator["Followed"]:
        path = f"/books/{book}/lines/stream"
        async with self.client.stream("GET", path, params=parameters, headers=headers) as answer:
            yield Followed(answer)


class Followed:
    """A stream as it is read: its blocks, one after the other."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._bytes = answer.aiter_bytes() if answer.status_code == 200 else None
        self._rest = b""

    async def block(self, timeout: float = 60.0) -> dict[str, str] | None:
        """The next block by its fields (comments under ""), or None at the end of the stream."""
        assert self._bytes is not None, self.answer.status_code
        async with asyncio.timeout(timeout):
            while b"\n\n" not in self._rest:
                try:
                    self._rest += await anext(self._bytes)
                except StopAsyncIteration:
                    return None
        text, self._rest = self._rest.split(b"\n\n", 1)
        return dict(_field(line) for line in text.decode().split("\n"))

    async def events(self, count: int) -> list[dict[str, Any]]:
        """So many items, whatever stands between them."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            block = await self.block()
            assert block is not None, f"the stream ended after {found}"
            if "data" in block:
                found.append({**block, "item": json.loads(block["data"])})
        return found

    async def texts(self, count: int) -> list[str]:
        return [event["item"]["text"] for event in await self.events(count)]

    async def named(self, name: str, timeout: float = 90.0) -> dict[str, Any]:
        """The next event of this name; heartbeats alone are not waited for without end."""
        async with asyncio.timeout(timeout):
            while (block := await self.block()) is not None:
                if block.get("event") == name:
                    return {**block, "item": json.loads(block["data"])}
        raise AssertionError(f"the stream ended without {name!r}")


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 60.0) -> None:
    """Until the condition holds, for what no signal tells."""
    async with asyncio.timeout(timeout):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.005)


def numbered(count: int, begin: int = 1) -> Iterator[str]:
    """Texts to write."""
    return (f"line {number}" for number in range(begin, begin + count))
