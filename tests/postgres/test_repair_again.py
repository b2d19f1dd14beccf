"""What is sent again: in its place, with the payload it was given, with all its attempts, and nobody in its way."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

import psycopg
import pytest

from aftercommit.consumer.names import forget, rename
from aftercommit.errors import OperationBusy, SetChanged
from aftercommit.event.envelope import Record
from aftercommit.operate import RELAY, TO_TRANSPORT, ReplayDriver, ReplayProgress, Selection
from aftercommit.testing.signals import Signals
from tests.postgres.test_repair_letters import carry_out, deliver_by_bus, parked_behind_bus
from tests.support.consuming import bus_on, inbox, letters, numbered, place_in_log, settled, worker_on
from tests.support.recording import RecordingTransport
from tests.support.relays import relay_on
from tests.support.repairing import Fragile, desk, outbox_rows, replay
from tests.support.shop import OrderPlaced, Shop, shop_outbox

PARKED = Selection(statuses=("parked",))
GIVEN_UP = Selection(statuses=("parked", "discarded"))
NEW = json.dumps({"order_id": "o-1", "number": 1, "note": "new"}).encode()


async def three_refused(
    shop: Shop, ordering: Literal["relaxed", "strict"]
) -> tuple[RecordingTransport, Sequence[UUID]]:
    """Three events of one order that the transport has refused; under strict ordering only the first was tried."""
    shop.outbox = shop_outbox(max_attempts=1, ordering=ordering)
    transport = RecordingTransport(lambda record: ValueError("no route"))
    ids = shop.publish(*(OrderPlaced("o-1", number) for number in (1, 2, 3)))
    refused = 1 if ordering == "strict" else 3
    async with relay_on(shop, transport=transport):
        await shop.value_becomes("select count(*)::int from outbox where status = 'failed'", refused)
    transport.refuse = None
    return transport, ids


def numbers(records: Sequence[Record]) -> list[int]:
    """What was delivered, in its order."""
    return [json.loads(record.payload)["number"] for record in records]


class TestPlace:
    @pytest.mark.parametrize("ordering", ["relaxed", "strict"])
    @pytest.mark.parametrize("way", ["retry", "replay"])
    async def test_a_discarded_delivery_that_is_brought_back_goes_before_those_published_after_it(
        self, shop: Shop, ordering: Literal["relaxed", "strict"], way: str
    ) -> None:
        transport, ids = await three_refused(shop, ordering)
        seqs = shop.rows("select seq from outbox order by seq")
        await desk(shop).discard(Selection(event_ids=(ids[0],)), reason="a slip")
        assert len(outbox_rows(shop)) == 2
        if way == "retry":
            await desk(shop).retry(GIVEN_UP)
            await carry_out(shop, transport)
        else:
            operation = await desk(shop).start(Selection(consumer=RELAY, statuses=("parked", "discarded")))
            driver = desk(shop).driver(operation.id, lambda progress: driver.stopping.set())
            await driver.run()
            assert shop.rows("select seq from outbox order by seq") == seqs
            await carry_out(shop, transport)
        assert numbers(transport.records) == [1, 2, 3]
        assert [number for _, _, number in shop.log()] == [1, 2, 3]
        assert {status for (status,) in letters(shop, "status")} == {"resolved"}

    async def test_what_later_events_have_passed_comes_behind_them(self, shop: Shop) -> None:
        transport, ids = await three_refused(shop, "strict")
        await desk(shop).discard(Selection(event_ids=(ids[0],)), reason="not now")
        await carry_out(shop, transport)
        await desk(shop).retry(Selection(event_ids=(ids[0],)))
        await carry_out(shop, transport)
        assert [number for _, _, number in shop.log()] == [2, 3, 1]

    async def test_it_was_published_when_it_was(self, shop: Shop) -> None:
        transport, ids = await three_refused(shop, "relaxed")
        published = shop.value("select created_at from outbox where id = %s", (ids[0],))
        await desk(shop).discard(Selection(event_ids=(ids[0],)), reason="a slip")
        await desk(shop).retry(Selection(event_ids=(ids[0],)))
        await carry_out(shop, transport)
        assert shop.value("select created_at from log where id = %s", (ids[0],)) == published


class TestEditsAfterPublishing:
    async def test_the_consumer_gets_the_new_payload_and_nobody_else_does(self, shop: Shop) -> None:
        _, fragile = await parked_behind_bus(shop, 1)
        await desk(shop).discard(PARKED, reason="not for us")
        await deliver_by_bus(shop)
        fragile.mend()
        event_id = shop.value("select event_id from dead_letter_events")
        await desk(shop).edit(event_id, NEW)
        await deliver_by_bus(shop)
        assert shop.rows("select number, note from public.ledger where event_id = %s order by id", (event_id,)) == [
            (1, ""),
            (1, "new"),
        ]
        assert shop.rows("select distinct payload->>'note' from log") == [("",)]
        assert letters(shop, "status, payload->>'note'") == [("resolved", "new")]

    @pytest.mark.thorough
    async def test_one_that_failed_when_it_was_to_handle_it_again_gets_the_new_payload(self, shop: Shop) -> None:
        """Its row is in the outbox, failed: the log must not get another payload by it."""
        _, fragile = await parked_behind_bus(shop)
        fragile.bad.add(1)
        event_id = shop.value("select id from log where payload->>'number' = '1'")
        async with bus_on(shop):
            await replay(shop, Selection(event_ids=(event_id,)), to="index", again=True)
        fragile.mend()
        await desk(shop).edit(event_id, NEW)
        await deliver_by_bus(shop)
        assert shop.value("select note from public.ledger order by id desc limit 1") == "new"
        assert shop.rows("select distinct payload->>'note' from log") == [("",)]
        assert letters(shop, "status") == [("resolved",)]

    async def test_another_letter_of_the_event_keeps_its_payload(self, shop: Shop) -> None:
        shop.outbox = shop_outbox(max_attempts=1)
        first = Fragile(shop, 1, name="first")
        second = Fragile(shop, 1, name="second", ledger=first.ledger)
        event_id = shop.place(number=1)
        await deliver_by_bus(shop)
        await desk(shop).discard(PARKED, reason="not for us")
        await deliver_by_bus(shop)
        first.mend()
        second.mend()
        await desk(shop).edit(event_id, NEW, consumer="first")
        await deliver_by_bus(shop)
        assert letters(shop, "consumer_name, status, payload->>'note'") == [
            ("first", "resolved", "new"),
            ("second", "discarded", ""),
        ]
        assert shop.rows("select note from public.ledger") == [("new",)]


class TestDiscardedStaysDiscarded:
    async def test_a_consumer_whose_inbox_has_forgotten_that_it_was_spared_is_spared_again(self, shop: Shop) -> None:
        """Its event waits for another consumer, for longer than the inbox is kept."""
        shop.outbox = shop_outbox(max_attempts=2)
        first = Fragile(shop, 1, name="first")
        second = Fragile(shop, 1, name="second", ledger=first.ledger)
        shop.place(number=1)
        await deliver_by_bus(shop)
        await desk(shop).discard(Selection(consumer="first"), reason="not for us")
        shop.rows("delete from processed_events where consumer_name = 'first'")
        second.mend()
        await desk(shop).retry(Selection(consumer="second"))
        await deliver_by_bus(shop)
        assert letters(shop, "consumer_name, status, spared") == [
            ("first", "discarded", True),
            ("second", "resolved", False),
        ]
        assert inbox(shop, "first") == 1
        assert [number for _, _, number in shop.log()] == [1]
        assert first.ledger.numbers() == [1]


class TestAttempts:
    async def test_a_retried_delivery_has_all_its_attempts_again_and_the_letter_counts_on(self, shop: Shop) -> None:
        shop.outbox = shop_outbox(max_attempts=3, backoff=lambda attempt, error: 0.0)
        tries: list[UUID] = []

        def refuse(record: Record) -> BaseException | None:
            tries.append(record.event_id)
            return ValueError("no route")

        transport = RecordingTransport(refuse)
        shop.place(number=1)
        for times in (1, 2):
            async with relay_on(shop, transport=transport):
                await shop.value_becomes("select count(*)::int from outbox where status = 'failed'", 1)
            assert len(tries) == 3 * times
            assert letters(shop, "status, attempts, jsonb_array_length(history)") == [("parked", 3 * times, 3 * times)]
            await desk(shop).retry(PARKED)
        transport.refuse = None
        await carry_out(shop, transport)
        assert letters(shop, "status, attempts, jsonb_array_length(history)") == [("resolved", 6, 6)]

    @pytest.mark.contract("S5")
    async def test_a_letter_of_the_log_counts_all_attempts_also_after_a_retry_that_succeeded(self, shop: Shop) -> None:
        fragile = Fragile(shop, 1, retry_count=1)
        place_in_log(shop, ("o-1", 1))
        await fragile.work()
        for attempts in (4, 6):
            await desk(shop).retry(PARKED)
            await fragile.work()
            assert letters(shop, "status, attempts, jsonb_array_length(history)") == [("parked", attempts, attempts)]
        fragile.mend()
        await desk(shop).retry(PARKED)
        await fragile.work()
        assert letters(shop, "status, attempts, jsonb_array_length(history)") == [("resolved", 6, 6)]


async def test_a_replay_of_another_number_than_was_counted_is_not_begun(shop: Shop) -> None:
    fragile = Fragile(shop, 0, 1, 2)
    place_in_log(shop, *numbered(2))
    await fragile.work()
    counted = await desk(shop).preview(PARKED)
    place_in_log(shop, ("o-2", 2))
    await fragile.work()
    with pytest.raises(SetChanged, match="has 3 items now, and had 2 when it was counted") as problem:
        await desk(shop).start(PARKED, expected=counted.total)
    assert (problem.value.expected, problem.value.found) == (2, 3)
    assert shop.value("select count(*) from operation") == 0
    assert (await desk(shop).start(PARKED, expected=3)).total == 3


class TestLocks:
    @pytest.mark.thorough
    async def test_a_transaction_that_had_to_give_way_is_run_again(self, shop: Shop) -> None:
        """Another session has the letter of another consumer of the event, and wants the event's row."""
        shop.outbox = shop_outbox(max_attempts=1)
        first = Fragile(shop, 1, name="first")
        Fragile(shop, 1, name="second", ledger=first.ledger)
        event_id = shop.place(number=1)
        await deliver_by_bus(shop)
        async with await psycopg.AsyncConnection.connect(shop.dsn) as other:
            # The desk looks for a deadlock first, and finds itself in it: once, when it has waited for so long.
            name = shop.value("select current_database()")
            shop.rows(f"alter database {name} set deadlock_timeout = '10s'")
            await other.execute("set deadlock_timeout = '1min'")
            await other.execute("select from shop.dead_letter_events where consumer_name = 'second' for update")
            retrying = asyncio.create_task(desk(shop).retry(Selection(event_ids=(event_id,), consumer="first")))
            await shop.value_becomes(
                "select count(*)::int from pg_stat_activity where datname = current_database() "
                "and wait_event_type = 'Lock' and query like '%Sends events again%'",
                1,
            )
            # In one breath, so that nothing of this session is left when the desk begins again.
            await other.execute(f"select from shop.outbox where id = '{event_id}' for update; commit".encode())
            done = await asyncio.wait_for(retrying, 60)
        assert (done.done, list(done.left_alone)) == (1, [])
        assert outbox_rows(shop) == [(event_id, "pending", 0)]

    @pytest.mark.parametrize("change", [rename, forget], ids=["rename", "forget"])
    async def test_a_driver_that_is_stopped_in_a_step_does_not_hold_up_a_name_for_ever(
        self, shop: Shop, change: Any
    ) -> None:
        fragile = Fragile(shop, 1)
        place_in_log(shop, *numbered(2))
        await fragile.work()
        operation = await desk(shop).start(PARKED)
        signals = Signals()
        hold = signals.hold("replay.feeding")
        driver = ReplayDriver(shop.outbox, shop.database, operation.id, probe=signals)
        driving = asyncio.create_task(driver.run())
        await hold.wait()
        names = ("index", "search") if change is rename else ("index",)
        async with await shop.database.connect() as connection:
            with pytest.raises(OperationBusy, match=f"Replays under way: {operation.id}"):
                await change(connection, shop.outbox.shape, *names, max_wait_seconds=0.05)
            hold.release()
            driver.stopping.set()
            await driving
            await change(connection, shop.outbox.shape, *names)
        assert shop.value("select count(*) from consumer where name = 'index'") == 0


class Clock:
    """Stands still, until some time passes from one look at it to the next."""

    now = step = 0.0

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


class TestStrictOrderDuringAReplay:
    async def test_live_events_go_between_those_of_a_paced_replay_and_each_kind_keeps_its_order(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As the guide says: a replay is fed beside what is live, and holds nothing of that up."""
        # The pace goes by this clock: the second item is not due before the live events were handled.
        clock = Clock()
        monkeypatch.setattr("aftercommit.operate.repair.driver.time", clock)
        fragile = Fragile(shop, ordering="strict")
        place_in_log(shop, *numbered(3))
        await fragile.work()
        fed = asyncio.Event()
        async with worker_on(shop, fragile.consumer):
            operation = await desk(shop).start(
                Selection(to_position=3, from_position=1), to="index", again=True, per_second=2
            )
            driving = asyncio.create_task(
                desk(shop).drive(operation.id, lambda progress: fed.set() if progress.done else None)
            )
            await asyncio.wait_for(fed.wait(), 60)
            place_in_log(shop, ("o-1", 3), ("o-1", 4))
            await shop.value_becomes("select count(*)::int from public.ledger where number >= 3", 2)
            clock.step = 0.5
            await driving
            await settled(shop, "index")
        written = fragile.ledger.numbers()[3:]
        assert sorted(written) == [0, 1, 2, 3, 4]
        assert [number for number in written if number < 3] == [0, 1, 2]
        assert [number for number in written if number >= 3] == [3, 4]
        assert written.index(3) < written.index(2), "nothing that is live waits for the rest of a replay"


async def test_a_replay_through_the_transport_of_failed_and_published_events_keeps_the_order_of_each_kind(
    shop: Shop,
) -> None:
    shop.outbox = shop_outbox(max_attempts=1)
    transport = RecordingTransport(lambda record: ValueError("no") if b'"number":2' in record.payload else None)
    for number in (1, 2, 3):
        shop.place(number=number)
    async with relay_on(shop, transport=transport):
        await shop.value_becomes("select count(*)::int from outbox where status = 'pending'", 0)
        transport.refuse = None
        await replay(shop, Selection(aggregate_id="o-1"), to=TO_TRANSPORT)
    again = [number for _, _, number in shop.log()][2:]
    assert [number for number in again if number != 2] == [1, 3]
    assert again.count(2) == 1


async def test_under_strict_ordering_a_replay_does_not_wait_behind_a_failed_delivery(shop: Shop) -> None:
    shop.outbox = shop_outbox(max_attempts=1, ordering="strict")
    transport = RecordingTransport(lambda record: ValueError("no") if b'"number":2' in record.payload else None)
    first = shop.place(number=1)
    shop.place(number=2)
    async with relay_on(shop, transport=transport):
        await shop.value_becomes("select count(*)::int from outbox where status = 'failed'", 1)
        ended = await asyncio.wait_for(replay(shop, Selection(event_ids=(first,)), to=TO_TRANSPORT), 60)
        (problem,) = await desk(shop).problems(ended.id)
        assert (ended.status, ended.failed) == ("done", 1)
        assert problem.note == "waits behind a failed delivery of order o-1"
        transport.refuse = None
        await desk(shop).retry(PARKED)
        await shop.value_becomes("select count(*)::int from outbox", 0)
    assert [number for _, _, number in shop.log()] == [1, 2, 1]


async def test_without_the_declaration_it_says_what_it_may_wait_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aftercommit.operate.repair.driver.PATIENCE", 0.0)
    transport, ids = await three_refused(shop, "strict")
    await desk(shop).discard(Selection(event_ids=(ids[0],)), reason="not now")
    transport.refuse = lambda record: ValueError("no") if b'"number":3' in record.payload else None
    said: set[str] = set()
    async with relay_on(shop, transport=transport):
        await shop.value_becomes("select count(*)::int from outbox where status = 'failed'", 1)
        operation = await desk(shop, declared=False).start(Selection(event_ids=(ids[1],)), to=TO_TRANSPORT)

        def show(progress: ReplayProgress) -> None:
            said.update(progress.missing)
            if said:
                driving.stopping.set()

        driving = desk(shop, declared=False).driver(operation.id, show)
        await asyncio.wait_for(driving.run(), 60)
    assert [text.split(".")[0] for text in said] == ["order o-1 has a failed delivery"]
