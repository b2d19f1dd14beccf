"""Divided consumers: several workers share the lanes of one consumer, join, leave, die, and change their number."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer import LogWorker
from aftercommit.consumer.lease import Leases
from aftercommit.errors import DeclarationError
from aftercommit.event.envelope import Event
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.listen import Listener
from aftercommit.testing.signals import Signals
from tests.support.consuming import Ledger, inbox, kill, letters, place_in_log, stopped_heart, worker_on
from tests.support.shop import OrderPlaced, Shop, shop_outbox

LANES = 4
AGGREGATES = 16
SHORT = 1.5
LONG = 600.0
# Every combination that a divided consumer can have.
MANNERS = [
    pytest.param({"ordering": "relaxed"}, id="relaxed"),
    pytest.param({"ordering": "strict"}, id="strict"),
    pytest.param({"ordering": "relaxed", "concurrency": 3}, id="relaxed side by side"),
    pytest.param({"ordering": "strict", "concurrency": 3}, id="strict side by side"),
    pytest.param({"inbox": False}, id="checkpoint"),
]


def declare(shop: Shop, handler: Any, lanes: int = LANES, **options: Any) -> Consumer:
    """A consumer of this shop in a declaration of its own, as another process would have it."""
    shop.outbox = shop_outbox()
    options = {"start": "earliest", "backoff": Constant(0.05), **options}
    consumer = shop.outbox.consumer("index", lanes=lanes, **options)
    consumer.on(OrderPlaced)(handler)
    return consumer


def place(shop: Shop, numbers: range) -> None:
    """An event of each number for each aggregate."""
    place_in_log(shop, *((f"o-{each}", number) for number in numbers for each in range(AGGREGATES)))


async def one_handler(event: Event[OrderPlaced]) -> None:
    """A handler that is not called."""


async def written(shop: Shop, events: int) -> None:
    await shop.value_becomes("select count(*)::int from public.ledger", events)


def held_by(shop: Shop, worker: LogWorker) -> list[str]:
    """The lanes that a worker has."""
    rows = shop.rows("select name from consumer where token = %s order by name", (worker.token,))
    return [name for (name,) in rows]


async def shared(shop: Shop, *workers: LogWorker) -> None:
    """Until the workers have the same number of lanes each."""
    tokens = ", ".join(f"'{worker.token}'" for worker in workers)
    even = (
        f"select count(*) = {len(workers)} and min(held) = {LANES // len(workers)} from "
        f"(select count(*) as held from consumer where token in ({tokens}) group by token) each"
    )
    await shop.value_becomes(even, True)


def lowest(shop: Shop) -> int:
    """The lowest checkpoint of the lanes."""
    return int(shop.value("select min(position) from consumer where name like 'index#%%'"))


@asynccontextmanager
async def two_workers(
    shop: Shop, consumer: Consumer, lease_seconds: float = SHORT
) -> AsyncIterator[tuple[LogWorker, LogWorker, Signals]]:
    """Two workers that share the lanes. The second one has signals of its own."""
    other = Signals()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker_on(shop, consumer, lease_seconds=lease_seconds))
        second = await stack.enter_async_context(
            worker_on(shop, consumer, lease_seconds=lease_seconds, signals=other, wait_for=None)
        )
        await shared(shop, first, second)
        yield first, second, other


@pytest.mark.parametrize("options", MANNERS)
async def test_two_workers_share_the_lanes_and_every_event_is_handled_once_and_in_order(
    shop: Shop, options: dict[str, Any]
) -> None:
    ledger = Ledger(shop)
    consumer = declare(shop, ledger.write, **options)
    place(shop, range(5))
    async with two_workers(shop, consumer) as (first, second, _):
        place(shop, range(5, 10))
        await written(shop, 10 * AGGREGATES)
        assert len(held_by(shop, first)) == len(held_by(shop, second)) == LANES // 2
        assert first.active
        assert second.active
    for each in range(AGGREGATES):
        assert ledger.numbers(f"o-{each}") == list(range(10))
    assert lowest(shop) == 10 * AGGREGATES
    assert shop.rows("select * from consumer_worker") == []


async def test_a_stop_gives_all_lanes_to_the_others_at_once(shop: Shop) -> None:
    """The leases would last for minutes; the others are woken instead."""
    ledger = Ledger(shop)
    consumer = declare(shop, ledger.write)
    other = Signals()
    listener = Listener(shop.database, other)
    joining = worker_on(shop, consumer, lease_seconds=LONG, signals=other, listener=listener, wait_for=None)
    mine = Listener(shop.database, shop.signals)
    async with worker_on(shop, consumer, lease_seconds=LONG, listener=mine) as first, joining as second:
        # Also the join is told: the first one would not look again for minutes.
        await shared(shop, first, second)
        await first.stop()
        await shared(shop, second)
        place(shop, range(1))
        await written(shop, AGGREGATES)


@pytest.mark.parametrize("options", MANNERS)
async def test_the_lanes_of_a_killed_worker_are_taken_over_after_its_lease(shop: Shop, options: dict[str, Any]) -> None:
    ledger = Ledger(shop)
    consumer = declare(shop, ledger.write, **options)
    async with two_workers(shop, consumer) as (first, second, other):
        place(shop, range(3))
        await written(shop, 3 * AGGREGATES)
        await kill(first)
        place(shop, range(3, 6))
        await written(shop, 6 * AGGREGATES)
        assert len(held_by(shop, second)) == LANES
        assert any(detail["died"] for detail in other.details["consumer.active"])
        assert shop.value("select count(*)::int from consumer_worker") == 1
    for each in range(AGGREGATES):
        assert ledger.numbers(f"o-{each}") == list(range(6))


@pytest.mark.parametrize("options", MANNERS)
async def test_a_zombie_writes_nothing_to_a_lane_that_was_taken_over(shop: Shop, options: dict[str, Any]) -> None:
    """One of its lanes has read a page and stands still; another worker handles it; then the lane wakes."""
    ledger = Ledger(shop)
    consumer = declare(shop, ledger.write, **options)
    other = Signals()
    async with worker_on(shop, consumer, lease_seconds=SHORT) as zombie:
        await shop.signals.wait("consumer.active", LANES)
        hold = shop.signals.hold("consumer.read")
        place(shop, range(3))
        await hold.wait()
        async with (
            stopped_heart(shop, zombie),
            worker_on(shop, consumer, lease_seconds=SHORT, signals=other, wait_for=None) as heir,
        ):
            await written(shop, 3 * AGGREGATES)
            assert len(held_by(shop, heir)) >= 1
            hold.release()
        await shop.signals.wait("consumer.fenced")
    for each in range(AGGREGATES):
        assert ledger.numbers(f"o-{each}") == list(range(3))


@pytest.mark.parametrize("options", MANNERS)
async def test_a_lane_is_handed_over_in_the_middle_of_a_page(shop: Shop, options: dict[str, Any]) -> None:
    """All lanes are at work when the second worker joins. It goes on where the first one stopped."""
    ledger = Ledger(shop)
    gate = asyncio.Event()
    begun: list[str] = []

    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        begun.append(event.payload.order_id)
        if event.payload.number == 2:
            await gate.wait()
        await ledger.write(event, connection)

    consumer = declare(shop, handle, **options)
    place(shop, range(40))
    other = Signals()
    joining = worker_on(shop, consumer, lease_seconds=SHORT, signals=other, wait_for="consumer.standing_by")
    async with worker_on(shop, consumer, lease_seconds=SHORT) as first, joining as second:
        await shop.value_becomes("select count(*)::int from consumer_worker", 2)
        await shop.signals.until(lambda: _leaving(first) == LANES // 2, "the first worker did not give lanes away")
        assert held_by(shop, second) == []
        gate.set()
        await shared(shop, first, second)
        await written(shop, 40 * AGGREGATES)
        assert other.totals["consumer.handled"] > 0
    for each in range(AGGREGATES):
        assert ledger.numbers(f"o-{each}") == list(range(40))
    if options.get("inbox", True):
        assert inbox(shop, "index") == 40 * AGGREGATES


def _leaving(worker: LogWorker) -> int:
    return sum(follower.leaving for follower in worker._followers.values())


@pytest.mark.parametrize("ordering", ["relaxed", "strict"])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_letters_are_retried_by_the_worker_that_took_over_their_lane(
    shop: Shop, ordering: str, concurrency: int
) -> None:
    """With strict order, what waits behind them goes on in order."""
    ledger = Ledger(shop)
    is_bad = True

    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if is_bad and event.payload.number == 1:
            raise RuntimeError("not now")
        await ledger.write(event, connection)

    manner: dict[str, Any] = {"ordering": ordering, "concurrency": concurrency, "retry_count": 1000}
    consumer = declare(shop, handle, **manner)
    async with two_workers(shop, consumer) as (first, _, _):
        place(shop, range(4))
        retrying = "select count(*)::int from dead_letter_events where attempts > 1 and payload->>'number' = '1'"
        await shop.value_becomes(retrying, AGGREGATES)
        await kill(first)
        is_bad = False
        await written(shop, 4 * AGGREGATES)
    for each in range(AGGREGATES):
        numbers = ledger.numbers(f"o-{each}")
        assert numbers == [0, 1, 2, 3] if ordering == "strict" else sorted(numbers) == [0, 1, 2, 3]
    assert {status for (status,) in letters(shop, "status")} == {"resolved"}


@pytest.mark.parametrize("ordering", ["relaxed", "strict"])
async def test_the_letters_of_a_lane_are_those_of_its_aggregates(shop: Shop, ordering: str) -> None:
    """A worker of another lane must not try them: it could overtake events that are being handled."""

    async def fail(event: Event[OrderPlaced], connection: Any) -> None:
        raise RuntimeError("not now")

    consumer = declare(shop, fail, ordering=ordering, backoff=Constant(600))
    place(shop, range(1))
    async with worker_on(shop, consumer, lease_seconds=SHORT):
        await shop.value_becomes("select count(*)::int from dead_letter_events", AGGREGATES)
    shop.rows("update dead_letter_events set next_retry_at = now() - interval '1 hour'")
    worker = LogWorker(shop.outbox, consumer, shop.database)
    async with await shop.database.connect() as connection:
        statuses = await worker._leases.look(connection, list(worker._followers))
        for lane, follower in enumerate(worker._followers.values()):
            due = await follower.parts.letters.due(connection, 100)
            of_lane = shop.rows("select id from log where lane %% %s = %s order by id", (LANES, lane))
            assert sorted(record.event_id for record in due) == [event_id for (event_id,) in of_lane] != []
            assert statuses[f"index#{lane}"].any_due
        shop.rows("delete from dead_letter_events where event_id in (select id from log where mod(lane, 4) <> 1)")
        statuses = await worker._leases.look(connection, list(worker._followers))
    seen = [(status.any_due, status.any_open, status.due_in is not None) for _, status in sorted(statuses.items())]
    assert seen == [(lane == 1,) * 3 for lane in range(LANES)]


async def test_strict_order_holds_across_a_hand_over_while_an_event_fails(shop: Shop) -> None:
    """Events behind the failed one are read before and after the second worker joins."""
    ledger = Ledger(shop)
    is_bad = True

    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if is_bad and event.payload.number == 1:
            raise RuntimeError("not now")
        await ledger.write(event, connection)

    consumer = declare(shop, handle, ordering="strict", retry_count=1000)
    place(shop, range(5))
    async with worker_on(shop, consumer, lease_seconds=SHORT) as first:
        await written(shop, AGGREGATES)
        async with worker_on(shop, consumer, lease_seconds=SHORT, signals=Signals(), wait_for=None) as second:
            place(shop, range(5, 8))
            await shared(shop, first, second)
            place(shop, range(8, 10))
            is_bad = False
            await written(shop, 10 * AGGREGATES)
    for each in range(AGGREGATES):
        assert ledger.numbers(f"o-{each}") == list(range(10))


async def test_three_workers_share_unevenly_by_one_lane_at_most(shop: Shop) -> None:
    consumer = declare(shop, Ledger(shop).write)
    async with (
        two_workers(shop, consumer),
        worker_on(shop, consumer, lease_seconds=SHORT, signals=Signals(), wait_for=None),
    ):
        counts = (
            "select array_agg(held order by held) from "
            "(select count(*)::int as held from consumer where name like 'index#%' group by token) each"
        )
        await shop.value_becomes(counts, [1, 1, 2])


async def test_more_workers_than_lanes_stand_by(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = declare(shop, ledger.write, lanes=2)
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                worker_on(shop, consumer, lease_seconds=SHORT, signals=signals, wait_for=None)
            )
            for signals in (Signals(), Signals(), Signals())
        ]
        await shop.value_becomes("select count(distinct token)::int from consumer where name like 'index#%'", 2)
        await shop.value_becomes("select count(*)::int from consumer_worker", 3)
        idle = next(worker for worker in workers if not held_by(shop, worker))
        await next(each for each in workers if each is not idle).stop()
        await shop.value_becomes("select count(distinct token)::int from consumer where name like 'index#%'", 2)
        place(shop, range(1))
        await written(shop, AGGREGATES)


class TestOtherNumbersOfLanes:
    @pytest.mark.parametrize("options", MANNERS)
    async def test_lanes_change_and_every_event_is_handled_once_and_in_order(
        self, shop: Shop, options: dict[str, Any]
    ) -> None:
        """At each change all lanes have come to the end of the log."""
        ledger = Ledger(shop)
        for step, lanes in enumerate([1, 4, 8, 3, 64, 1]):
            consumer = declare(shop, ledger.write, lanes, **options)
            async with worker_on(shop, consumer):
                place(shop, range(2 * step, 2 * step + 2))
                await written(shop, 2 * (step + 1) * AGGREGATES)
                at_end = f"lanes = {lanes} and position = (select position from head)"
                await shop.value_becomes(f"select count(*)::int from consumer where {at_end}", lanes)
            assert shop.value("select count(*)::int from consumer") == (1 if lanes == 1 else lanes + 1)
        for each in range(AGGREGATES):
            assert ledger.numbers(f"o-{each}") == list(range(12))

    @pytest.mark.parametrize("options", MANNERS[:4])
    async def test_lanes_change_while_they_are_at_different_positions(
        self, shop: Shop, options: dict[str, Any]
    ) -> None:
        """The new lanes begin at the lowest checkpoint, and the inbox tells what was handled."""
        ledger = Ledger(shop)
        gate = asyncio.Event()

        async def handle(event: Event[OrderPlaced], connection: Any) -> None:
            if event.payload.order_id == "o-3" and event.payload.number > 1:
                await gate.wait()
            await ledger.write(event, connection)

        consumer = declare(shop, handle, **options)
        place(shop, range(10))
        async with worker_on(shop, consumer, lease_seconds=SHORT) as worker:
            await shop.value_becomes(
                "select count(distinct position) > 1 from consumer where name like 'index#%'", True
            )
            await kill(worker)
        gate.set()
        for lanes in (3, 1, 8):
            consumer = declare(shop, handle, lanes, **options)
            async with worker_on(shop, consumer, lease_seconds=SHORT, wait_for=None):
                await shop.value_becomes("select lanes::int from consumer where name = 'index'", lanes)
        async with worker_on(shop, consumer, lease_seconds=SHORT, wait_for=None):
            await written(shop, 10 * AGGREGATES)
        for each in range(AGGREGATES):
            assert ledger.numbers(f"o-{each}") == list(range(10))

    async def test_without_an_inbox_a_change_that_would_repeat_events_is_refused(self, shop: Shop) -> None:
        ledger = Ledger(shop)
        async with worker_on(shop, declare(shop, ledger.write, 2, inbox=False)):
            place(shop, range(1))
            await written(shop, AGGREGATES)
        shop.rows("update consumer set position = 3 where name = 'index#1'")
        with pytest.raises(DeclarationError, match="lanes are at positions 3 to 16, and it would handle events"):
            await LogWorker(shop.outbox, declare(shop, ledger.write, 3, inbox=False), shop.database).run()
        async with worker_on(shop, declare(shop, ledger.write, 4, inbox=False), wait_for="consumer.idle"):
            pass
        assert shop.value("select count(*)::int from consumer where lanes = 4") == 5

    @pytest.mark.parametrize(("running", "declared"), [(4, 8), (4, 1), (1, 4)])
    async def test_a_worker_with_another_number_stands_by_with_a_warning_and_divides_when_the_others_stop(
        self, shop: Shop, caplog: pytest.LogCaptureFixture, running: int, declared: int
    ) -> None:
        caplog.set_level(logging.WARNING, "aftercommit.consumer")
        ledger = Ledger(shop)
        other = Signals()
        async with worker_on(shop, declare(shop, ledger.write, running), lease_seconds=SHORT) as first:
            place(shop, range(2))
            await written(shop, 2 * AGGREGATES)
            late = declare(shop, ledger.write, declared)
            async with worker_on(
                shop, late, lease_seconds=SHORT, signals=other, wait_for="consumer.standing_by"
            ) as second:
                await other.wait("consumer.standing_by", 3)
                place(shop, range(2, 4))
                await written(shop, 4 * AGGREGATES)
                assert not second.active
                assert first.active
                assert len(held_by(shop, first)) == running
                assert shop.rows("select token from consumer_worker where token = %s", (second.token,)) == []
                await first.stop()
                place(shop, range(4, 6))
                await written(shop, 6 * AGGREGATES)
                assert len(held_by(shop, second)) == declared
        said = [record.__dict__ for record in caplog.records if record.getMessage() == "consumer_lanes_differ"]
        assert {(each["declared"], each["running"]) for each in said} == {(declared, running)}
        for each in range(AGGREGATES):
            assert ledger.numbers(f"o-{each}") == list(range(6))

    @pytest.mark.parametrize("options", MANNERS)
    async def test_a_zombie_of_the_old_lanes_writes_nothing(self, shop: Shop, options: dict[str, Any]) -> None:
        """It has read a page of a lane that does not exist any more when it wakes."""
        ledger = Ledger(shop)
        consumer = declare(shop, ledger.write, 2, **options)
        async with worker_on(shop, consumer, lease_seconds=SHORT) as zombie:
            await shop.signals.wait("consumer.idle", 2)
            hold = shop.signals.hold("consumer.read")
            place(shop, range(3))
            await hold.wait()
            after = declare(shop, ledger.write, 4, **options)
            async with (
                stopped_heart(shop, zombie),
                worker_on(shop, after, lease_seconds=SHORT, signals=Signals(), wait_for=None),
            ):
                # Without an inbox, the lanes must be at the same position: then nothing is repeated.
                if not options.get("inbox", True):
                    await shop.value_becomes("select lanes::int from consumer where name = 'index'", 4)
                await written(shop, 3 * AGGREGATES)
                hold.release()
            await shop.signals.wait("consumer.fenced")
        for each in range(AGGREGATES):
            assert ledger.numbers(f"o-{each}") == list(range(3))


@pytest.mark.parametrize("lanes", [1, 2, 8])
async def test_a_lane_of_another_number_is_not_taken_even_if_it_is_free(shop: Shop, lanes: int) -> None:
    """Between its look and its take another worker may have divided the consumer."""
    async with worker_on(shop, declare(shop, Ledger(shop).write)):
        pass
    shop.rows("update consumer set leased_until = now() - interval '1 day' where name = 'index'")
    consumer = declare(shop, one_handler, lanes)
    leases = Leases(shop.outbox, [consumer], 5.0)
    async with await shop.database.connect() as connection:
        assert await leases.take(connection, list(leases.all), {"index": lanes}) == {}
        assert await leases.share(connection) == {}


async def test_older_code_finds_a_divided_consumer_taken(shop: Shop) -> None:
    """By its conditions the row is neither free nor expired nor void, even if the clock was set back."""
    async with worker_on(shop, declare(shop, Ledger(shop).write)):
        pass
    for moment in ("now()", "now() - interval '3 days'", "now() + interval '30 years'"):
        free = shop.value(
            f"select token is null or leased_until < {moment} or "
            f"leased_until > {moment} + make_interval(secs => greatest(coalesce(lease_seconds, 3600), 5)) "
            "from consumer where name = 'index'"
        )
        assert free is False
