"""What tests of consumers share: a ledger that handlers write to, events in the log without a relay, workers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any
from uuid import UUID

from psycopg import sql

from aftercommit.consumer import Dispatcher, LogWorker, WorkerSettings
from aftercommit.event.envelope import Event, Record
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres import records
from aftercommit.postgres.listen import Listener
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transports import BusTransport
from aftercommit.testing.signals import Signals
from tests.support.shop import OrderPlaced, Shop

COLUMNS = (
    "id seq lane aggregate_type aggregate_id event_type schema_version occurred_at correlation_id causation_id payload "
    "retry_count created_at tenant_id".split()
)
APPEND = """
    with moved as (delete from shop.outbox returning *),
    tip as (
        update shop.head set position = position + (select count(*) from moved), ts = greatest(ts, clock_timestamp())
        returning position, ts
    ),
    appended as (
        insert into shop.log (position, ts, {columns})
        select tip.position - count(*) over () + row_number() over (order by seq), tip.ts, {columns} from moved, tip
        returning 1
    )
    select position::int, pg_notify(%s, position::text) from tip
"""
# The ledger has no unique constraint: a second effect would show.
LEDGER = """
    create table public.ledger (
        id bigint generated always as identity, consumer text, event_id uuid, order_id text, number int, note text
    )
"""
WRITE = "insert into public.ledger (consumer, event_id, order_id, number, note) values (%s, %s, %s, %s, %s)"
BLOCKED_AT_INBOX = """
    select count(*)::int from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'
      and (query like '%%processed_events%%' or query like '%%aftercommit_begin%%')
"""


class Ledger:
    """What handlers have written, in the order of their writing."""

    def __init__(self, shop: Shop) -> None:
        """An empty table in the shop's database."""
        self.shop = shop
        shop.rows(LEDGER)

    async def write(self, event: Event[OrderPlaced], connection: Any) -> None:
        """A handler: one row per event."""
        await connection.execute(WRITE, row_of(event))

    def write_sync(self, event: Event[OrderPlaced], connection: Any) -> None:
        """The same, blocking."""
        connection.execute(WRITE, row_of(event))

    def numbers(self, order_id: str | None = None, consumer: str | None = None) -> list[int]:
        """The numbers of the orders that were written, as they were written."""
        where = "(%s::text is null or order_id = %s) and (%s::text is null or consumer = %s)"
        query = f"select number from public.ledger where {where} order by id"
        return [number for (number,) in self.shop.rows(query, (order_id, order_id, consumer, consumer))]

    def orders(self) -> list[str]:
        """The orders that were written, as they were written."""
        return [order_id for (order_id,) in self.shop.rows("select order_id from public.ledger order by id")]


def row_of(event: Event[OrderPlaced], consumer: str = "") -> tuple[Any, ...]:
    """A row of the ledger."""
    return (consumer, event.event_id, event.payload.order_id, event.payload.number, event.payload.note)


def append(shop: Shop) -> int:
    """Move everything from the outbox into the log; returns the last position."""
    columns = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    statement = sql.SQL(APPEND).format(columns=columns)
    with shop.connect(autocommit=True) as connection:
        row = connection.execute(statement, (shop.outbox.shape.log_channel,)).fetchone()
    return int(row[0]) if row else 0


def place_in_log(shop: Shop, *orders: tuple[str, int]) -> list[UUID]:
    """Placed orders (id and number) that are in the log."""
    ids = list(shop.publish(*(OrderPlaced(order_id, number) for order_id, number in orders)))
    append(shop)
    return ids


def numbered(count: int, order_id: str = "o-1") -> list[tuple[str, int]]:
    """Orders 0…count-1 of one aggregate."""
    return [(order_id, number) for number in range(count)]


def outbox_records(shop: Shop) -> list[Record]:
    """What is in the outbox, as the relay would hand it to a transport."""
    names = (
        "id event_type schema_version aggregate_type aggregate_id occurred_at correlation_id causation_id "
        "payload::text created_at seq lane retry_count tenant_id"
    )
    rows = shop.rows(f"select {', '.join(names.split())} from outbox order by seq")
    loaded = [(*row[:8], row[8].encode(), *row[9:]) for row in rows]
    return records.outbox_records(loaded, shop.outbox.shape, again=False)


def letters(shop: Shop, columns: str = "status, attempts") -> list[tuple[Any, ...]]:
    """Dead letters in the order of their events."""
    return shop.rows(f"select {columns} from dead_letter_events order by seq, consumer_name")


def inbox(shop: Shop, consumer: str) -> int:
    """How many events the inbox of a consumer holds."""
    return int(shop.value("select count(*) from processed_events where consumer_name = %s", (consumer,)))


def checkpoint(shop: Shop, consumer: str) -> int:
    """How far a consumer has come."""
    return int(shop.value("select position from consumer where name = %s", (consumer,)))


def terminate(shop: Shop, pid: int) -> None:
    """End a session from outside, as an administrator or a failover would."""
    shop.rows("select pg_terminate_backend(%s, 5000)", (pid,))


@asynccontextmanager
async def worker_on(
    shop: Shop,
    consumer: Consumer,
    *,
    lease_seconds: float = 5.0,
    page_size: int = 1000,
    signals: Signals | None = None,
    listener: Listener | None = None,
    wait_for: str | None = "consumer.active",
) -> AsyncIterator[LogWorker]:
    """A worker that runs while the test goes on."""
    signals = signals or shop.signals
    settings = WorkerSettings(page_size=page_size, lease_seconds=lease_seconds)
    worker = LogWorker(shop.outbox, consumer, shop.database, settings=settings, listener=listener, probe=signals)
    times = signals.counts[wait_for] + 1 if wait_for is not None else 0
    # Channels are subscribed to before the listener starts.
    async with listener or nullcontext(), worker:
        if wait_for is not None:
            await signals.wait(wait_for, times)
        yield worker


async def kill(worker: LogWorker) -> None:
    """End a worker without its leave: nothing is released, its transactions break off."""
    assert worker._task is not None
    worker._task.cancel()
    await asyncio.wait({worker._task})
    worker._task = None


@asynccontextmanager
async def stopped_heart(shop: Shop, worker: LogWorker) -> AsyncIterator[None]:
    """The worker does not look at its leases, and the time of the one it has is over.

    Its consumer goes on with what it has read. At the end of the block, that has ended, and the heart beats again.
    """
    beating, ask = asyncio.Event(), worker._leases._ask

    async def hang(*arguments: Any) -> Any:
        await beating.wait()
        return await ask(*arguments)

    worker._leases._ask = hang  # type: ignore[assignment,method-assign]
    shop.rows("update consumer set leased_until = now() - interval '1 second'")
    yield
    await asyncio.wait([follower.task for follower in worker._followers.values() if follower.task is not None])
    beating.set()


async def handle_all(shop: Shop, consumer: Consumer, **options: Any) -> None:
    """Run a worker until it has nothing to do, not even a retry."""
    async with worker_on(shop, consumer, **options):
        await settled(shop, consumer.name, options.get("signals"))


async def settled(shop: Shop, consumer: str, signals: Signals | None = None) -> None:
    """Until the consumer has come to the end of the log and no dead letter is to be retried."""
    signals = signals or shop.signals
    while True:
        await signals.next("consumer.idle")
        open_letters = shop.value(
            "select count(*) from dead_letter_events where status = 'retrying' and consumer_name = %s", (consumer,)
        )
        if not open_letters and checkpoint(shop, consumer) == shop.value("select position from head"):
            return


@asynccontextmanager
async def bus_on(
    shop: Shop, consumers: Sequence[Consumer] | None = None, *, signals: Signals | None = None, **settings: Any
) -> AsyncIterator[Relay]:
    """A relay whose transport is the bus, with all consumers of the shop's outbox behind it."""
    signals = signals or shop.signals
    transport = BusTransport(Dispatcher(shop.outbox, shop.database, consumers))
    settings = {"lease_seconds": 2.0, **settings}
    relay = Relay(shop.outbox, shop.database, transport, settings=RelaySettings(**settings), probe=signals)
    async with relay:
        await signals.wait("relay.ready")
        yield relay
