"""One worker at a time: lease, standby, hand-over, take-over, zombies, pauses, and events that kill workers."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer import LogWorker
from aftercommit.consumer.names import set_paused
from aftercommit.event.envelope import Event
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.statements import Statements
from aftercommit.testing.signals import Signals
from tests.support.consuming import (
    Ledger,
    checkpoint,
    handle_all,
    inbox,
    kill,
    letters,
    numbered,
    place_in_log,
    settled,
    stopped_heart,
    terminate,
    worker_on,
)
from tests.support.forked import Forked
from tests.support.shop import OrderPlaced, Shop

ROOT = Path(__file__).resolve().parents[2]
SHORT = 1.0
LONG = 600.0
BAD = 3


def writing(shop: Shop, ledger: Ledger, **options: Any) -> Consumer:
    """A consumer that writes every order down."""
    consumer = shop.outbox.consumer("index", **options)
    consumer.on(OrderPlaced)(ledger.write)
    return consumer


async def test_of_two_workers_one_works_and_the_other_stands_by(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = writing(shop, ledger)
    other = Signals()
    async with (
        worker_on(shop, consumer, lease_seconds=LONG) as first,
        worker_on(shop, consumer, lease_seconds=LONG, signals=other, wait_for="consumer.standing_by") as second,
    ):
        place_in_log(shop, *numbered(20))
        await settled(shop, "index")
        assert (first.active, second.active) == (True, False)
        assert other.counts["consumer.active"] == 0
    assert ledger.numbers() == list(range(20))


@pytest.mark.thorough
async def test_a_worker_that_stands_by_says_once_who_works_and_again_when_that_is_another(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits for effects in this process learns where they happen."""
    caplog.set_level(logging.INFO, "aftercommit.consumer")
    consumer = writing(shop, Ledger(shop))
    async with worker_on(shop, consumer):
        pass
    held = (
        "update consumer set worker = %s, token = gen_random_uuid(), leased_until = now() + interval '1 hour', "
        "lease_seconds = 3600"
    )
    shop.rows(held, ["here:6"])
    async with worker_on(shop, consumer, lease_seconds=SHORT, wait_for="consumer.standing_by"):
        await shop.signals.wait("consumer.standing_by", 3)
        shop.rows(held, ["elsewhere:7"])
        await shop.signals.wait("consumer.standing_by", shop.signals.counts["consumer.standing_by"] + 3)
    said = [record.__dict__ for record in caplog.records if record.getMessage() == "consumer_standing_by"]
    assert [(each["consumer"], each["holder"]) for each in said] == [("index", "here:6"), ("index", "elsewhere:7")]


async def test_a_stop_hands_over_at_once(shop: Shop) -> None:
    """The lease would last for minutes; the standby is woken instead."""
    ledger = Ledger(shop)
    consumer = writing(shop, ledger)
    other = Signals()
    listener = Listener(shop.database, other)
    standby = worker_on(
        shop, consumer, lease_seconds=LONG, signals=other, listener=listener, wait_for="consumer.standing_by"
    )
    async with worker_on(shop, consumer, lease_seconds=LONG) as first, standby:
        await other.wait("listener.working")
        place_in_log(shop, *numbered(3))
        await shop.signals.wait_total("consumer.handled", 3)
        await first.stop()
        await other.wait("consumer.active")
        assert other.details["consumer.active"][0]["died"] is False
        place_in_log(shop, ("o-1", 3))
        await other.wait_total("consumer.handled", 1)
    assert ledger.numbers() == [0, 1, 2, 3]


@pytest.mark.thorough
async def test_a_standby_takes_over_from_a_killed_worker_after_its_lease(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = writing(shop, ledger)
    other = Signals()
    standby = worker_on(shop, consumer, lease_seconds=SHORT, signals=other, wait_for="consumer.standing_by")
    async with worker_on(shop, consumer, lease_seconds=LONG) as first, standby:
        place_in_log(shop, *numbered(3))
        await shop.signals.wait_total("consumer.handled", 3)
        await kill(first)
        await other.wait("consumer.standing_by", other.counts["consumer.standing_by"] + 2)
        assert other.counts["consumer.active"] == 0
        # What is left of its lease; as long as it lived, it had one that no standing still could end.
        shop.rows("update consumer set leased_until = clock_timestamp() + interval '0.2 seconds'")
        place_in_log(shop, ("o-1", 3))
        await other.wait_total("consumer.handled", 1)
        assert other.details["consumer.active"][0]["died"] is True
    assert ledger.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("concurrency", "with_inbox"), [(1, True), (1, False), (3, True)], ids=["inbox", "checkpoint", "side by side"]
)
async def test_a_zombie_that_wakes_after_its_lease_has_no_effect(
    shop: Shop, concurrency: int, with_inbox: bool
) -> None:
    """It has read its page and stands still; another takes over and handles everything; then it wakes."""
    ledger = Ledger(shop)
    consumer = writing(shop, ledger, concurrency=concurrency, inbox=with_inbox)
    place_in_log(shop, *numbered(10), *numbered(10, "o-2"))
    hold = shop.signals.hold("consumer.read")
    other = Signals()
    async with worker_on(shop, consumer, lease_seconds=SHORT) as zombie:
        await hold.wait()
        async with worker_on(shop, consumer, lease_seconds=LONG, signals=other, wait_for=None):
            async with stopped_heart(shop, zombie):
                await settled(shop, "index", other)
                hold.release()
            await shop.signals.wait("consumer.fenced")
            await shop.signals.wait("consumer.standing_by")
            assert not zombie.active
    assert ledger.numbers("o-1") == ledger.numbers("o-2") == list(range(10))
    assert other.details["consumer.active"][0]["died"] is True


async def test_a_zombie_that_wakes_among_dead_letters_has_no_effect(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an inbox the fence alone keeps it from a letter that its successor has handled."""
    # However long it was away, it goes on with the letters that it has read.
    monkeypatch.setattr("aftercommit.consumer.letter_retries.LETTERS_SECONDS", 600.0)
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", inbox=False, retry_count=1, backoff=Constant(0.0))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if event.attempt == 1:
            raise ValueError("not at first")
        await ledger.write(event, connection)

    place_in_log(shop, *numbered(3))
    hold = shop.signals.hold("consumer.retrying")
    other = Signals()
    async with worker_on(shop, consumer, lease_seconds=SHORT) as zombie:
        await hold.wait()
        async with worker_on(shop, consumer, lease_seconds=LONG, signals=other, wait_for=None):
            async with stopped_heart(shop, zombie):
                await settled(shop, "index", other)
                hold.release()
            await shop.signals.wait("consumer.fenced")
    assert ledger.numbers() == [0, 1, 2]
    assert letters(shop) == [("resolved", 1)] * 3


@pytest.mark.thorough
async def test_a_slow_slice_leaves_a_fresh_lease_behind(shop: Shop) -> None:
    """Renewed when it began, the lease would be over at its end, and a standby could step in before the next slice."""
    fresh: list[bool] = []
    other = Signals()
    consumer = shop.outbox.consumer("index")
    # It looks after each third of its own lease, which is short so that the other one's can be long.
    lease, hasty = 3.0, 0.3
    looks = int(3 * lease / hasty) + 5

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        query = "select leased_until > clock_timestamp() from consumer"
        fresh.append(await asyncio.to_thread(shop.value, query))
        if event.payload.number == 0:
            await other.wait("consumer.standing_by", other.counts["consumer.standing_by"] + looks)
            fresh.append(await asyncio.to_thread(shop.value, query))

    place_in_log(shop, *numbered(2))
    standby = worker_on(shop, consumer, lease_seconds=hasty, signals=other, wait_for="consumer.standing_by")
    hold = shop.signals.hold("consumer.read")
    async with worker_on(shop, consumer, lease_seconds=lease), standby:
        hold.release()
        await settled(shop, "index")
    assert fresh == [True, False, True]
    assert other.counts["consumer.active"] == 0


@pytest.mark.thorough
async def test_a_worker_that_vanished_inside_a_transaction_is_given_up_by_the_server(shop: Shop) -> None:
    """Its machine lost power: the connection stays open and the row locked, until the server's patience ends."""
    ledger = Ledger(shop)
    consumer = writing(shop, ledger, timeout=2.0)
    ids = place_in_log(shop, ("o-1", 1))
    vanished = LogWorker(shop.outbox, consumer, shop.database)
    follower = vanished._followers["index"]
    async with worker_on(shop, consumer, lease_seconds=SHORT):
        await settled(shop, "index")
    with shop.connect() as connection:
        parameters = {
            **follower.parts.lease.parameters,
            "ids": ids,
            "position": 1,
            "patience": follower.parts.runner.idle_timeout_ms(0),
        }
        assert parameters["patience"] == "3000"
        shop.rows(
            "update consumer set position = 0, worker = 'gone', token = %s, leased_until = now()", (vanished.token,)
        )
        shop.rows("delete from processed_events; delete from public.ledger")
        connection.execute(Statements(shop.outbox.shape)["begin_slice"], parameters)
        signals = Signals()
        async with worker_on(shop, consumer, lease_seconds=SHORT, signals=signals, wait_for="consumer.standing_by"):
            await settled(shop, "index", signals)
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            connection.execute("select 1")
    assert ledger.numbers() == [1]


@pytest.mark.thorough
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_handler_slower_than_the_lease_does_not_lose_it(shop: Shop, concurrency: int) -> None:
    """The standby looks for a chance all the time, during the slow handler and right after it."""
    ledger = Ledger(shop)
    other = Signals()
    consumer = shop.outbox.consumer("index", concurrency=concurrency)
    lease, hasty, slow = 3.0, 0.15, [0]
    looks = int(3 * lease / hasty) + 1

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if event.payload.number in (1, 2) and event.payload.order_id == "o-1":
            slow.append(other.counts["consumer.standing_by"])
            await other.wait("consumer.standing_by", slow[-1] + looks)
        await ledger.write(event, connection)

    place_in_log(shop, *numbered(6), *numbered(6, "o-2"))
    # It looks after each third of its own lease, which is short so that the other one's can be long.
    standby = worker_on(shop, consumer, lease_seconds=hasty, signals=other, wait_for="consumer.standing_by")
    async with worker_on(shop, consumer, lease_seconds=lease), standby:
        await settled(shop, "index")
    assert other.counts["consumer.active"] == 0
    assert shop.signals.counts["consumer.fenced"] == 0
    assert ledger.numbers("o-1") == ledger.numbers("o-2") == list(range(6))


async def test_a_lost_control_connection_costs_nothing_but_a_new_one(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = writing(shop, ledger)
    async with worker_on(shop, consumer):
        place_in_log(shop, *numbered(3))
        await settled(shop, "index")
        shop.rows(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
            "where datname = current_database() and application_name = 'aftercommit'"
        )
        await shop.signals.wait("database.lost")
        place_in_log(shop, ("o-1", 3))
        await settled(shop, "index")
        assert shop.signals.details["consumer.active"][-1]["died"] is False
    assert ledger.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["async", "sync", "side by side"])
async def test_a_connection_lost_during_a_handler_spends_no_attempt(shop: Shop, kind: str) -> None:
    ledger = Ledger(shop)
    attempts: list[int] = []
    pids: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    consumer = shop.outbox.consumer("index", retry_count=0, concurrency=3 if kind == "side by side" else 1)
    if kind == "sync":

        @consumer.on(OrderPlaced)
        def handle_sync(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
            ledger.write_sync(event, connection)
            if event.payload.number == BAD:
                attempts.append(event.attempt)
                if len(attempts) == 1:
                    loop.call_soon_threadsafe(pids.put_nowait, connection.info.backend_pid)
                    connection.execute("select pg_sleep(60)")
    else:

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
            await ledger.write(event, connection)
            if event.payload.number == BAD:
                attempts.append(event.attempt)
                if len(attempts) == 1:
                    pids.put_nowait(connection.info.backend_pid)
                    await connection.execute("select pg_sleep(60)")

    place_in_log(shop, *numbered(8))
    async with worker_on(shop, consumer):
        await asyncio.to_thread(terminate, shop, await asyncio.wait_for(pids.get(), 60))
        await settled(shop, "index")
    assert attempts == [1, 1]
    assert ledger.numbers() == list(range(8))
    assert letters(shop) == []


@pytest.mark.thorough
@pytest.mark.parametrize("with_inbox", [True, False])
async def test_effects_are_had_once_across_a_crash_in_the_middle(shop: Shop, with_inbox: bool) -> None:
    """Without an inbox the checkpoint alone says what was handled; it commits with the effects."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", inbox=with_inbox)
    arrived, go_on = asyncio.Event(), asyncio.Event()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)
        if event.payload.number == 40:
            arrived.set()
            await go_on.wait()

    place_in_log(shop, *numbered(60))
    async with worker_on(shop, consumer, lease_seconds=SHORT) as dying:
        await asyncio.wait_for(arrived.wait(), 60)
        before = checkpoint(shop, "index")
        assert 0 < before <= 40
        assert ledger.numbers() == list(range(before))
        await kill(dying)
    go_on.set()
    await handle_all(shop, consumer, lease_seconds=SHORT, wait_for=None)
    assert ledger.numbers() == list(range(60))
    assert inbox(shop, "index") == (60 if with_inbox else 0)


@pytest.mark.thorough
async def test_an_event_that_kills_every_worker_is_parked_after_its_counted_starts(shop: Shop) -> None:
    """The first death is nobody's in particular: a slice has many events. Then each start is counted beforehand."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=2)
    deaths = 0
    dead = asyncio.Event()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        nonlocal deaths
        await ledger.write(event, connection)
        if event.payload.number == BAD:
            deaths += 1
            dead.set()
            await asyncio.Event().wait()

    place_in_log(shop, *numbered(8))
    for _ in range(4):
        async with worker_on(shop, consumer, lease_seconds=0.5, wait_for=None) as worker:
            await asyncio.wait_for(dead.wait(), 60)
            dead.clear()
            await kill(worker)
    await handle_all(shop, consumer, lease_seconds=0.5, wait_for=None)
    assert deaths == 1 + 3
    assert ledger.numbers() == [0, 1, 2, 4, 5, 6, 7]
    ((number, status, error_class, error),) = letters(shop, "(payload->>'number')::int, status, error_class, error")
    assert (number, status, error_class) == (BAD, "parked", "HandlerNeverFinished")
    assert error.startswith("handling began 3 times and the process died each time")


async def run_poisonous(shop: Shop) -> int:
    """A process of its own; its exit status is 9 when the event killed it."""
    process = Forked("tests.support.poisonous", [shop.dsn], ROOT, os.environ, errors=2)
    try:
        return await asyncio.to_thread(process.wait, 100)
    finally:
        process.close()


@pytest.mark.thorough
async def test_an_event_that_kills_the_process_is_parked_and_those_around_it_are_handled_once(shop: Shop) -> None:
    """A real process dies in the handler, is started again until it lives; so does a retry of the parked letter."""
    ledger = Ledger(shop)
    place_in_log(shop, *numbered(6))
    assert [await run_poisonous(shop) for _ in range(3)] == [9, 9, 0]
    assert ledger.numbers() == [0, 1, 2, 4, 5]
    parked = [(BAD, "parked", "HandlerNeverFinished")]
    assert letters(shop, "(payload->>'number')::int, status, error_class") == parked
    shop.rows("update dead_letter_events set status = 'retrying', next_retry_at = now()")
    assert [await run_poisonous(shop) for _ in range(3)] == [9, 9, 0]
    assert letters(shop, "(payload->>'number')::int, status, error_class") == parked
    assert ledger.numbers() == [0, 1, 2, 4, 5]


async def test_a_paused_consumer_stops_between_events_and_goes_on_where_it_was(shop: Shop) -> None:
    """Noticed in the middle of a page; resuming wakes the worker."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index")
    arrived, go_on = asyncio.Event(), asyncio.Event()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)
        if event.payload.number == 20:
            arrived.set()
            await go_on.wait()

    place_in_log(shop, *numbered(200))
    control = await shop.database.connect()
    try:
        async with worker_on(shop, consumer, lease_seconds=0.2, listener=Listener(shop.database)):
            await asyncio.wait_for(arrived.wait(), 60)
            pausing = asyncio.create_task(set_paused(control, shop.outbox.shape, "index", True))
            waiting = "select count(*)::int from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'paused'"
            await shop.value_becomes(waiting + " and datname = current_database()", 1)
            go_on.set()
            await pausing
            await shop.signals.wait("consumer.paused", 2)
            stopped_at = checkpoint(shop, "index")
            assert ledger.numbers() == list(range(stopped_at))
            place_in_log(shop, ("o-1", 200))
            await shop.signals.next("consumer.paused")
            assert checkpoint(shop, "index") == stopped_at
            await set_paused(control, shop.outbox.shape, "index", False)
            await settled(shop, "index")
    finally:
        await control.close()
    assert ledger.numbers() == list(range(201))


async def test_a_pause_is_noticed_while_slow_handlers_work_through_a_page(shop: Shop) -> None:
    """Each event takes as long as the heartbeat needs; the page of ten is left after the pause."""
    consumer = shop.outbox.consumer("index", retry_count=0, backoff=Constant(0.0), concurrency=2)
    handled: list[int] = []
    paused = asyncio.Event()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        handled.append(event.payload.number)
        if event.payload.number == 1:
            await asyncio.to_thread(shop.rows, "update consumer set paused = true")
            paused.set()
        if paused.is_set():
            await shop.signals.next("consumer.heartbeat")
            await shop.signals.next("consumer.heartbeat")

    place_in_log(shop, *numbered(10))
    async with worker_on(shop, consumer, lease_seconds=0.3):
        await shop.signals.wait("consumer.paused")
        assert len(handled) < 10
        assert checkpoint(shop, "index") == len(handled)
        paused.clear()
        shop.rows("update consumer set paused = false")
        await settled(shop, "index")
    assert handled == list(range(10))
