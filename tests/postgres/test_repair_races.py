"""Repair while others are at work: deliveries and handlers under way, renamed and forgotten consumers, takeovers."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer.names import forget, rename
from aftercommit.errors import LetterNotFound
from aftercommit.event.envelope import Event, Record
from aftercommit.operate import Operation, ReplayDriver, ReplayProgress, Selection
from aftercommit.relay.transport import Capabilities, Failure
from aftercommit.testing.signals import Signals
from tests.support.consuming import (
    Ledger,
    append,
    kill,
    letters,
    numbered,
    place_in_log,
    settled,
    worker_on,
)
from tests.support.relays import relay_on
from tests.support.repairing import Fragile, desk, replay
from tests.support.shop import OrderPlaced, Shop

NEW = json.dumps({"order_id": "o-1", "number": 1, "note": "new"}).encode()
SEND_AGAIN = """
    insert into outbox (id, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id,
                        payload, tenant_id)
    select id, event_type, schema_version, aggregate_type, aggregate_id, occurred_at, correlation_id, payload, tenant_id
    from log
"""


class SlowTransport:
    """Refuses the first batch, and holds the second until it is let go."""

    name = "slow"
    capabilities = Capabilities()

    def __init__(self) -> None:
        """Nothing delivered yet."""
        self.inside = asyncio.Event()
        self.gate = asyncio.Event()
        self.notes: list[str] = []
        self._refuses = True

    async def open(self) -> None:
        """Nothing to connect."""

    async def close(self) -> None:
        """Nothing to close."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """As the class says."""
        if self._refuses:
            self._refuses = False
            return [Failure(record.event_id, ValueError("no")) for record in records]
        self.notes += [json.loads(record.payload)["note"] for record in records]
        self.inside.set()
        await self.gate.wait()
        return []


class TestEdits:
    @pytest.mark.thorough
    async def test_an_event_on_its_way_is_not_edited_and_the_log_says_what_the_transport_was_given(
        self, shop: Shop
    ) -> None:
        transport = SlowTransport()
        async with relay_on(shop, transport=transport):
            event_id = shop.place("o-1", 1, note="old")
            await asyncio.wait_for(transport.inside.wait(), 60)
            with pytest.raises(LetterNotFound, match="is retrying: only parked and discarded letters can be edited"):
                await desk(shop).edit(event_id, NEW)
            # However the letter came to be parked while its row is pending: the relay may have read the row.
            shop.rows("update dead_letter_events set status = 'parked', next_retry_at = null")
            with pytest.raises(LetterNotFound, match="may be in delivery: wait until it is parked"):
                await desk(shop).edit(event_id, NEW)
            transport.gate.set()
            await shop.value_becomes("select count(*)::int from log", 1)
        assert transport.notes == ["old"]
        assert shop.value("select payload->>'note' from log") == "old"

    async def test_a_letter_in_the_hands_of_a_worker_is_not_edited(self, shop: Shop) -> None:
        ledger, tries, inside, gate = Ledger(shop), [0], asyncio.Event(), asyncio.Event()
        consumer = shop.outbox.consumer("index", retry_count=5, backoff=Constant(0.0))

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: Any) -> None:
            tries[0] += 1
            if tries[0] == 1:
                raise ValueError("once")
            inside.set()
            await gate.wait()
            await ledger.write(event, connection)

        (event_id,) = shop.publish(OrderPlaced("o-1", 1, "old"))
        append(shop)
        async with worker_on(shop, consumer):
            await asyncio.wait_for(inside.wait(), 60)
            with pytest.raises(LetterNotFound, match="is retrying: only parked and discarded"):
                await desk(shop).edit(event_id, NEW)
            gate.set()
            await settled(shop, "index")
        assert shop.rows("select note from public.ledger") == [("old",)]
        assert shop.value("select count(*) from operation") == 0


class Held(Fragile):
    """Its handler can be held inside."""

    def __init__(self, shop: Shop, *bad: int, **options: Any) -> None:
        """Not held."""
        self.held = False
        self.inside, self.gate = asyncio.Event(), asyncio.Event()
        self.notes: list[str] = []
        super().__init__(shop, *bad, **options)

    async def handle(self, event: Event[OrderPlaced], connection: Any) -> None:
        """Wait inside while it is held."""
        if self.held:
            self.inside.set()
            await self.gate.wait()
        self.notes.append(event.payload.note)
        await super().handle(event, connection)


class TestLettersInHand:
    async def test_a_letter_in_hand_is_left_alone_at_once_and_its_handler_counts(self, shop: Shop) -> None:
        held = Held(shop, 1)
        (event_id,) = place_in_log(shop, ("o-1", 1))
        await held.work()
        held.mend()
        held.held = True
        chosen = Selection(event_ids=(event_id,))
        async with worker_on(shop, held.consumer):
            await desk(shop).retry(chosen)
            await asyncio.wait_for(held.inside.wait(), 60)
            discarded = await desk(shop).discard(chosen, reason="too late")
            retried = await desk(shop).retry(chosen)
            held.gate.set()
            await settled(shop, "index")
        assert [(done.done, [each.note for each in done.left_alone]) for done in (discarded, retried)] == [
            (0, ["a worker is handling it at the moment: try again later"])
        ] * 2
        assert letters(shop, "status") == [("resolved",)]
        assert held.ledger.numbers() == [1]

    async def test_an_edit_between_reading_and_handling_is_what_is_handled(self, shop: Shop) -> None:
        """An abort has parked the letter meanwhile: its worker still has it as it was."""
        held = Held(shop, 1)
        (event_id,) = place_in_log(shop, ("o-1", 1))
        await held.work()
        held.mend()
        held.notes.clear()
        operation = await desk(shop).start(Selection(consumer="index"))
        hold = shop.signals.hold("consumer.retrying")
        async with worker_on(shop, held.consumer):
            driving, driver = await fed(shop, operation)
            await hold.wait()
            driver.stopping.set()
            await driving
            ended = await desk(shop).abort(operation.id)
            await desk(shop).edit(event_id, NEW)
            hold.release()
            await shop.value_becomes("select status from dead_letter_events", "resolved")
        assert (ended.status, ended.failed) == ("aborted", 0)
        assert held.notes == ["new"]
        assert held.ledger.numbers() == [1]

    async def test_an_abort_waits_for_what_is_in_hand_and_counts_it(self, shop: Shop) -> None:
        held = Held(shop)
        place_in_log(shop, ("o-1", 1))
        await held.work()
        held.held = True
        async with worker_on(shop, held.consumer):
            operation = await desk(shop).start(Selection(from_position=1), to="index", again=True)
            driving, driver = await fed(shop, operation)
            await asyncio.wait_for(held.inside.wait(), 60)
            driver.stopping.set()
            await driving
            aborting = asyncio.create_task(desk(shop).abort(operation.id))
            await shop.value_becomes("select status from operation", "aborting")
            held.gate.set()
            ended = await asyncio.wait_for(aborting, 60)
        assert (ended.status, ended.done, ended.failed) == ("aborted", 1, 0)
        assert held.ledger.numbers() == [1, 1]
        assert letters(shop, "status") == [("resolved",)]


async def start_of_one(shop: Shop) -> tuple[Fragile, Operation]:
    """A parked letter, and a replay of it that nobody drives yet."""
    fragile = Fragile(shop, 1)
    place_in_log(shop, ("o-1", 1))
    await fragile.work()
    return fragile, await desk(shop).start(Selection(consumer="index"))


async def change(shop: Shop, work: Any, *names: str) -> None:
    """Rename or forget."""
    connection = await shop.database.connect()
    try:
        await work(connection, shop.outbox.shape, *names, max_wait_seconds=60.0)
    finally:
        await connection.close()


async def fed(shop: Shop, operation: Operation) -> tuple["asyncio.Task[Operation]", ReplayDriver]:
    """A driver at work, which has fed what it could."""
    driver = desk(shop).driver(operation.id)
    driving = asyncio.create_task(driver.run())
    await shop.value_becomes("select count(*)::int from operation_event where state = 'waiting'", 0)
    return driving, driver


class TestNamesDuringAReplay:
    async def test_a_rename_takes_a_replay_with_it(self, shop: Shop) -> None:
        fragile, operation = await start_of_one(shop)
        await change(shop, rename, "index", "search")
        search = Fragile(shop, name="search", ledger=fragile.ledger)
        async with worker_on(shop, search.consumer):
            done = await desk(shop).drive(operation.id)
        assert (done.status, done.done, done.failed) == ("done", 1, 0)
        assert letters(shop, "consumer_name, status") == [("search", "resolved")]
        assert search.ledger.numbers() == [1]

    async def test_a_rename_waits_for_the_step_of_a_driver(self, shop: Shop) -> None:
        """What is being fed at that moment is renamed too: as a letter that is new."""
        fragile = Fragile(shop)
        place_in_log(shop, *numbered(2))
        await fragile.work()
        operation = await desk(shop).start(Selection(from_position=1), to="index", again=True)
        signals = Signals()
        hold = signals.hold("replay.feeding")
        driver = ReplayDriver(shop.outbox, shop.database, operation.id, probe=signals)
        driving = asyncio.create_task(driver.run())
        await hold.wait()
        renaming = asyncio.create_task(change(shop, rename, "index", "search"))
        await shop.value_becomes(
            "select count(*)::int from pg_stat_activity where datname = current_database() "
            "and wait_event_type = 'Lock' and query like '%%operation%%'",
            1,
        )
        hold.release()
        await renaming
        driver.stopping.set()
        await driving
        assert letters(shop, "distinct consumer_name, status, seq") == [
            ("search", "retrying", 1),
            ("search", "retrying", 2),
        ]
        assert shop.rows("select distinct consumer_name, state from operation_event") == [("search", "started")]
        assert shop.value("select target from operation") == "search"

    async def test_items_of_a_forgotten_consumer_fail_and_say_why(self, shop: Shop) -> None:
        _, operation = await start_of_one(shop)
        await change(shop, forget, "index")
        done = await desk(shop).drive(operation.id)
        assert (done.status, done.failed) == ("done", 1)
        (problem,) = await desk(shop).problems(operation.id)
        assert "consumer 'index' has no checkpoint" in problem.note
        assert letters(shop, "status") == [("discarded",)]

    async def test_what_was_fed_to_a_consumer_that_is_forgotten_is_skipped(self, shop: Shop) -> None:
        _, operation = await start_of_one(shop)
        driving, _ = await fed(shop, operation)
        await change(shop, forget, "index")
        done = await asyncio.wait_for(driving, 60)
        assert (done.status, done.skipped) == ("done", 1)

    async def test_a_letter_of_a_consumer_without_a_checkpoint_is_missed_by_name(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aftercommit.operate.repair.driver.PATIENCE", 0.0)
        _, operation = await start_of_one(shop)
        said: asyncio.Queue[str] = asyncio.Queue()

        def listen(progress: ReplayProgress) -> None:
            for text in progress.missing:
                said.put_nowait(text)

        driver = desk(shop).driver(operation.id, listen)
        driving = asyncio.create_task(driver.run())
        await shop.value_becomes("select count(*)::int from operation_event where state = 'started'", 1)
        shop.rows("delete from consumer")
        async with asyncio.timeout(60):
            while "has no checkpoint" not in await said.get():
                pass
        driver.stopping.set()
        await driving


async def test_letters_that_succeed_after_a_takeover_are_no_suspects(shop: Shop) -> None:
    fragile = Fragile(shop, retry_count=2)
    place_in_log(shop, ("o-1", 1))
    await fragile.work()
    async with worker_on(shop, fragile.consumer, lease_seconds=1.0) as worker:
        await kill(worker)
    shop.rows("update consumer set leased_until = now() - interval '1 s'")
    for _ in range(4):
        async with worker_on(shop, fragile.consumer):
            done = await replay(shop, Selection(from_position=1), to="index", again=True)
            assert done.failed == 0, letters(shop, "status, error_class")
            assert shop.value("select suspect_position from consumer") is None


async def test_a_worker_that_hands_over_leaves_no_suspect_behind(shop: Shop) -> None:
    fragile = Fragile(shop)
    await fragile.work()
    async with worker_on(shop, fragile.consumer):
        shop.rows("update consumer set suspect_position = 1, suspect_attempts = 1")
    assert shop.rows("select suspect_position, suspect_attempts from consumer") == [(None, 0)]


@pytest.mark.parametrize("status", ["resolved", "discarded"])
async def test_an_event_sent_again_after_its_letter_was_dealt_with_has_all_its_attempts(
    shop: Shop, status: str
) -> None:
    fragile = Fragile(shop, 1, retry_count=2)
    place_in_log(shop, ("o-1", 1))
    await fragile.work()
    shop.rows("update dead_letter_events set status = %s, next_retry_at = null", (status,))
    shop.rows(SEND_AGAIN)
    append(shop)
    await fragile.work()
    assert letters(shop, "status, attempts, jsonb_array_length(history)") == [("parked", 6, 6)]


async def test_an_abort_brings_the_former_attempts_back(shop: Shop) -> None:
    fragile = Fragile(shop, 1, retry_count=2)
    place_in_log(shop, ("o-1", 1))
    await fragile.work()
    await desk(shop).retry(Selection(consumer="index"))
    await fragile.work()
    assert letters(shop, "attempts, attempts_before, jsonb_array_length(history)") == [(6, 3, 6)]
    operation = await desk(shop).start(Selection(consumer="index"))
    driving, driver = await fed(shop, operation)
    assert letters(shop, "status, attempts, attempts_before") == [("retrying", 6, 6)]
    driver.stopping.set()
    await driving
    ended = await desk(shop).abort(operation.id)
    assert (ended.status, ended.failed) == ("aborted", 0)
    assert letters(shop, "status, attempts, attempts_before") == [("parked", 6, 3)]


async def test_a_retry_says_who_is_missing(shop: Shop) -> None:
    fragile = Fragile(shop, 1)
    (event_id,) = place_in_log(shop, ("o-1", 1))
    await fragile.work()
    chosen = Selection(event_ids=(event_id,))
    alone = await desk(shop).retry(chosen)
    rest = "update dead_letter_events set status = 'parked', next_retry_at = null"
    shop.rows(rest)
    shop.rows("update consumer set paused = true")
    paused = await desk(shop).retry(chosen)
    shop.rows(rest)
    shop.rows("update consumer set paused = false")
    async with worker_on(shop, fragile.consumer, lease_seconds=600.0):
        await shop.signals.wait("consumer.idle")
        attended = await desk(shop).retry(chosen)
    assert list(alone.missing) == ["consumer 'index' has no worker: start `aftercommit worker index`"]
    assert list(paused.missing) == ["consumer 'index' is paused: run `aftercommit consumers resume index`"]
    assert list(attended.missing) == []
