"""What flows in a soak: numbered events of a hundred aggregates, three consumers that write each down, and a feed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg

from aftercommit import Event, Outbox
from aftercommit.access.tokens import mint
from aftercommit.feed import Everything, Feed, Limits, LogEvent
from aftercommit.schema import migrate
from bench import feed_logs, shop

SCHEMA: Final = "soak"
CONSUMERS: Final = ("first", "second", "third")
AGGREGATES: Final = 100
PATH: Final = "/ticks"
PERMISSION: Final = "ticks:read"
TABLES: Final = """
    create table if not exists public.soak_business (id bigint generated always as identity primary key, number bigint);
    create table if not exists public.soak_effect (consumer text not null, number bigint not null)
"""
EFFECT: Final = "insert into public.soak_effect (consumer, number) values (%s, %s)"


@dataclass(frozen=True)
class Ticked:
    """One event. `sent` is when it was published, just before its COMMIT, in milliseconds."""

    key: str
    number: int
    sent: int
    note: str


def declared() -> Outbox:
    """The outbox with its consumers. A handler's row has no unique key, so that a second execution shows."""
    outbox = Outbox(SCHEMA)
    outbox.declare("ticked", Ticked, aggregate="tick", key="key")
    for name in CONSUMERS:
        _consumer(outbox, name)
    return outbox


def _consumer(outbox: Outbox, name: str) -> None:
    @outbox.on(Ticked, consumer=name)
    async def take(event: Event[Ticked], connection: Any) -> None:
        await connection.execute(EFFECT, (name, event.payload.number))


def event(number: int, sent: int) -> Ticked:
    """An event of about 500 bytes."""
    return Ticked(f"k-{number % AGGREGATES}", number, sent, shop.NOTE)


def feed(outbox: Outbox) -> Feed:
    """All events, from the oldest on."""
    limits = Limits(default=1000, most=1000)
    return Feed("ticks", outbox, select=Everything(), item=_item, limits=limits, permission=PERMISSION, begins="oldest")


def _item(event: LogEvent[Ticked]) -> Mapping[str, Any]:
    return {"position": event.position, "number": event.payload.number, "sent": event.payload.sent}


def prepare(connection: psycopg.Connection[Any]) -> None:
    """The schema and the tables."""
    migrate.up(connection, declared().shape)
    for statement in TABLES.split(";"):
        connection.execute(statement.encode())


def bearer() -> str:
    """The header of a reader."""
    return f"Bearer {mint(feed_logs.keys(), 'ada', [PERMISSION], timedelta(days=2))}"
