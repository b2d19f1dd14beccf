"""Tasks whose events are heard of by some: an outbox that declares an audience, a relay, and feeds by reader."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psycopg

from aftercommit.feed import (
    POSITION,
    TIME_AND_SEQ,
    BareArray,
    ByAudience,
    Entry,
    Equals,
    Feed,
    Limits,
    LogEvent,
    OneOf,
    Wire,
)
from aftercommit.feed.strands.hub import FeedHub, HubSettings
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transport import Transport
from aftercommit.relay.transports import LogTransport
from aftercommit.testing.signals import Signals

SCHEMA = "tasks"


@dataclass(frozen=True)
class TaskChanged:
    """Something about a task is different now; `number` counts up in tests about order."""

    task_id: str
    number: int = 0
    kind: str = "note"
    text: str = ""


@dataclass(frozen=True)
class TaskArchived:
    """An event that not every feed shows."""

    task_id: str
    number: int = 0


def task_outbox(audience: bool = True, **options: Any) -> Outbox:
    """The outbox, declared anew."""
    outbox = Outbox(SCHEMA, audience=audience, **options)
    outbox.declare("task.changed", TaskChanged, aggregate="task", key="task_id")
    outbox.declare("task.archived", TaskArchived, aggregate="task", key="task_id")
    return outbox


def to_item(event: LogEvent[Any]) -> dict[str, Any]:
    """What readers get."""
    return {"event_id": event.position, "task_id": event.payload.task_id, "number": event.payload.number}


def mine(outbox: Outbox, name: str = "mine", **options: Any) -> Feed:
    """The feed of what one user hears of."""
    declared = {
        "select": ByAudience("user:{key}"),
        "item": to_item,
        "cursor": POSITION,
        "limits": Limits(default=50, least=1, most=1000),
        "wire": Wire(cursor="after_id", body=BareArray()),
    }
    return Feed(name, outbox, **{**declared, **options})


FILTERED: dict[str, Any] = {
    "facets": {"kind": "kind", "parity": lambda event: "even" if event.payload.number % 2 == 0 else "odd"},
    "filters": (Equals("kind", facet="kind"), OneOf("parity", facet="parity", values=("even", "odd"))),
}


def all_feeds(outbox: Outbox) -> dict[str, Feed]:
    """By number, by time and number, of one type, and with filters."""
    return {
        "mine": mine(outbox),
        "by_time": mine(outbox, "by_time", cursor=TIME_AND_SEQ, select=ByAudience()),
        "archived": mine(outbox, "archived", types=("task.archived",)),
        "filtered": mine(outbox, "filtered", types=("task.changed",), **FILTERED),
    }


@dataclass
class Tasks:
    """A migrated database of the test's own, the outbox and its feeds on it."""

    dsn: str
    outbox: Outbox = field(default_factory=task_outbox)
    signals: Signals = field(default_factory=Signals)
    appended: int = 0
    feeds: dict[str, Feed] = field(init=False)

    def __post_init__(self) -> None:
        self.feeds = all_feeds(self.outbox) if self.outbox.shape.audience else {}

    @property
    def database(self) -> Database:
        return Database(self.dsn)

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=autocommit, options=f"-c search_path={SCHEMA},public")

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        with self.connect(autocommit=True) as connection:
            cursor = connection.execute(query.encode(), list(parameters) or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, query: str, parameters: Iterable[Any] = ()) -> Any:
        return self.rows(query, parameters)[0][0]

    def heard(self) -> dict[str, list[int]]:
        """Who finds which positions."""
        return dict(self.rows("select reader, array_agg(position order by position) from audience group by reader"))

    async def value_becomes(self, query: str, wanted: Any) -> None:
        """Until the database says so; nobody sets an event for what another process does."""
        async with asyncio.timeout(60):
            while await asyncio.to_thread(self.value, query) != wanted:  # noqa: ASYNC110 - it is in the database
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def relay(
        self, transport: Transport | None = None, *, outbox: Outbox | None = None, signals: Signals | None = None
    ) -> AsyncIterator[Relay]:
        """A relay that runs while the test goes on."""
        signals = signals or self.signals
        settings = RelaySettings(lease_seconds=2.0)
        relay = Relay(
            outbox or self.outbox, self.database, transport or LogTransport(), settings=settings, probe=signals
        )
        async with relay:
            await signals.wait("relay.ready")
            yield relay

    def publish(self, *events: Any, audience: Sequence[str] | None = None) -> tuple[Any, ...]:
        """Publish and commit."""
        with self.connect() as connection:
            return self.outbox.publish(connection, list(events), audience=audience).event_ids

    async def record(self, *events: Any, audience: Sequence[str] | None = None) -> None:
        """Publish, and wait until the relay has appended them."""
        self.publish(*events, audience=audience)
        self.appended += len(events)
        await self.signals.wait_total("relay.appended", self.appended)

    @asynccontextmanager
    async def hub(self, *feeds: Feed, **settings: Any) -> AsyncIterator[FeedHub]:
        """A hub that follows the log, as one server process has it."""
        hub = FeedHub(self.database, feeds or list(self.feeds.values()), settings=HubSettings(**settings))
        async with hub:
            yield hub


def changes(task: str, numbers: Iterable[int], **fields: Any) -> list[TaskChanged]:
    """Changes of a task with these numbers."""
    return [TaskChanged(task, number, **fields) for number in numbers]


def numbers_of(entries: Sequence[Entry]) -> list[int]:
    """The publisher's own numbers, as the items have them."""
    return [msgspec.json.decode(entry.body)["number"] for entry in entries]
