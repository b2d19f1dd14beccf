"""A database with many outboxes: what one process does for all of them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from aftercommit.consumer import WorkerSettings
from aftercommit.engine import Engine
from aftercommit.event.envelope import Event
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.relay import RelaySettings
from aftercommit.schema import migrate
from aftercommit.testing.signals import Signals
from tests.support.shop import OrderPlaced

MANY = 20
NAME = "the mall"
HANDLED = "create table public.handled (schema text, number int)"
WRITE = "insert into public.handled values (%s, %s)"
BACKENDS = "select count(*)::int from pg_stat_activity where datname = current_database() and application_name = %s"
PIDS = "select pid from pg_stat_activity where datname = current_database() and application_name = %s"


def outbox_of(number: int) -> Outbox:
    """One of the outboxes, without a consumer."""
    outbox = Outbox(f"shop_{number}")
    outbox.declare("order.placed", OrderPlaced, aggregate="order", key="order_id")
    return outbox


def with_consumer(outbox: Outbox, **options: Any) -> Outbox:
    """The outbox with a consumer that writes a row for each event."""
    consumer = outbox.consumer("ledger", start="earliest", **options)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await connection.execute(WRITE, (outbox.schema, event.payload.number))

    return outbox


def build(dsn: str) -> None:
    """The tables of all outboxes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(HANDLED)
        for number in range(MANY):
            migrate.up(connection, outbox_of(number).shape)


@dataclass
class Mall:
    """Many outboxes in one database, and a look into their tables."""

    dsn: str
    signals: Signals = field(default_factory=Signals)

    @property
    def database(self) -> Database:
        """How services connect."""
        return Database(self.dsn, application_name=NAME)

    def engine(self, outboxes: Sequence[Outbox], *, lease: float = 5.0, **options: Any) -> Engine:
        """All of them in one process."""
        settings = WorkerSettings(lease_seconds=lease, max_connections=options.pop("max_connections", None))
        relays = RelaySettings(lease_seconds=lease)
        options = {"probe": self.signals, **options}
        return Engine(outboxes, self.database, relay_settings=relays, worker_settings=settings, **options)

    async def publish(self, outboxes: Sequence[Outbox], *numbers: int) -> None:
        """Events with these numbers, in each outbox, in one transaction."""
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            for outbox in outboxes:
                await outbox.publish(connection, [OrderPlaced("o-1", number) for number in numbers])

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    async def handled(self, outboxes: Sequence[Outbox], *numbers: int) -> None:
        """Until the consumers of these outboxes have written these numbers and no other, in this order or another."""
        wanted = sorted((outbox.schema, number) for outbox in outboxes for number in numbers)
        names = [outbox.schema for outbox in outboxes]
        query = "select schema, number from public.handled where schema = any(%s)"
        async with asyncio.timeout(60), await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as eyes:
            while (found := sorted(await (await eyes.execute(query, (names,))).fetchall())) != wanted:
                assert len(found) < len(wanted), f"handled: {found}"
                await asyncio.sleep(0.01)

    async def no_backend_is_left(self) -> None:
        """Until the server has ended what the engine has closed."""
        async with asyncio.timeout(60), await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as eyes:
            while await (await eyes.execute(BACKENDS, (NAME,))).fetchone() != (0,):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
