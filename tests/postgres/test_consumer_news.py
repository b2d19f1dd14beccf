"""New events reach consumers that wait for them: handed over by a relay in the process, or read at a notification.

In these tests no worker looks on its own account, so an event that nobody tells it of is not handled.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from aftercommit import Engine
from aftercommit.backoff import Constant
from aftercommit.consumer import WorkerSettings, log_worker, news
from aftercommit.consumer.lease import Leases
from aftercommit.consumer.names import set_paused
from aftercommit.consumer.pages import LatestPage
from aftercommit.event.envelope import Event, Record
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.records import log_records
from aftercommit.postgres.statements import Statements
from tests.support.consuming import Ledger, checkpoint, letters, numbered, place_in_log
from tests.support.shop import OrderPlaced, Shop

HOUR = 3600.0


@pytest.fixture(autouse=True)
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are renewed in hours, nothing is polled, and an answer to an append is waited for."""
    monkeypatch.setattr(log_worker, "POLL", HOUR)
    monkeypatch.setattr(news, "EXPECT_SECONDS", HOUR)


@asynccontextmanager
async def engine_on(shop: Shop, lease_seconds: float = HOUR) -> AsyncIterator[Engine]:
    """A relay and a worker in one process, which wait for events."""
    settings = WorkerSettings(lease_seconds=lease_seconds)
    async with Engine(shop.outbox, shop.database, worker_settings=settings, probe=shop.signals) as engine:
        await shop.signals.wait("listener.working")
        await shop.signals.wait("relay.ready")
        await shop.signals.wait("consumer.active", len(shop.outbox.consumers))
        await shop.signals.wait("consumer.idle", len(shop.outbox.consumers))
        yield engine


def declared(shop: Shop, name: str = "index", **options: Any) -> tuple[Ledger, Consumer]:
    """A consumer that writes a row for each event."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer(name, start="earliest", **options)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)

    return ledger, consumer


async def written(shop: Shop, count: int) -> None:
    """Until so many rows are written."""
    await shop.value_becomes("select count(*)::int from public.ledger", count)


async def test_an_event_is_handed_over_without_another_trip_to_the_database(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(shop)
    asked: list[str] = []
    kept: list[Record] = []
    keep, read, ask = LatestPage.keep, LatestPage._read, Leases._ask

    def keeping(self: LatestPage, records: Any) -> None:
        kept.extend(records)
        keep(self, records)

    async def reading_news(self: LatestPage, *arguments: Any) -> Any:
        asked.append("read news")

    async def asking(self: Leases, connection: Any, statement: str, names: Any) -> Any:
        asked.append(statement)
        return await ask(self, connection, statement, names)

    async def reading(self: LatestPage, *arguments: Any) -> Any:
        asked.append("read")
        return await read(self, *arguments)

    monkeypatch.setattr(LatestPage, "keep", keeping)
    monkeypatch.setattr(LatestPage, "_read", reading)
    monkeypatch.setattr(LatestPage, "read_news", reading_news)
    monkeypatch.setattr(Leases, "_ask", asking)
    async with engine_on(shop):
        for number in range(4):
            idle = shop.signals.counts["consumer.idle"]
            shop.place("o-1", number, note="ünïcode \u2028")
            await shop.signals.wait("consumer.idle", idle + 1)
            await shop.value_becomes("select position::int from consumer where name = 'index'", number + 1)
            if number == 0:
                # Whatever the start of the listener has caused is over.
                del asked[:], kept[:]
    assert asked == []
    connection = await shop.database.connect()
    async with connection:
        statement = Statements(shop.outbox.shape)["read_log"]
        rows = await (
            await connection.execute(statement, {"after": 1, "upto": 4, "types": None, "lane": 0, "lanes": 1})
        ).fetchall()
    assert kept == log_records(rows, shop.outbox.shape)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("relay", ["here", "elsewhere"])
async def test_any_number_of_events_arrives(shop: Shop, count: int, relay: str) -> None:
    ledger, _ = declared(shop)
    async with engine_on(shop):
        if relay == "here":
            shop.publish(*(OrderPlaced(order_id, number) for order_id, number in numbered(count)))
        else:
            place_in_log(shop, *numbered(count))
        await written(shop, count)
    assert ledger.numbers() == list(range(count))


@pytest.mark.parametrize("relay", ["here", "elsewhere"])
async def test_large_events_arrive(shop: Shop, relay: str) -> None:
    declared(shop)
    async with engine_on(shop):
        for number in range(3):
            shop.publish(*(OrderPlaced("o-1", 3 * number + each, note="x" * 60_000) for each in range(3)))
            if relay == "elsewhere":
                place_in_log(shop)
        await written(shop, 9)


async def test_events_of_two_relays_arrive_once_and_in_order(shop: Shop) -> None:
    ledger, _ = declared(shop)
    async with engine_on(shop):
        for number in range(30):
            if number % 3:
                shop.place("o-1", number)
            else:
                place_in_log(shop, ("o-1", number))
            if number % 5 == 0:
                await written(shop, number + 1)
        await written(shop, 30)
    assert ledger.numbers() == [number for _, _, number in shop.log()]


async def test_consumers_at_different_places_all_get_their_events(shop: Shop) -> None:
    """One is at work while the next events come."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    slow = shop.outbox.consumer("slow", start="earliest")
    seen: list[int] = []

    @slow.on(OrderPlaced)
    async def hang(event: Event[OrderPlaced], connection: Any) -> None:
        reached.set()
        await go_on.wait()
        seen.append(event.payload.number)

    declared(shop, "quick")
    async with engine_on(shop):
        shop.place("o-1", 0)
        await asyncio.wait_for(reached.wait(), 60)
        for number in range(1, 6):
            shop.place("o-1", number)
            await written(shop, number + 1)
        go_on.set()
        await shop.value_becomes("select position::int from consumer where name = 'slow'", 6)
    assert seen == list(range(6))


async def test_a_paused_consumer_is_handed_nothing(shop: Shop) -> None:
    declared(shop)
    connection = await shop.database.connect()
    async with connection, engine_on(shop):
        shop.place("o-1", 0)
        await written(shop, 1)
        await set_paused(connection, shop.outbox.shape, "index", True)
        await shop.signals.next("consumer.paused")
        appended = shop.signals.counts["relay.appended"]
        shop.place("o-1", 1)
        await shop.signals.wait("relay.appended", appended + 1)
        assert checkpoint(shop, "index") == 1
        await set_paused(connection, shop.outbox.shape, "index", False)
        await written(shop, 2)


@pytest.mark.parametrize("relay", ["here", "elsewhere"])
async def test_a_worker_that_was_taken_over_handles_nothing_it_is_handed(shop: Shop, relay: str) -> None:
    """Another worker has the lease, and this one has not heard of it."""
    ledger, _ = declared(shop)
    async with engine_on(shop):
        shop.place("o-1", 0)
        await written(shop, 1)
        shop.rows(
            "update consumer set worker = 'other', token = gen_random_uuid(), lease_seconds = 60, "
            "leased_until = now() + interval '60 seconds'"
        )
        shop.place("o-1", 1) if relay == "here" else place_in_log(shop, ("o-1", 1))
        await shop.signals.wait("consumer.fenced")
        assert ledger.numbers() == [0]
        shop.rows("update consumer set leased_until = null, token = null, worker = null")
        connection = await shop.database.connect()
        async with connection:
            await set_paused(connection, shop.outbox.shape, "index", False)
        await written(shop, 2)
    assert ledger.numbers() == [0, 1]


async def test_a_checkpoint_that_was_moved_back_is_not_overrun(shop: Shop) -> None:
    """Without an inbox, the events behind it come again; nobody has told the worker."""
    ledger, _ = declared(shop, inbox=False)
    async with engine_on(shop):
        place_in_log(shop, *numbered(3))
        await written(shop, 3)
        await shop.value_becomes("select position::int from consumer", 3)
        shop.rows("update consumer set position = 1")
        place_in_log(shop, ("o-1", 3))
        await written(shop, 6)
    assert ledger.numbers() == [0, 1, 2, 1, 2, 3]


async def test_a_rewound_consumer_handles_its_events_again(shop: Shop) -> None:
    """As above, with a relay in the process, by the function for tests."""
    ledger, _ = declared(shop, inbox=False)
    async with engine_on(shop, lease_seconds=0.6):
        shop.publish(*(OrderPlaced("o-1", number) for number in range(3)))
        await written(shop, 3)
        await shop.value_becomes("select position::int from consumer", 3)
        rewind = Statements(shop.outbox.shape)["kit_rewind_consumer"]
        with shop.connect(autocommit=True) as connection:
            connection.execute(rewind, {"consumer": "index", "position": 1})
        shop.place("o-1", 3)
        await written(shop, 6)
    assert ledger.numbers() == [0, 1, 2, 1, 2, 3]


async def test_strict_order_holds_for_letters_that_an_operator_opens_meanwhile(shop: Shop) -> None:
    """A letter is open again and the worker has not looked: a new event of its aggregate waits behind it."""
    consumer = shop.outbox.consumer("index", start="earliest", ordering="strict", backoff=Constant(HOUR))
    ledger, broken = Ledger(shop), True

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if broken and event.payload.number == 0:
            raise ValueError("no")
        await ledger.write(event, connection)

    async with engine_on(shop):
        shop.place("o-1", 0)
        await shop.signals.wait("consumer.failed")
        shop.rows("update dead_letter_events set status = 'discarded', next_retry_at = null")
        shop.place("o-2", 1)
        await written(shop, 1)
        await shop.value_becomes("select position::int from consumer", 2)
        shop.rows("update dead_letter_events set status = 'retrying', next_retry_at = now() + interval '1 hour'")
        shop.place("o-1", 2)
        await shop.value_becomes("select count(*)::int from dead_letter_events", 2)
    assert letters(shop, "status") == [("retrying",), ("waiting",)]
    assert ledger.numbers() == [1]


async def test_events_that_a_relay_appended_on_another_server_are_not_taken(shop: Shop) -> None:
    """After a failover, the relay may still be on the old server while the worker is on the new one."""
    ledger, _ = declared(shop)
    async with engine_on(shop) as engine:
        shop.place("o-1", 0)
        await shop.signals.wait("consumer.idle", shop.signals.counts["consumer.idle"] + 1)
        news = engine.workers[0].news
        here, there = news._server_started, datetime(2020, 1, 1, tzinfo=UTC)
        assert here is not None
        kept = news._latest._range
        stale = Record(uuid4(), "order.placed", 1, "order", "o-1", here, "c", None, b"{}", here, 9, 2, {})
        news.receive([stale], there)
        assert news._latest._range == kept
        shop.place("o-1", 1)
        await written(shop, 2)
    assert ledger.numbers() == [0, 1]


async def test_an_event_of_another_relay_is_not_forgotten_behind_one_that_was_handed_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its notification arrives before the worker has begun with the event it was handed."""
    ledger, _ = declared(shop)
    hear = news.LogNews.hear
    placed: list[int] = []

    async def late(self: news.LogNews, reading: Any) -> Any:
        if self._latest.end_after(0) == 1 and not self.seconds_expected and not placed:
            placed.append(1)
            place_in_log(shop, ("o-1", 1))
            while self._position_heard != 2:  # noqa: ASYNC110 - the listener has no signal for it
                await asyncio.sleep(0)
        return await hear(self, reading)

    async with engine_on(shop):
        monkeypatch.setattr(news.LogNews, "hear", late)
        shop.place("o-1", 0)
        await written(shop, 2)
    assert ledger.numbers() == [0, 1]
