"""One worker for several consumers: one look and one renewal for all, shared connections, and nobody waits."""

import asyncio
from typing import Any

import pytest

from aftercommit.consumer import LogWorker, WorkerSettings, log_worker
from aftercommit.consumer.names import set_paused
from aftercommit.errors import DeclarationError
from aftercommit.event.envelope import Event
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.listen import Listener
from aftercommit.testing.signals import Signals
from tests.support.consuming import Ledger, checkpoint, kill, numbered, place_in_log, row_of
from tests.support.shop import OrderPlaced, Shop

WRITE = "insert into public.ledger (consumer, event_id, order_id, number, note) values (%s, %s, %s, %s, %s)"
MANY = 30
SESSIONS = "select count(*)::int from pg_stat_activity where datname = current_database() and application_name = %s"


def declare_many(shop: Shop, count: int = MANY, **options: Any) -> list[Consumer]:
    """Consumers that write a row for each event."""

    def declare(name: str) -> Consumer:
        consumer = shop.outbox.consumer(name, start="earliest", **options)

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: Any) -> None:
            await connection.execute(WRITE, row_of(event, name))

        return consumer

    return [declare(f"c-{number}") for number in range(count)]


def worker_of(shop: Shop, consumers: list[Consumer], **options: Any) -> LogWorker:
    """A worker that follows the log for all of them."""
    shop.database._application_name = "sharing"
    return LogWorker(shop.outbox, consumers, shop.database, probe=shop.signals, **options)


async def all_written(shop: Shop, count: int) -> None:
    """Until so many rows are written."""
    await shop.value_becomes("select count(*)::int from public.ledger", count)


async def test_many_consumers_share_a_few_connections(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumers = declare_many(shop)
    place_in_log(shop, *numbered(5))
    async with worker_of(shop, consumers, settings=WorkerSettings(max_connections=4)):
        await all_written(shop, 5 * MANY)
        assert shop.value(SESSIONS, ("sharing",)) <= 6
        place_in_log(shop, ("o-1", 5))
        await all_written(shop, 6 * MANY)
    for consumer in consumers:
        assert ledger.numbers(consumer=consumer.name) == list(range(6))
        assert checkpoint(shop, consumer.name) == 6


async def test_at_rest_one_statement_serves_all_consumers(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a listener that works, a third of the lease passes between two looks."""
    Ledger(shop)
    listener = Listener(shop.database, shop.signals)
    worker = worker_of(shop, declare_many(shop), listener=listener, settings=WorkerSettings(lease_seconds=0.6))
    asked: list[int] = []
    ask = worker._leases._ask

    async def counted(connection: Any, statement: str, names: Any) -> Any:
        asked.append(len(names))
        return await ask(connection, statement, names)

    monkeypatch.setattr(worker._leases, "_ask", counted)
    async with listener, worker:
        await shop.signals.wait("listener.working")
        await shop.signals.wait("consumer.active", MANY)
        before = len(asked)
        idle = shop.signals.counts["consumer.idle"]
        await shop.signals.wait("consumer.idle", idle + 3 * MANY)
        looks = asked[before:]
    assert set(looks) == {MANY}
    assert len(looks) <= 5


async def test_a_consumer_that_hangs_delays_no_other(shop: Shop) -> None:
    Ledger(shop)
    hanging = shop.outbox.consumer("hanging", start="earliest", timeout=600)
    reached, go_on = asyncio.Event(), asyncio.Event()

    @hanging.on(OrderPlaced)
    async def hang(event: Event[OrderPlaced], connection: Any) -> None:
        reached.set()
        await go_on.wait()

    consumers = declare_many(shop, 5)
    place_in_log(shop, ("o-1", 0))
    async with worker_of(shop, [hanging, *consumers]):
        await asyncio.wait_for(reached.wait(), 60)
        await all_written(shop, 5)
        place_in_log(shop, *[("o-1", number) for number in range(1, 4)])
        await all_written(shop, 20)
        assert checkpoint(shop, "hanging") == 0
        go_on.set()


async def test_one_consumer_is_paused_or_taken_over_and_the_others_go_on(shop: Shop) -> None:
    """The lease of one is stolen by another worker, as after a long pause of this process."""
    Ledger(shop)
    consumers = declare_many(shop, 3)
    place_in_log(shop, ("o-1", 0))
    async with worker_of(shop, consumers, settings=WorkerSettings(lease_seconds=0.6)):
        await all_written(shop, 3)
        connection = await shop.database.connect()
        async with connection:
            await set_paused(connection, shop.outbox.shape, "c-0", True)
            await shop.signals.next("consumer.paused")
            shop.rows(
                "update consumer set worker = 'other', token = gen_random_uuid(), lease_seconds = 60, "
                "leased_until = now() + interval '60 seconds' where name = 'c-1'"
            )
            await shop.signals.wait("consumer.fenced")
            place_in_log(shop, ("o-1", 1))
            await all_written(shop, 4)
            assert [checkpoint(shop, f"c-{number}") for number in range(3)] == [1, 1, 2]
            await set_paused(connection, shop.outbox.shape, "c-0", False)
            shop.rows("update consumer set leased_until = now() where name = 'c-1'")
            await all_written(shop, 6)


async def test_a_standby_takes_over_all_consumers_of_a_worker_that_died(shop: Shop) -> None:
    ledger, other = Ledger(shop), Signals()
    consumers = declare_many(shop, 5)
    place_in_log(shop, *numbered(3))
    settings = WorkerSettings(lease_seconds=0.6)
    dying = worker_of(shop, consumers, settings=settings)
    async with dying, LogWorker(shop.outbox, consumers, shop.database, settings=settings, probe=other):
        await all_written(shop, 15)
        await kill(dying)
        place_in_log(shop, ("o-1", 3))
        await all_written(shop, 20)
    for consumer in consumers:
        assert sorted(ledger.numbers(consumer=consumer.name)) == [0, 1, 2, 3]


async def test_news_that_come_when_a_consumer_has_just_ended_are_not_forgotten(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told of a new event between its last look and the end of its task."""
    monkeypatch.setattr(log_worker, "POLL_WITHOUT_LISTENER", 3600.0)
    monkeypatch.setattr(log_worker, "POLL", 3600.0)
    ledger = Ledger(shop)
    (consumer,) = declare_many(shop, 1)
    place_in_log(shop, ("o-1", 0))
    worker = worker_of(shop, [consumer], settings=WorkerSettings(lease_seconds=3600.0))
    follower = worker._followers[consumer.name]
    work, ending = follower.work, asyncio.Event()

    async def slow_to_end(connection: Any) -> None:
        await work(connection)
        if not ending.is_set():
            ending.set()
            place_in_log(shop, ("o-1", 1))
            told = follower._told
            told.clear()
            worker.news.rung.set()
            await told.wait()

    monkeypatch.setattr(follower, "work", slow_to_end)
    async with worker:
        await all_written(shop, 2)
    assert ledger.numbers() == [0, 1]


def test_a_worker_needs_a_consumer(shop: Shop) -> None:
    with pytest.raises(DeclarationError, match="a worker needs at least one consumer"):
        LogWorker(shop.outbox, [], shop.database)
    with pytest.raises(DeclarationError, match="need max_connections >= 1"):
        WorkerSettings(max_connections=0)
