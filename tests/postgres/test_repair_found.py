"""What is done to one event stays with it: nobody else handles it twice, nobody misses it, and the counts are true."""

import asyncio
import json
from typing import Any, Literal
from uuid import UUID

import pytest

from aftercommit.backoff import Constant
from aftercommit.errors import DeclarationError, LetterNotFound, PastHorizon
from aftercommit.event.envelope import Event
from aftercommit.operate import TO_TRANSPORT, Operation, ReplayDriver, ReplayProgress, Selection
from tests.postgres.test_repair_letters import deliver_by_bus, parked_behind_bus, parked_by_relay
from tests.postgres.test_repair_races import Held
from tests.support.consuming import (
    Ledger,
    append,
    bus_on,
    checkpoint,
    inbox,
    kill,
    letters,
    numbered,
    place_in_log,
    settled,
    worker_on,
)
from tests.support.relays import relay_on
from tests.support.repairing import Fragile, desk, forget_inbox_before, outbox_rows, replay
from tests.support.shop import OrderPlaced, Shop, shop_outbox

ALL = Selection(from_position=1)
PARKED = Selection(statuses=("parked",))
NEW = json.dumps({"order_id": "o-1", "number": 1, "note": "new"}).encode()
WAITING_FOR_A_LOCK = """
    select count(*)::int from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
"""
NOTES = "select note from public.ledger where event_id = %s order by id"


async def feed(shop: Shop, operation: Operation, count: int) -> None:
    """Drive until so many items are under way, as if interrupted then."""

    def look(progress: ReplayProgress) -> None:
        if progress.under_way >= count or progress.is_over:
            driver.stopping.set()

    driver = ReplayDriver(shop.outbox, shop.database, operation.id, on_progress=look)
    await asyncio.wait_for(driver.run(), 60)


async def drive(shop: Shop, operation: Operation) -> tuple[int, int]:
    """To its end: how many are done, how many failed."""
    ended = await asyncio.wait_for(desk(shop).drive(operation.id), 60)
    return ended.done, ended.failed


class TestAgainBehindTheBus:
    async def test_past_the_horizon_it_is_refused_for_the_sake_of_the_others(self, shop: Shop) -> None:
        good, _ = await parked_behind_bus(shop, count=1)
        event_id = shop.value("select id from log")
        forget_inbox_before(shop, "now")
        before = good.ledger.numbers()
        chosen = Selection(event_ids=(event_id,))
        with pytest.raises(PastHorizon, match=r"1 of 1 events .* twice by consumers other than 'index'.*-horizon"):
            await desk(shop).start(chosen, to="index", again=True)
        async with bus_on(shop):
            await replay(shop, chosen, to="index", again=True, past_horizon=True)
        assert len(good.ledger.numbers()) == len(before) + 2

    async def test_a_horizon_that_moves_meanwhile_is_seen(self, shop: Shop) -> None:
        good, _ = await parked_behind_bus(shop, count=1)
        operation = await desk(shop).start(ALL, to="index", again=True)
        forget_inbox_before(shop, "now")
        async with bus_on(shop):
            assert await drive(shop, operation) == (0, 0)
        assert len(good.ledger.numbers()) == 2

    async def test_a_log_consumer_that_is_not_meant_skips_it(self, shop: Shop) -> None:
        shop.outbox = shop_outbox(max_attempts=1)
        index = Fragile(shop)
        audit = Fragile(shop, name="audit", ledger=index.ledger)
        event_id = shop.place(number=1)
        async with bus_on(shop, [index.consumer]):
            await shop.value_becomes("select count(*)::int from outbox", 0)
            await audit.work()
            await replay(shop, Selection(event_ids=(event_id,)), to="index", again=True)
        await audit.work()
        assert len(index.ledger.numbers()) == 3

    async def test_of_a_log_consumer_it_concerns_nobody_else_and_is_done(self, shop: Shop) -> None:
        fragile = Fragile(shop)
        place_in_log(shop, ("o-1", 1))
        await fragile.work()
        forget_inbox_before(shop, "now")
        async with worker_on(shop, fragile.consumer):
            assert (await replay(shop, ALL, to="index", again=True)).done == 1


class TestDiscardedBeforeItsTurn:
    """With several at once a letter can lie past the checkpoint, and its event comes by again after a stop."""

    @pytest.mark.parametrize("ordering", ["relaxed", "strict"])
    @pytest.mark.parametrize("how", ["kill", "stop"])
    @pytest.mark.parametrize("then", ["stays", "retry", "replay"])
    @pytest.mark.thorough
    async def test_it_stays_given_up_until_it_is_wanted(
        self, shop: Shop, ordering: Literal["relaxed", "strict"], how: str, then: str
    ) -> None:
        consumer = shop.outbox.consumer("index", retry_count=0, concurrency=4, ordering=ordering, start="earliest")
        ledger = Ledger(shop)
        held, gate = asyncio.Event(), asyncio.Event()
        mended = False

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: Any) -> None:
            if event.payload.order_id == "slow" and not held.is_set():
                held.set()
                await gate.wait()
            if event.payload.number == 1 and not mended:
                raise ValueError("bad")
            await ledger.write(event, connection)

        # More slow ones than one slice takes: a stop leaves some of the page.
        ids = place_in_log(shop, *(("slow", 100 + number) for number in range(40)), ("o-1", 1), ("o-1", 2))
        async with worker_on(shop, consumer, lease_seconds=1.0) as worker:
            await asyncio.wait_for(held.wait(), 60)
            await shop.signals.wait("consumer.failed")
            if how == "kill":
                await kill(worker)
            else:
                worker.stopping.set()
                gate.set()
                await worker.stop()
        assert checkpoint(shop, "index") < 41
        chosen = Selection(event_ids=(ids[40],))
        await desk(shop).discard(chosen, reason="nobody wants it")
        mended = True
        if then == "retry":
            assert (await desk(shop).retry(chosen)).done == 1
        async with worker_on(shop, consumer, lease_seconds=1.0):
            if then == "replay":
                operation = await desk(shop).start(Selection(consumer="index", statuses=("discarded",)))
                assert await drive(shop, operation) == (1, 0)
            await settled(shop, "index")
        assert sorted(ledger.numbers("o-1")) == ([2] if then == "stays" else [1, 2])
        status = "discarded" if then == "stays" else "resolved"
        assert shop.value("select status from dead_letter_events where event_id = %s", (ids[40],)) == status


def test_strict_order_needs_an_inbox(shop: Shop) -> None:
    with pytest.raises(DeclarationError, match=r"only the inbox tells.*drop inbox=False"):
        shop.outbox.consumer("index", ordering="strict", inbox=False)


@pytest.mark.parametrize("action", ["retry", "edit"])
@pytest.mark.parametrize("transport", ["log", "bus"])
@pytest.mark.thorough
async def test_what_failed_again_and_was_given_up_is_handled_when_it_is_wanted_after_all(
    shop: Shop, action: str, transport: str
) -> None:
    shop.outbox = shop_outbox(max_attempts=1)
    fragile = Fragile(shop)
    event_id = shop.place(number=1)
    chosen = Selection(event_ids=(event_id,))

    async def work() -> None:
        await (fragile.work() if transport == "log" else deliver_by_bus(shop))

    if transport == "log":
        append(shop)
    await work()
    fragile.bad.add(1)
    async with worker_on(shop, fragile.consumer) if transport == "log" else bus_on(shop):
        await replay(shop, chosen, to="index", again=True)
    await desk(shop).discard(chosen, reason="once was enough")
    await work()
    assert letters(shop, "status, spared") == [("discarded", True)]
    assert inbox(shop, "index") == 1
    fragile.mend()
    await (desk(shop).retry(chosen) if action == "retry" else desk(shop).edit(event_id, NEW))
    await work()
    assert letters(shop, "status, spared") == [("resolved", False)]
    assert shop.rows(NOTES, (event_id,)) == [("",), ("new" if action == "edit" else "",)]


class TestFromTheBusToTheLog:
    """A letter of a consumer's time behind the bus has no position."""

    async def once_parked(self, shop: Shop) -> UUID:
        _, fragile = await parked_behind_bus(shop, 1, count=2)
        fragile.mend()
        await desk(shop).retry(Selection(consumer="index"))
        await deliver_by_bus(shop)
        event_id: UUID = shop.value("select event_id from dead_letter_events")
        return event_id

    async def test_a_replay_on_it_comes_to_its_end(self, shop: Shop) -> None:
        event_id = await self.once_parked(shop)
        async with worker_on(shop, shop.outbox.consumers["index"]):
            await settled(shop, "index")
            operation = await desk(shop).start(Selection(event_ids=(event_id,)), to="index", again=True)
            assert await drive(shop, operation) == (1, 0)
        assert letters(shop, "status, position is null") == [("resolved", False)]

    async def test_a_failure_on_it_is_tried_again(self, shop: Shop) -> None:
        event_id = await self.once_parked(shop)
        shop.rows("delete from processed_events")
        shop.outbox = shop_outbox()
        consumer = shop.outbox.consumer("index", retry_count=3, backoff=Constant(0.0), start="earliest")
        attempts: list[int] = []

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: Any) -> None:
            if event.event_id == event_id:
                attempts.append(event.attempt)
                if len(attempts) == 1:
                    raise ValueError("once")

        async with worker_on(shop, consumer):
            await settled(shop, "index")
        assert attempts == [1, 2]
        assert letters(shop, "status") == [("resolved",)]


class TestEditsOfWhatWasPublished:
    async def spared(self, shop: Shop) -> UUID:
        """Published without its consumer, whose letter is discarded."""
        _, fragile = await parked_behind_bus(shop, 1)
        await desk(shop).discard(PARKED, reason="not for us")
        await deliver_by_bus(shop)
        fragile.mend()
        event_id: UUID = shop.value("select event_id from dead_letter_events")
        return event_id

    async def test_its_consumer_gets_the_new_payload_for_good(self, shop: Shop) -> None:
        event_id = await self.spared(shop)
        await desk(shop).edit(event_id, NEW)
        await deliver_by_bus(shop)
        async with bus_on(shop):
            await replay(shop, Selection(event_ids=(event_id,)), to="index", again=True)
        assert shop.rows(NOTES, (event_id,)) == [("",), ("new",), ("new",)]

    async def test_when_it_has_left_the_log_nothing_is_published_in_its_name(self, shop: Shop) -> None:
        event_id = await self.spared(shop)
        shop.rows("delete from log")
        with pytest.raises(LetterNotFound, match="was published, and retention has removed it"):
            await desk(shop).edit(event_id, NEW)
        left = await desk(shop).retry(Selection(event_ids=(event_id,)))
        assert (left.done, len(left.left_alone)) == (0, 1)
        ended = await replay(shop, Selection(statuses=("discarded",)), to=TO_TRANSPORT, past_horizon=True)
        assert (ended.done, ended.failed) == (0, 1)
        assert outbox_rows(shop) == []
        assert letters(shop, "status, spared") == [("discarded", True)]

    @pytest.mark.parametrize("dropped", [True, False])
    async def test_where_nobody_can_know_whether_it_was_published_it_is_refused(
        self, shop: Shop, dropped: bool
    ) -> None:
        """Its delivery was discarded: the first one, or one of a replay."""
        _, event_id = await parked_by_relay(shop)
        await desk(shop).discard(PARKED, reason="a slip")
        place_in_log(shop, ("o-2", 1))
        if dropped:
            shop.rows("delete from log")
            with pytest.raises(LetterNotFound, match="may have been published and then removed from the log"):
                await desk(shop).edit(event_id, NEW)
        else:
            assert (await desk(shop).edit(event_id, NEW)).done == 1
            assert shop.rows("select payload->>'note' from outbox") == [("new",)]


async def test_behind_the_bus_every_call_of_a_handler_counts(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.outbox = shop_outbox(max_attempts=2, backoff=Constant(0.0))
    consumer = shop.outbox.consumer("index", retry_count=2, backoff=Constant(0.0))
    calls: list[int] = []

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        calls.append(event.attempt)
        raise ValueError(f"call {len(calls)}")

    event_id = shop.place(number=1)
    async with bus_on(shop):
        await shop.value_becomes("select count(*)::int from outbox where status = 'failed'", 1)
    (letter,) = await desk(shop).letter(event_id)
    assert (calls, letter.attempts) == ([1, 2, 3, 1, 2, 3], 6)
    assert [(each.error, each.attempts) for each in letter.history] == [("call 3", 3), ("call 6", 3)]
    said = [record.getMessage() for record in caplog.records]
    assert sum("event_handling_failed" in each for each in said) == 6


class TestTwoReplaysOfTheSame:
    """What one of them has under way is not taken away by the abort of the other."""

    async def both_fed(self, shop: Shop, selection: Selection, count: int, **options: Any) -> list[Operation]:
        both = [await desk(shop).start(selection, **options) for _ in range(2)]
        for operation in both:
            await feed(shop, operation, count)
        return both

    async def test_through_the_transport(self, shop: Shop) -> None:
        place_in_log(shop, *numbered(3))
        first, second = await self.both_fed(shop, ALL, 3, to=TO_TRANSPORT)
        await desk(shop).abort(first.id)
        async with relay_on(shop):
            assert await drive(shop, second) == (3, 0)
        assert shop.value("select count(*)::int from log") == 6

    async def test_of_letters_behind_the_bus(self, shop: Shop) -> None:
        _, fragile = await parked_behind_bus(shop, 1)
        fragile.mend()
        first, second = await self.both_fed(shop, Selection(consumer="index"), 1)
        await desk(shop).abort(first.id)
        async with bus_on(shop):
            assert await drive(shop, second) == (1, 0)

    @pytest.mark.parametrize("of", ["letters", "events"])
    async def test_to_a_log_consumer(self, shop: Shop, of: str) -> None:
        fragile = Fragile(shop, 1)
        place_in_log(shop, *numbered(3))
        await fragile.work()
        fragile.mend()
        shop.rows("delete from processed_events")
        count, options = (1, {}) if of == "letters" else (3, {"to": "index"})
        first, second = await self.both_fed(shop, PARKED if of == "letters" else ALL, count, **options)
        await desk(shop).abort(first.id)
        async with worker_on(shop, fragile.consumer):
            assert await drive(shop, second) == (count, 0)

    @pytest.mark.parametrize("turn", [1, -1], ids=["first fed first", "last fed first"])
    @pytest.mark.parametrize("transport", ["log", "bus"])
    @pytest.mark.thorough
    async def test_when_both_are_aborted_all_is_as_it_was(self, shop: Shop, turn: int, transport: str) -> None:
        if transport == "log":
            fragile = Fragile(shop, 1)
            place_in_log(shop, *numbered(3))
            await fragile.work()
        else:
            await parked_behind_bus(shop, 1)
        before = letters(shop, "status, attempts, attempts_before"), outbox_rows(shop)
        both = await self.both_fed(shop, Selection(consumer="index"), 1)
        for operation in both[::turn]:
            await desk(shop).abort(operation.id)
        assert (letters(shop, "status, attempts, attempts_before"), outbox_rows(shop)) == before


class TestAbortWithABusHandlerAtWork:
    @pytest.mark.parametrize("fails", [False, True])
    async def test_what_was_to_be_handled_again_is_counted_or_leaves_its_letter(self, shop: Shop, fails: bool) -> None:
        shop.outbox = shop_outbox(max_attempts=1)
        held = Held(shop)
        event_id = shop.place(number=1)
        await deliver_by_bus(shop)
        held.bad = {1} if fails else set()
        held.held = True
        async with bus_on(shop):
            operation = await desk(shop).start(Selection(event_ids=(event_id,)), to="index", again=True)
            await feed(shop, operation, 1)
            await asyncio.wait_for(held.inside.wait(), 60)
            aborting = asyncio.create_task(desk(shop).abort(operation.id))
            # It waits for what the handler makes of the event.
            await shop.value_becomes(WAITING_FOR_A_LOCK, 1)
            held.gate.set()
            ended = await asyncio.wait_for(aborting, 60)
            if fails:
                await shop.value_becomes("select count(*)::int from dead_letter_events", 1)
            else:
                await shop.value_becomes("select count(*)::int from outbox", 0)
        assert (ended.status, ended.done) == ("aborted", 0 if fails else 1)
        assert inbox(shop, "index") == 1
        assert held.ledger.numbers() == ([1] if fails else [1, 1])
        assert letters(shop, "status, spared, attempts") == ([("discarded", True, 1)] if fails else [])
        assert shop.value("select count(*)::int from log") == (1 if fails else 2)

    @pytest.mark.parametrize("fails", [False, True])
    async def test_of_a_letter_the_outcome_stands(self, shop: Shop, fails: bool) -> None:
        shop.outbox = shop_outbox(max_attempts=1)
        held = Held(shop, 1)
        shop.place(number=1)
        await deliver_by_bus(shop)
        held.bad = {1} if fails else set()
        held.held = True
        async with bus_on(shop):
            operation = await desk(shop).start(Selection(consumer="index"))
            await feed(shop, operation, 1)
            await asyncio.wait_for(held.inside.wait(), 60)
            ended = await desk(shop).abort(operation.id)
            held.gate.set()
            query = "select status || ' ' || attempts from dead_letter_events"
            await shop.value_becomes(query, "parked 2" if fails else "resolved 1")
        assert (ended.status, ended.done, ended.failed) == ("aborted", 0, 0)
        assert held.ledger.numbers() == ([] if fails else [1])
        assert [status for _, status, _ in outbox_rows(shop)] == (["failed"] if fails else [])
