"""An investigation log for tests of feeds: an outbox whose streams are numbered, a relay that runs, and readers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psycopg

from aftercommit.feed import (
    EVERYTHING,
    TIME_AND_SEQ,
    AtLeast,
    ByScope,
    ByStream,
    Chosen,
    Cursor,
    Entry,
    Equals,
    Everything,
    Feed,
    Limits,
    LogEvent,
    OneOf,
    Page,
    timestamp,
)
from aftercommit.feed.strands.hub import FeedHub, HubSettings
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transports import LogTransport
from aftercommit.service import wait_for_any
from aftercommit.testing.signals import Signals

LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")


@dataclass(frozen=True)
class LogRecorded:
    """A line of an investigation's log; `number` counts up in tests about order."""

    investigation_id: str
    number: int = 0
    level: str = "INFO"
    source: str = "backend"
    service: str = "api"
    message: str = ""


@dataclass(frozen=True)
class Closed:
    """The investigation is over: an event of the same stream that its log does not show."""

    investigation_id: str


def log_outbox(**options: Any) -> Outbox:
    """The outbox, declared anew."""
    outbox = Outbox("logs", scope={"project_id": str}, numbered=["investigation"], **options)
    outbox.declare("log.recorded", LogRecorded, aggregate="investigation", key="investigation_id")
    outbox.declare("investigation.closed", Closed, aggregate="investigation", key="investigation_id")
    return outbox


def to_item(event: LogEvent[Any]) -> dict[str, Any]:
    """What readers get."""
    payload = event.payload
    if isinstance(payload, Closed):
        return {"event_id": event.event_id, "closed": True, "seq": event.stream_seq}
    return {
        "event_id": event.event_id,
        "ts": timestamp(event.ts),
        "seq": event.stream_seq,
        "number": payload.number,
        "level": payload.level,
        "message": payload.message,
    }


FACETS: dict[str, Any] = {"level": "level", "source": "source", "service": "service"}
FILTERS = (
    AtLeast("minLevel", facet="level", order=LEVELS, default="DEBUG"),
    OneOf("source", facet="source", values=("frontend", "backend")),
    Equals("service", facet="service", longest=100),
)


def log_feed(outbox: Outbox, name: str = "logs", **options: Any) -> Feed:
    """The feed of the document, unless something else is said."""
    declared = {
        "select": ByStream("investigation"),
        "types": ("log.recorded",),
        "cursor": TIME_AND_SEQ,
        "facets": FACETS,
        "filters": FILTERS,
        "item": to_item,
        "limits": Limits(default=100, least=1, most=1000),
    }
    return Feed(name, outbox, **{**declared, **options})


def all_feeds(outbox: Outbox) -> dict[str, Feed]:
    """One of each selection."""
    return {
        "logs": log_feed(outbox),
        "stream": log_feed(outbox, "stream", types=None),
        "project": log_feed(outbox, "project", select=ByScope("project_id")),
        "everything": log_feed(outbox, "everything", select=Everything(), types=None),
    }


@dataclass
class Logs:
    """A migrated database of the test's own, the outbox and its feeds on it."""

    dsn: str
    outbox: Outbox = field(default_factory=log_outbox)
    signals: Signals = field(default_factory=Signals)
    appended: int = 0
    feeds: dict[str, Feed] = field(init=False)

    def __post_init__(self) -> None:
        self.feeds = all_feeds(self.outbox)

    @property
    def feed(self) -> Feed:
        return self.feeds["logs"]

    @property
    def database(self) -> Database:
        return Database(self.dsn)

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=autocommit, options="-c search_path=logs,public")

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        with self.connect(autocommit=True) as connection:
            cursor = connection.execute(query.encode(), list(parameters) or None)
            return cursor.fetchall() if cursor.description else []

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[Relay]:
        """A relay that runs while the test goes on."""
        settings = RelaySettings(lease_seconds=2.0)
        async with Relay(self.outbox, self.database, LogTransport(), settings=settings, probe=self.signals) as relay:
            await self.signals.wait("relay.ready")
            yield relay

    def publish(self, *events: Any, project_id: str = "p-1") -> None:
        """Publish and commit."""
        with self.connect() as connection:
            self.outbox.publish(connection, list(events), project_id=project_id)

    async def record(self, *events: Any, project_id: str = "p-1") -> None:
        """Publish, and wait until the relay has appended them."""
        self.publish(*events, project_id=project_id)
        self.appended += len(events)
        await self.signals.wait_total("relay.appended", self.appended)

    @asynccontextmanager
    async def hub(self, *feeds: Feed, signals: Signals | None = None, **settings: Any) -> AsyncIterator[FeedHub]:
        """A hub that follows the log, as one server process has it."""
        hub = FeedHub(
            self.database,
            feeds or list(self.feeds.values()),
            settings=HubSettings(**settings),
            probe=signals or Signals(),
        )
        async with hub:
            yield hub


def lines(investigation: str, numbers: Iterable[int], **fields: Any) -> list[LogRecorded]:
    """Log lines with these numbers."""
    return [LogRecorded(investigation, number, **fields) for number in numbers]


def numbers_of(entries: Sequence[Entry]) -> list[int]:
    """The publisher's own numbers, as the items have them."""
    return [msgspec.json.decode(entry.body)["number"] for entry in entries]


class Walker:
    """Polls a strand as a client does: from its last cursor, and a page without one keeps the cursor."""

    def __init__(self, feed: Feed, key: str, limit: int = 10, chosen: Chosen = EVERYTHING) -> None:
        self.feed, self.key, self.limit, self.chosen = feed, key, limit, chosen
        self.cursor: Cursor | None = Cursor(0)
        self.seen: list[Entry] = []
        self.last: Page | None = None

    async def poll(self, hub: FeedHub) -> Page:
        """One page; what the cursor is goes through its text, as over HTTP."""
        strand = await hub.strand(self.feed, self.key)
        page = await hub.page(strand, self.cursor, self.limit, self.chosen)
        self.seen += page.entries
        if page.next is not None:
            self.cursor = self.feed.cursor.parse(self.feed.cursor.format(page.next))
        self.last = page
        return page

    async def walk(self, hub: FeedHub) -> list[Entry]:
        """Pages until there are no more."""
        while (await self.poll(hub)).has_more:
            pass
        return self.seen


async def caught_up(hub: FeedHub, logs: Logs, feed: str = "logs", key: str = "i-1", head: int | None = None) -> None:
    """Until the hub knows what was appended, or has come to this head."""
    strand = await hub.strand(logs.feeds[feed], key)
    wanted = logs.appended if head is None else head
    async with asyncio.timeout(60):
        while strand.head < wanted:
            await wait_for_any(20, strand.changed())


async def until(condition: Callable[[], bool]) -> None:
    """Until a condition holds that no signal tells."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody sets an event for it
            await asyncio.sleep(0.01)
