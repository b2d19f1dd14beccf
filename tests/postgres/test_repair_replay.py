"""Replay: a frozen set goes to a consumer or through the transport once more, at a pace, and can be broken off."""

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from aftercommit.backoff import Constant
from aftercommit.errors import OperationBusy, PastHorizon, RepairError, SelectionError
from aftercommit.event.envelope import Event
from aftercommit.operate import RELAY, TO_TRANSPORT, ReplayDriver, ReplayProgress, Selection
from aftercommit.testing.signals import Signals
from tests.support.consuming import (
    Ledger,
    append,
    bus_on,
    checkpoint,
    inbox,
    letters,
    numbered,
    place_in_log,
    settled,
    worker_on,
)
from tests.support.relays import relay_on
from tests.support.repairing import (
    Fragile,
    bulk_letters,
    desk,
    forget_inbox_before,
    orders_in_ledger,
    outbox_rows,
    replay,
)
from tests.support.shop import OrderPaid, OrderPlaced, Shop, shop_outbox

ALL = Selection(from_position=1)
INSERT_MANY = """
    insert into public.ledger (event_id, order_id, number) select * from unnest(%s::uuid[], %s::text[], %s::int[])
"""


def counts(operation: Any) -> tuple[str, int, int, int, int]:
    return (operation.status, operation.total, operation.done, operation.skipped, operation.failed)


class TestToAConsumer:
    async def test_what_was_handled_is_skipped_and_no_checkpoint_moves(self, shop: Shop) -> None:
        fragile = Fragile(shop, 1)
        place_in_log(shop, *numbered(5))
        await fragile.work()
        fragile.mend()
        before = checkpoint(shop, "index")
        async with worker_on(shop, fragile.consumer):
            first = await replay(shop, ALL, to="index", reason="drill")
            second = await replay(shop, ALL, to="index")

        assert counts(first) == ("done", 5, 1, 4, 0)
        assert counts(second) == ("done", 5, 0, 5, 0)
        assert fragile.ledger.numbers() == [0, 2, 3, 4, 1]
        assert checkpoint(shop, "index") == before == 5
        assert (first.requested_by, first.reason, first.selection) == ("tester", "drill", ALL)

    async def test_again_means_again_once(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(3), *numbered(3, "o-2"))
        await fragile.work()
        async with worker_on(shop, fragile.consumer):
            done = await replay(shop, Selection(aggregate_id="o-2"), to="index", again=True)

        assert counts(done) == ("done", 3, 3, 0, 0)
        assert orders_in_ledger(fragile.ledger) == {"o-1": [0, 1, 2], "o-2": [0, 1, 2, 0, 1, 2]}
        assert inbox(shop, "index") == 6

    @pytest.mark.thorough
    @pytest.mark.parametrize("ordering", ["relaxed", "strict"])
    async def test_the_order_within_an_aggregate_is_kept(self, shop: Shop, ordering: Any) -> None:
        fragile = Fragile(shop, ordering=ordering, concurrency=3)
        place_in_log(shop, *[(f"o-{number % 4}", number) for number in range(100)])
        await fragile.work()
        async with worker_on(shop, fragile.consumer):
            await replay(shop, ALL, to="index", again=True)
        for order, handled in orders_in_ledger(fragile.ledger).items():
            mine = [number for number in range(100) if f"o-{number % 4}" == order]
            assert handled == mine + mine

    async def test_events_ahead_of_the_checkpoint_and_of_other_types_are_not_taken(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(2))
        await fragile.work()
        shop.publish(OrderPaid("o-1", 5), OrderPlaced("o-1", 2))
        append(shop)
        shop.rows("update consumer set position = 3")

        found = await desk(shop).preview(ALL, to="index")

        assert (found.total, found.handled, found.past_horizon) == (2, 2, 0)
        assert (found.first_position, found.last_position, found.types) == (1, 2, [("order.placed", 2)])

    async def test_the_set_is_frozen_when_it_starts(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(2))
        await fragile.work()
        operation = await desk(shop).start(ALL, to="index", again=True)
        place_in_log(shop, ("o-1", 2))
        async with worker_on(shop, fragile.consumer):
            await settled(shop, "index")
            await desk(shop).drive(operation.id)
        assert fragile.ledger.numbers() == [0, 1, 2, 0, 1]

    async def test_what_fails_again_counts_as_failed_and_says_why(self, shop: Shop) -> None:
        fragile = Fragile(shop, 1, 3, retry_count=2)
        place_in_log(shop, *numbered(5))
        await fragile.work()
        fragile.bad.remove(3)
        async with worker_on(shop, fragile.consumer):
            done = await replay(shop, Selection(consumer="index", error_class="ValueError"))

        assert counts(done) == ("done", 2, 1, 0, 1)
        assert not done.is_whole
        (problem,) = await desk(shop).problems(done.id)
        assert (problem.consumer, problem.state, problem.note) == ("index", "failed", "ValueError: order 1 is bad")
        assert letters(shop, "status, attempts") == [("parked", 6), ("resolved", 3)]

    @pytest.mark.parametrize("in_a_row", [200, 2], ids=["in one turn", "in several turns"])
    async def test_under_strict_ordering_those_behind_a_failure_are_reported_and_not_waited_for(
        self, shop: Shop, in_a_row: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aftercommit.consumer.dead_letters.IN_A_ROW", in_a_row)
        fragile = Fragile(shop, 2, ordering="strict")
        place_in_log(shop, *numbered(6), *numbered(2, "o-2"))
        shop.rows("insert into consumer (name, position, declared_by) values ('index', 8, 'order.placed')")
        async with worker_on(shop, fragile.consumer):
            done = await replay(shop, ALL, to="index")

        assert counts(done) == ("done", 8, 4, 0, 4)
        assert orders_in_ledger(fragile.ledger) == {"o-1": [0, 1], "o-2": [0, 1]}
        notes = {problem.note for problem in await desk(shop).problems(done.id)}
        assert "waits behind a parked letter of order o-1" in notes

    async def test_a_consumer_without_an_inbox_must_be_told_that_it_handles_again(self, shop: Shop) -> None:
        fragile = Fragile(shop, inbox=False)
        place_in_log(shop, *numbered(2))
        await fragile.work()
        with pytest.raises(RepairError, match=r"inbox=False.*--again"):
            await replay(shop, ALL, to="index")
        async with worker_on(shop, fragile.consumer):
            await replay(shop, ALL, to="index", again=True)
        assert fragile.ledger.numbers() == [0, 1, 0, 1]

    async def test_a_log_that_is_gone_is_reported(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(2))
        await fragile.work()
        operation = await desk(shop).start(ALL, to="index", again=True)
        shop.rows("delete from log where position = 1")
        async with worker_on(shop, fragile.consumer):
            done = await desk(shop).drive(operation.id)
        assert counts(done) == ("done", 2, 1, 0, 1)


class TestThroughTheTransport:
    @pytest.mark.thorough
    async def test_events_of_the_log_get_a_new_position_and_are_handled_by_those_who_had_not(self, shop: Shop) -> None:
        fragile = Fragile(shop, 1)
        other = Fragile(shop, name="other", ledger=fragile.ledger)
        place_in_log(shop, *numbered(3))
        await fragile.work()
        await other.work()
        fragile.mend()
        async with (
            relay_on(shop),
            worker_on(shop, fragile.consumer),
            worker_on(shop, other.consumer, signals=Signals()),
        ):
            done = await replay(shop, ALL, to=TO_TRANSPORT)
            await shop.value_becomes("select min(position)::int from consumer", 6)
            await settled(shop, "index")

        assert counts(done) == ("done", 3, 3, 0, 0)
        assert [number for _, _, number in shop.log()] == [0, 1, 2, 0, 1, 2]
        assert sorted(fragile.ledger.numbers()) == [0, 0, 1, 1, 2, 2]
        assert letters(shop, "status") == [("resolved",)]

    @pytest.mark.thorough
    async def test_failed_rows_of_the_outbox_go_again(self, shop: Shop) -> None:
        shop.outbox = shop_outbox(max_attempts=1)
        fragile = Fragile(shop, 1)
        shop.publish(*(OrderPlaced("o-1", number) for number in range(3)))
        async with bus_on(shop):
            await shop.value_becomes("select count(*)::int from outbox where status = 'pending'", 0)
            fragile.mend()
            done = await replay(shop, Selection(aggregate_id="o-1"), to=TO_TRANSPORT)

        assert counts(done) == ("done", 3, 3, 0, 0)
        assert outbox_rows(shop) == []
        assert sorted(fragile.ledger.numbers()) == [0, 1, 2]
        assert letters(shop, "status") == [("resolved",)]

    @pytest.mark.thorough
    async def test_letters_of_a_relay_and_of_consumers_go_to_their_owners_in_one_replay(self, shop: Shop) -> None:
        shop.outbox = shop_outbox(max_attempts=1)
        fragile = Fragile(shop, 0, 1)
        shop.publish(OrderPlaced("o-1", 0), OrderPlaced("o-2", 1))
        async with bus_on(shop):
            await shop.value_becomes("select count(*)::int from outbox where status = 'failed'", 2)
            fragile.mend()
            found = await desk(shop).preview(Selection(statuses=("parked",)))
            done = await replay(shop, Selection(statuses=("parked",)))
        assert (found.total, counts(done)) == (2, ("done", 2, 2, 0, 0))
        assert sorted(fragile.ledger.numbers()) == [0, 1]

    @pytest.mark.thorough
    async def test_one_consumer_behind_the_bus_can_be_meant(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        other = Fragile(shop, name="other", ledger=fragile.ledger)
        shop.publish(OrderPlaced("o-1", 0), OrderPlaced("o-1", 1))
        async with bus_on(shop):
            await shop.value_becomes("select position::int from head", 2)
            skipped = await replay(shop, ALL, to="index")
            done = await replay(shop, ALL, to="index", again=True)
        assert counts(skipped) == ("done", 2, 0, 2, 0)
        assert counts(done) == ("done", 2, 2, 0, 0)
        assert other.name == "other"
        assert sorted(fragile.ledger.numbers()) == [0, 0, 0, 1, 1, 1]

    async def test_again_for_everybody_is_refused(self, shop: Shop) -> None:
        with pytest.raises(RepairError, match="name the one"):
            await replay(shop, ALL, to=TO_TRANSPORT, again=True)


class TestTheHorizon:
    @pytest.mark.thorough
    async def test_events_that_the_inbox_has_forgotten_are_refused_unless_told(self, shop: Shop) -> None:
        fragile = Fragile(shop, 2)
        place_in_log(shop, *numbered(3))
        await fragile.work()
        fragile.mend()
        forget_inbox_before(shop, "now")

        for target in ("index", TO_TRANSPORT):
            with pytest.raises(PastHorizon, match=r"of 3 events.*--past-horizon") as refused:
                await desk(shop).start(ALL, to=target)
            # To its consumer an open letter is proof enough that it was not handled.
            assert refused.value.count == (2 if target == "index" else 3)
        assert shop.value("select count(*) from operation") == 0

        async with worker_on(shop, fragile.consumer):
            letters_alone = await replay(shop, Selection(consumer="index"))
            knowingly = await replay(shop, ALL, to="index", past_horizon=True)
        assert counts(letters_alone) == ("done", 1, 1, 0, 0)
        assert counts(knowingly) == ("done", 3, 2, 1, 0)

    async def test_a_horizon_that_moves_while_the_replay_runs_is_seen(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(3))
        await fragile.work()
        operation = await desk(shop).start(ALL, to="index")
        forget_inbox_before(shop, "now")
        async with worker_on(shop, fragile.consumer):
            done = await desk(shop).drive(operation.id)
        assert counts(done) == ("done", 3, 0, 3, 0)
        assert fragile.ledger.numbers() == [0, 1, 2]


class TestDrivers:
    async def test_a_second_driver_is_refused_while_the_first_lives(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(2))
        await fragile.work()
        operation = await desk(shop).start(ALL, to="index", again=True)
        signals = Signals()
        hold = signals.hold("replay.fed")
        driving = asyncio.create_task(ReplayDriver(shop.outbox, shop.database, operation.id, probe=signals).run())
        await hold.wait()
        with pytest.raises(OperationBusy, match=r"another process \(.+:\d+\) drives"):
            await desk(shop).drive(operation.id)
        hold.release()
        async with worker_on(shop, fragile.consumer):
            assert counts(await driving) == ("done", 2, 2, 0, 0)

    @pytest.mark.thorough
    async def test_a_step_that_takes_longer_than_the_lease_leaves_a_lease_that_has_just_begun(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(2))
        await fragile.work()
        operation = await desk(shop).start(ALL, to="index", again=True)
        signals = Signals()
        hold = signals.hold("replay.feeding")
        driver = ReplayDriver(shop.outbox, shop.database, operation.id, probe=signals, lease_seconds=0.05)
        driving = asyncio.create_task(driver.run())
        await hold.wait()
        await shop.value_becomes("select driven_until < clock_timestamp() from operation", True)
        other = asyncio.create_task(desk(shop).drive(operation.id))
        await shop.value_becomes(
            "select count(*)::int from pg_stat_activity where datname = current_database() "
            "and wait_event_type = 'Lock' and query ~ 'set driver'",
            1,
        )
        await shop.value_becomes("select driven_until + interval '1 s' < clock_timestamp() from operation", True)
        # From here on nothing goes by how fast this machine is.
        driver._mine["lease"] = 3600.0
        hold.release()
        with pytest.raises(OperationBusy, match=r"another process \(.+:\d+\) drives"):
            await other
        async with worker_on(shop, fragile.consumer):
            assert counts(await driving) == ("done", 2, 2, 0, 0)

    @pytest.mark.thorough
    @pytest.mark.parametrize("point", ["replay.feeding", "replay.fed", "replay.stepped"])
    async def test_a_driver_killed_anywhere_leaves_a_replay_that_another_finishes(self, shop: Shop, point: str) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(4))
        await fragile.work()
        operation = await desk(shop).start(ALL, to="index", again=True)
        signals = Signals()
        hold = signals.hold(point)
        driver = ReplayDriver(shop.outbox, shop.database, operation.id, probe=signals, lease_seconds=0.2)
        driving = asyncio.create_task(driver.run())
        await hold.wait()
        await kill_driver(shop, driving)

        async with worker_on(shop, fragile.consumer):
            done = await drive_when_free(shop, operation.id)

        assert counts(done) == ("done", 4, 4, 0, 0)
        assert fragile.ledger.numbers() == [0, 1, 2, 3] * 2

    async def test_a_driver_that_was_taken_over_writes_nothing_more(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(4))
        await fragile.work()
        operation = await desk(shop).start(ALL, to="index", again=True)
        signals = Signals()
        hold = signals.hold("replay.stepped")
        zombie = asyncio.create_task(
            ReplayDriver(shop.outbox, shop.database, operation.id, probe=signals, lease_seconds=0.05).run()
        )
        await hold.wait()
        async with worker_on(shop, fragile.consumer):
            await drive_when_free(shop, operation.id)
            hold.release()
            with pytest.raises(OperationBusy, match="taken over replay"):
                await zombie
        assert fragile.ledger.numbers() == [0, 1, 2, 3] * 2

    @pytest.mark.thorough
    async def test_an_abort_takes_back_what_was_fed_and_not_tried(self, shop: Shop) -> None:
        fragile = Fragile(shop, 3)
        place_in_log(shop, *numbered(4))
        await fragile.work()
        before = letters(shop, "event_id, status, attempts, payload::text")
        operation = await desk(shop).start(ALL, to="index", again=True)
        driver = desk(shop).driver(operation.id)
        driving = asyncio.create_task(driver.run())
        await shop.value_becomes("select count(*)::int from operation_event where state = 'started'", 4)
        assert inbox(shop, "index") == 0

        ended = await desk(shop).abort(operation.id)
        await driving

        assert counts(ended) == ("aborted", 4, 0, 0, 0)
        assert letters(shop, "event_id, status, attempts, payload::text") == before
        assert inbox(shop, "index") == 3
        assert shop.rows("select distinct state from operation_event") == [("aborted",)]
        await fragile.work()
        assert fragile.ledger.numbers() == [0, 1, 2]

    async def test_an_abort_behind_a_relay_takes_rows_back(self, shop: Shop) -> None:
        shop.outbox = shop_outbox(max_attempts=1)
        fragile = Fragile(shop, 1)
        shop.publish(OrderPlaced("o-1", 0), OrderPlaced("o-1", 1))
        async with bus_on(shop):
            await shop.value_becomes("select count(*)::int from outbox where status = 'pending'", 0)
        failed = outbox_rows(shop)
        operation = await desk(shop).start(Selection(aggregate_id="o-1"), to=TO_TRANSPORT)
        driving = asyncio.create_task(desk(shop).drive(operation.id))
        await shop.value_becomes("select count(*)::int from outbox where status = 'pending'", 2)

        ended = await desk(shop).abort(operation.id)
        await driving

        assert counts(ended) == ("aborted", 2, 0, 0, 0)
        assert outbox_rows(shop) == failed
        assert letters(shop, "status") == [("parked",)]
        assert fragile.ledger.numbers() == [0]

    async def test_an_abort_of_a_replay_that_nobody_drives_ends_it(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(2))
        await fragile.work()
        operation = await desk(shop).start(ALL, to="index", again=True)
        assert counts(await desk(shop).abort(operation.id)) == ("aborted", 2, 0, 0, 0)
        assert counts(await desk(shop).drive(operation.id)) == ("aborted", 2, 0, 0, 0)

    async def test_it_says_who_is_missing_when_nothing_moves(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("aftercommit.operate.repair.driver.PATIENCE", 0.0)
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(2))
        await fragile.work()
        said: list[str] = []
        told = asyncio.Event()

        def listen(progress: ReplayProgress) -> None:
            said.extend(progress.missing)
            if progress.missing:
                told.set()

        operation = await desk(shop).start(ALL, to="index", again=True)
        driver = desk(shop).driver(operation.id, listen)
        driving = asyncio.create_task(driver.run())
        await asyncio.wait_for(told.wait(), 60)
        driver.stopping.set()
        assert (await driving).status == "running"
        assert said[0] == "consumer 'index' has no worker: start `aftercommit worker index`"

    async def test_a_rate_bounds_what_is_fed(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        # A fiftieth of a second from one look at the clock to the next, though the machine may stand still for longer.
        seconds = itertools.count(0.0, 0.02)
        monkeypatch.setattr("aftercommit.operate.repair.driver.time", SimpleNamespace(monotonic=lambda: next(seconds)))
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(6))
        await fragile.work()
        signals = Signals()
        operation = await desk(shop).start(ALL, to="index", again=True, per_second=20)
        async with worker_on(shop, fragile.consumer):
            done = await ReplayDriver(shop.outbox, shop.database, operation.id, probe=signals).run()
        assert counts(done) == ("done", 6, 6, 0, 0)
        assert max(detail["count"] for detail in signals.details["replay.fed"]) < 6


@pytest.mark.thorough
@pytest.mark.newest
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [10_000, pytest.param(50_000, marks=pytest.mark.long)])
async def test_thousands_of_letters_are_replayed_with_progress_broken_off_and_finished_once(
    shop: Shop, count: int
) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0, backoff=Constant(0.0), concurrency=2)

    @consumer.on(OrderPlaced, batch=True)
    async def handle(events: list[Event[OrderPlaced]], connection: Any) -> None:
        async with connection.cursor() as cursor:
            rows = [(event.event_id, event.payload.order_id, event.payload.number) for event in events]
            await cursor.execute(INSERT_MANY, [list(column) for column in zip(*rows, strict=True)])

    bulk_letters(shop, "index", count)
    selection = Selection(consumer="index", error_class="Down")
    seen: list[ReplayProgress] = []
    async with worker_on(shop, consumer):
        assert (await desk(shop).preview(selection)).total == count
        first = await desk(shop).start(selection)
        driving = asyncio.create_task(desk(shop).drive(first.id, seen.append))
        await shop.value_becomes(f"select done > {count // 10} from operation", True, timeout=400)
        aborted = await desk(shop).abort(first.id)
        await driving
        rest = await replay(shop, selection)
        nothing = await desk(shop).start(ALL, to="index")
        nothing = await desk(shop).drive(nothing.id)

    assert aborted.status == "aborted"
    assert count // 10 < aborted.done < count
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert shop.value("select count(*) from public.ledger") == count
    assert shop.value("select count(distinct event_id) from public.ledger") == count
    assert counts(rest) == ("done", rest.total, rest.total, 0, 0)
    assert counts(nothing) == ("done", count, 0, count, 0)
    for handled in orders_in_ledger(ledger).values():
        assert handled == sorted(handled)


@pytest.mark.parametrize(
    ("selection", "to", "said"),
    [
        (ALL, None, "give to="),
        (Selection(), TO_TRANSPORT, "from_position=1"),
        (ALL, "nobody", r"unknown consumer 'nobody'. Known consumers: index"),
        (ALL, RELAY, "unknown consumer '@relay'"),
        (ALL, "@owner", "only dead letters have an owner"),
        (Selection(consumer="other"), "index", "cannot be replayed to 'index'"),
    ],
)
async def test_a_replay_to_nowhere_is_refused(shop: Shop, selection: Selection, to: str | None, said: str) -> None:
    await Fragile(shop).work()
    with pytest.raises((RepairError, SelectionError), match=said):
        await desk(shop, declared=False).start(selection, to=to)
    with pytest.raises(RepairError, match="no operation"):
        await desk(shop).drive(uuid4())


async def kill_driver(shop: Shop, driving: "asyncio.Task[Any]") -> None:
    """As kill -9 would: its transaction is undone and its right to drive is not given back."""
    held = shop.rows("select driver from operation")
    shop.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and query ~ 'operation' and pid <> pg_backend_pid()"
    )
    driving.cancel()
    await asyncio.wait({driving})
    shop.rows("update operation set driver = %s, driven_until = now() + interval '0.2 s'", (held[0][0],))


async def drive_when_free(shop: Shop, operation_id: Any) -> Any:
    """As soon as the lease of the one before has run out."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await desk(shop).drive(operation_id)
            except OperationBusy:
                await asyncio.sleep(0.02)
