"""Operators see and change a divided consumer as a whole."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from aftercommit.cli import cli
from aftercommit.consumer.names import forget, known_consumers, rename, set_paused
from aftercommit.errors import ConsumerNameTaken
from aftercommit.event.envelope import Event
from aftercommit.operate import Selection
from aftercommit.operate.overview import ConsumerState, overview
from aftercommit.postgres.statements import Statements
from tests.postgres.test_consumer_lanes import AGGREGATES, LANES, SHORT, declare, lowest, place, two_workers, written
from tests.support.consuming import Ledger, inbox, letters, worker_on
from tests.support.repairing import desk
from tests.support.shop import OrderPlaced, Shop


@pytest.fixture
async def control(shop: Shop) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """An operator's connection."""
    connection = await shop.database.connect()
    yield connection
    await connection.close()


def seen(shop: Shop) -> ConsumerState:
    """The only consumer, as `status` shows it."""
    with shop.connect() as connection:
        (consumer,) = overview(connection, shop.outbox.shape).consumers
    return consumer


def set_back(shop: Shop, lane: int, position: int) -> None:
    """One lane has come less far than the others."""
    shop.rows("update consumer set position = %s where name = %s", (position, f"index#{lane}"))


async def all_handled(shop: Shop, **options: Any) -> Ledger:
    """A divided consumer that has handled an event of each aggregate."""
    ledger = Ledger(shop)
    consumer = declare(shop, ledger.write, **options)
    place(shop, range(1))
    async with worker_on(shop, consumer, lease_seconds=SHORT):
        await written(shop, AGGREGATES)
        at_end = "select count(*)::int from consumer where position = (select position from head)"
        await shop.value_becomes(at_end, LANES)
    return ledger


async def test_status_shows_the_lowest_checkpoint_and_who_has_which_lanes(shop: Shop) -> None:
    ledger = await all_handled(shop)
    set_back(shop, 2, 5)
    assert (seen(shop).name, seen(shop).position, seen(shop).lag, seen(shop).holder) == ("index", 5, 11, None)
    consumer = declare(shop, ledger.write)
    async with two_workers(shop, consumer):
        await shop.value_becomes("select min(position)::int from consumer where name like 'index#%'", AGGREGATES)
        listed = CliRunner().invoke(cli, ["consumers", "list", "--dsn", shop.dsn]).output
    assert seen(shop).lag == 0
    assert "(lanes 0 1 2 3)" in listed
    assert "index#" not in listed


async def test_a_pause_stops_all_lanes_and_a_resume_starts_them(
    shop: Shop, control: psycopg.AsyncConnection[Any]
) -> None:
    ledger = Ledger(shop)
    consumer = declare(shop, ledger.write)
    async with two_workers(shop, consumer) as (_, _, other):
        await set_paused(control, shop.outbox.shape, "index", True)
        await shop.signals.wait("consumer.paused", LANES // 2)
        await other.wait("consumer.paused", LANES // 2)
        place(shop, range(2))
        await shop.signals.wait("consumer.paused", LANES + LANES // 2)
        assert ledger.numbers() == []
        assert seen(shop).paused
        await set_paused(control, shop.outbox.shape, "index", False)
        await written(shop, 2 * AGGREGATES)


async def test_a_paused_consumer_that_is_divided_stays_paused(
    shop: Shop, control: psycopg.AsyncConnection[Any]
) -> None:
    ledger = await all_handled(shop)
    await set_paused(control, shop.outbox.shape, "index", True)
    async with worker_on(shop, declare(shop, ledger.write, 3), lease_seconds=SHORT, wait_for="consumer.paused"):
        place(shop, range(1, 2))
        await shop.signals.wait("consumer.paused", 6)
    assert len(ledger.numbers()) == AGGREGATES


async def test_a_seek_moves_all_lanes_and_fences_their_workers(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = declare(shop, ledger.write)
    place(shop, range(1))
    async with two_workers(shop, consumer):
        await written(shop, AGGREGATES)
        shop.rows("delete from processed_events")
        with pytest.raises(ConsumerNameTaken):
            await desk(shop).seek("index", "start")
        sought = await desk(shop).seek("index", "start", force=True)
        assert (sought.after, sought.events) == (0, AGGREGATES)
        await written(shop, 2 * AGGREGATES)
    assert shop.value("select count(*)::int from consumer where worker like 'divided%%'") == 1


async def test_a_rename_and_a_forget_take_all_lanes_along(shop: Shop, control: psycopg.AsyncConnection[Any]) -> None:
    ledger = await all_handled(shop)
    async with worker_on(shop, declare(shop, ledger.write)):
        with pytest.raises(ConsumerNameTaken, match=r"is running .*\(lanes 0 1 2 3\)"):
            await rename(control, shop.outbox.shape, "index", "search")
        with pytest.raises(ConsumerNameTaken):
            await forget(control, shop.outbox.shape, "index")
    await rename(control, shop.outbox.shape, "index", "search")
    (known,) = await known_consumers(control, shop.outbox.shape)
    assert (known.name, known.lanes, known.position) == ("search", LANES, AGGREGATES)
    assert inbox(shop, "search") == AGGREGATES
    await forget(control, shop.outbox.shape, "search")
    assert shop.rows("select name from consumer") == []
    assert inbox(shop, "search") == 0


async def test_retention_waits_for_the_slowest_lane(shop: Shop) -> None:
    await all_handled(shop)
    statements = Statements(shop.outbox.shape)
    pages = {"first": "(0,0)", "last": "(100000,0)", "before": "now"}

    def kept() -> tuple[Any, int]:
        with shop.connect() as connection:
            holders = connection.execute(statements["log_holders"], {"position": AGGREGATES}).fetchall()
            rows = connection.execute(statements["old_inbox"], pages).fetchall()
        return holders, sum(holder is not None for _, holder in rows)

    assert kept() == ([], 0)
    set_back(shop, 1, 6)
    assert kept() == ([("consumer", "index", 6)], AGGREGATES - 6)


async def test_metrics_tell_the_lag_of_the_lane_that_has_most_to_do(shop: Shop) -> None:
    ledger = Ledger(shop)
    gate = asyncio.Event()

    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if event.payload.order_id == "o-3":
            await gate.wait()
        await ledger.write(event, connection)

    consumer = declare(shop, handle)
    place(shop, range(1))
    async with worker_on(shop, consumer, lease_seconds=SHORT):
        await shop.value_becomes("select count(*) > 8 from public.ledger", True)
        await shop.signals.next("consumer.heartbeat")
        meter = shop.outbox.meter
        assert meter.consumer_position["index"] == meter.consumer_events["index"] == lowest(shop) < AGGREGATES
        gate.set()
        await written(shop, AGGREGATES)


async def test_a_replay_is_handled_by_the_workers_of_the_lanes(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = declare(shop, ledger.write, ordering="strict")
    place(shop, range(2))
    async with two_workers(shop, consumer):
        await written(shop, 2 * AGGREGATES)
        operation = await desk(shop).start(Selection(types=("order.placed",)), to="index", again=True)
        done = await asyncio.wait_for(desk(shop).drive(operation.id), 60)
        assert (done.done, done.failed) == (2 * AGGREGATES, 0)
    for each in range(AGGREGATES):
        assert ledger.numbers(f"o-{each}") == [0, 1, 0, 1]


async def test_a_letter_that_is_discarded_before_its_lane_comes_by_is_not_handled(shop: Shop) -> None:
    """The lane has come less far than the letter's event, as after a change of lanes."""
    is_bad = True
    ledger = Ledger(shop)

    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if is_bad and event.payload.order_id == "o-3":
            raise RuntimeError("never")
        await ledger.write(event, connection)

    consumer = declare(shop, handle, retry_count=0)
    place(shop, range(1))
    async with worker_on(shop, consumer, lease_seconds=SHORT):
        await written(shop, AGGREGATES - 1)
        await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'parked'", 1)
    shop.rows("update consumer set position = 0 where name like 'index#%%'")
    await desk(shop).discard(Selection(consumer="index"), reason="not needed")
    is_bad = False
    async with worker_on(shop, consumer, lease_seconds=SHORT):
        at_end = "select count(*)::int from consumer where position = (select position from head)"
        await shop.value_becomes(at_end, LANES)
    assert len(ledger.numbers()) == AGGREGATES - 1
    assert letters(shop, "status") == [("discarded",)]
