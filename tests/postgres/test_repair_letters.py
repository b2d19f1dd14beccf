"""Dead letters at the repair desk: looked at, retried, edited, discarded; of log and bus consumers and of a relay."""

import json
import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from aftercommit.errors import InvalidPayload, LetterNotFound, RepairError, SelectionError
from aftercommit.operate import RELAY, TO_TRANSPORT, Selection
from tests.support.consuming import append, bus_on, inbox, letters, numbered, place_in_log, settled, worker_on
from tests.support.recording import RecordingTransport
from tests.support.relays import relay_on
from tests.support.repairing import Fragile, desk, orders_in_ledger, outbox_rows, replay
from tests.support.shop import OrderPlaced, Shop, shop_outbox

PARKED = Selection(statuses=("parked",))


async def parked_in_log(shop: Shop, *bad: int, count: int = 5, **options: Any) -> Fragile:
    """A log consumer that has parked these numbers of one order."""
    fragile = Fragile(shop, *bad, **options)
    place_in_log(shop, *numbered(count))
    await fragile.work()
    return fragile


async def parked_behind_bus(shop: Shop, *bad: int, count: int = 3) -> tuple[Fragile, Fragile]:
    """Two consumers behind the bus: one takes everything, one has parked these numbers."""
    shop.outbox = shop_outbox(max_attempts=1)
    good = Fragile(shop, name="good")
    fragile = Fragile(shop, *bad, ledger=good.ledger)
    for number in range(count):
        shop.place(number=number)
    await deliver_by_bus(shop)
    return good, fragile


async def deliver_by_bus(shop: Shop) -> None:
    """Until nothing in the outbox is pending."""
    async with bus_on(shop):
        await shop.value_becomes("select count(*)::int from outbox where status = 'pending'", 0)


async def parked_by_relay(shop: Shop) -> tuple[RecordingTransport, UUID]:
    """An event that the transport refuses."""
    shop.outbox = shop_outbox(max_attempts=1)
    transport = RecordingTransport(lambda record: ValueError("no route"))
    event_id = shop.place(number=7)
    async with relay_on(shop, transport=transport):
        await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'parked'", 1)
    transport.refuse = None
    return transport, event_id


async def carry_out(shop: Shop, transport: RecordingTransport) -> None:
    """Until nothing is pending."""
    async with relay_on(shop, transport=transport):
        await shop.value_becomes("select count(*)::int from outbox where status = 'pending'", 0)


class TestLooking:
    async def test_letters_are_listed_without_their_payloads_and_counted(self, shop: Shop) -> None:
        await parked_in_log(shop, 1, 3)

        page = await desk(shop).letters(limit=1)

        assert (page.total, len(page.letters)) == (2, 1)
        assert page.letters[0].consumer == "index"
        assert not hasattr(page.letters[0], "payload")
        assert [each.error for each in (await desk(shop).letters(offset=1)).letters] == ["order 1 is bad"]

    async def test_groups_join_errors_that_differ_in_numbers_alone(self, shop: Shop) -> None:
        await parked_in_log(shop, 1, 3)

        (group,) = await desk(shop).groups()

        assert (group.consumer, group.error_class, group.error) == ("index", "ValueError", "order # is bad")
        assert (group.count, group.parked, list(group.event_types)) == (2, 2, ["order.placed"])

    async def test_one_letter_tells_all_its_attempts_its_payload_and_its_scope(self, shop: Shop) -> None:
        await parked_in_log(shop, 1, retry_count=2)
        (letter,) = (await desk(shop).letters()).letters

        (detail,) = await desk(shop, declared=False).letter(letter.event_id)

        assert [attempt.error for attempt in detail.history] == ["order 1 is bad"] * 3
        assert json.loads(detail.payload) == {"order_id": "o-1", "number": 1, "note": ""}
        assert (detail.scope, detail.positions, detail.outbox_status) == ({"tenant_id": "acme"}, [2], None)

    @pytest.mark.parametrize(
        ("selection", "count"),
        [
            (Selection(consumer="index"), 2),
            (Selection(consumer="other"), 0),
            (Selection(error_class="ValueError", error="order 3"), 1),
            (Selection(error="100%"), 0),
            (Selection(statuses=("resolved",)), 0),
            (Selection(types=("order.placed", "order.paid"), aggregate_type="order", aggregate_id="o-1"), 2),
            (Selection(scope={"tenant_id": "acme"}), 2),
            (Selection(scope={"tenant_id": "other"}), 0),
            (Selection(from_position=3, to_position=4), 1),
            (Selection(since=datetime(2020, 1, 1, tzinfo=UTC), until=datetime(2021, 1, 1, tzinfo=UTC)), 0),
            (Selection(event_ids=(uuid4(),)), 0),
        ],
    )
    async def test_a_selection_narrows_by_all_that_it_says(self, shop: Shop, selection: Selection, count: int) -> None:
        await parked_in_log(shop, 1, 3)

        assert (await desk(shop).letters(selection)).total == count
        assert Selection.from_json(json.loads(json.dumps(selection.as_json()))) == selection

    async def test_a_scope_that_the_outbox_does_not_have_is_refused(self, shop: Shop) -> None:
        with pytest.raises(SelectionError, match=r"outbox 'shop' has no scope 'user_id': it has tenant_id"):
            await desk(shop).letters(Selection(scope={"user_id": 1}))

    async def test_an_unknown_letter_is_not_found(self, shop: Shop) -> None:
        with pytest.raises(LetterNotFound, match="has no dead letter"):
            await desk(shop).letter(uuid4())


class TestOfLogConsumers:
    async def test_a_retry_gives_all_attempts_again_and_keeps_the_history(self, shop: Shop) -> None:
        fragile = await parked_in_log(shop, 1, 3, retry_count=1)
        fragile.bad.remove(1)

        done = await desk(shop).retry(PARKED, reason="mended")

        assert (done.done, list(done.left_alone)) == (2, [])
        await fragile.work()
        assert letters(shop, "status, attempts, jsonb_array_length(history)") == [("resolved", 2, 2), ("parked", 4, 4)]
        assert fragile.ledger.numbers() == [0, 2, 4, 1]

    async def test_a_retry_wakes_the_worker_at_work(self, shop: Shop) -> None:
        fragile = await parked_in_log(shop, 1)
        fragile.mend()
        async with worker_on(shop, fragile.consumer):
            await desk(shop).retry(PARKED)
            await settled(shop, "index")
        assert letters(shop, "status") == [("resolved",)]

    async def test_a_discarded_letter_stays_on_record_and_can_be_retried(self, shop: Shop) -> None:
        fragile = await parked_in_log(shop, 1)
        await desk(shop).discard(PARKED, reason="a test order")
        await fragile.work()
        assert letters(shop, "status") == [("discarded",)]

        fragile.mend()
        event_id = shop.value("select event_id from dead_letter_events")
        await desk(shop).retry(Selection(event_ids=(event_id,)))
        await fragile.work()

        assert letters(shop, "status") == [("resolved",)]
        (detail,) = await desk(shop).letter(event_id)
        assert [(deed.kind, deed.by, deed.reason) for deed in detail.deeds] == [
            ("discard", "tester", "a test order"),
            ("retry", "tester", ""),
        ]

    async def test_discarding_frees_what_waits_behind_it_under_strict_ordering(self, shop: Shop) -> None:
        fragile = await parked_in_log(shop, 1, ordering="strict")
        assert letters(shop, "status") == [("parked",), ("waiting",), ("waiting",), ("waiting",)]

        await desk(shop).discard(PARKED, reason="given up")
        async with worker_on(shop, fragile.consumer):
            await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'resolved'", 3)

        assert fragile.ledger.numbers() == [0, 2, 3, 4]

    async def test_an_edited_payload_is_handled_and_the_log_keeps_the_old_one(self, shop: Shop) -> None:
        fragile = await parked_in_log(shop, 1)
        event_id = shop.value("select event_id from dead_letter_events")

        await desk(shop).edit(event_id, b'{"order_id": "o-1", "number": 11, "note": "corrected"}', reason="typo")
        await fragile.work()

        assert fragile.ledger.numbers() == [0, 2, 3, 4, 11]
        assert shop.value("select (payload->>'number')::int from log where id = %s", (event_id,)) == 1
        (detail,) = await desk(shop).letter(event_id)
        (deed,) = detail.deeds
        assert json.loads(deed.former_payload or "")["number"] == 1
        assert deed.kind == "edit"

    @pytest.mark.parametrize(
        ("payload", "declared", "said"),
        [
            (b"{", True, "not JSON"),
            (b"[1]", False, "must be a JSON object"),
            (b'{"order_id": "\\u0000"}', False, "NUL|null character"),
            (b'{"number": 1}', True, "order_id"),
            (b'{"order_id": "o-1", "number": "one"}', True, "number"),
            (b'{"order_id": "o-2", "number": 1}', True, "names order 'o-2', but the event belongs to 'o-1'"),
        ],
    )
    async def test_a_payload_that_is_none_is_refused(
        self, shop: Shop, payload: bytes, declared: bool, said: str
    ) -> None:
        await parked_in_log(shop, 1)
        event_id = shop.value("select event_id from dead_letter_events")

        with pytest.raises((InvalidPayload, Exception), match=rf"(?i){said}"):
            await desk(shop, declared=declared).edit(event_id, payload)

        assert letters(shop, "status, payload->>'number'") == [("parked", "1")]

    async def test_a_dry_run_counts_and_changes_nothing(self, shop: Shop) -> None:
        await parked_in_log(shop, 1, 3)
        event_id = shop.value("select min(event_id::text) from dead_letter_events")

        counted = [
            await desk(shop).retry(PARKED, dry_run=True),
            await desk(shop).discard(PARKED, reason="why", dry_run=True),
            await desk(shop).edit(UUID(event_id), b'{"order_id": "o-1"}', dry_run=True),
        ]

        assert [each.done for each in counted] == [2, 2, 1]
        assert letters(shop, "status") == [("parked",), ("parked",)]
        assert shop.value("select count(*) from operation") == 0

    async def test_what_is_too_wide_or_has_no_reason_is_refused(self, shop: Shop) -> None:
        with pytest.raises(RepairError, match="no letters chosen"):
            await desk(shop).retry(Selection())
        with pytest.raises(RepairError, match="needs a reason"):
            await desk(shop).discard(PARKED, reason=" ")
        with pytest.raises(RepairError, match="does not accept letters that are resolved"):
            await desk(shop).retry(Selection(statuses=("resolved",)))

    async def test_resolved_letters_are_told_in_one_line(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        fragile = await parked_in_log(shop, 1, 3)
        fragile.mend()
        await desk(shop).retry(PARKED)
        await fragile.work()
        (said,) = [record.__dict__ for record in caplog.records if record.getMessage() == "dead_letters_resolved"]
        assert (said["consumer"], said["letters"], said["skipped"]) == ("index", 2, 0)
        assert said["event_ids"] == [str(event_id) for (event_id,) in letters(shop, "event_id")]

    async def test_resolved_letters_that_were_handled_before_are_counted_apart(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        fragile = await parked_in_log(shop, 1, 3)
        handled = letters(shop, "event_id")[0]
        shop.rows("insert into processed_events (event_id, consumer_name) values (%s, 'index')", handled)
        fragile.mend()
        await desk(shop).retry(PARKED)
        await fragile.work()
        (said,) = [record.__dict__ for record in caplog.records if record.getMessage() == "dead_letters_resolved"]
        assert (said["letters"], said["skipped"]) == (2, 1)
        assert fragile.ledger.numbers() == [0, 2, 4, 3]


class TestBehindTheBus:
    async def test_a_retry_delivers_again_and_those_who_had_taken_it_are_skipped(self, shop: Shop) -> None:
        _, fragile = await parked_behind_bus(shop, 1)
        assert [status for _, status, _ in outbox_rows(shop)] == ["failed"]
        fragile.mend()

        done = await desk(shop).retry(PARKED)
        await deliver_by_bus(shop)

        assert done.done == 1
        assert letters(shop, "consumer_name, status") == [("index", "resolved")]
        assert sorted(fragile.ledger.numbers()) == [0, 0, 1, 1, 2, 2]
        assert outbox_rows(shop) == []

    async def test_a_discarded_letter_lets_the_event_go_on_to_the_log(self, shop: Shop) -> None:
        _, fragile = await parked_behind_bus(shop, 1)

        await desk(shop).discard(Selection(consumer="index"), reason="not for us")
        await deliver_by_bus(shop)

        assert letters(shop, "status") == [("discarded",)]
        assert sorted(fragile.ledger.numbers()) == [0, 0, 1, 2, 2]
        assert sorted(number for _, _, number in shop.log()) == [0, 1, 2]
        assert inbox(shop, "index") == 3

    async def test_a_discarded_letter_can_still_be_retried(self, shop: Shop) -> None:
        _, fragile = await parked_behind_bus(shop, 1)
        await desk(shop).discard(PARKED, reason="not for us")
        await deliver_by_bus(shop)
        fragile.mend()

        event_id = shop.value("select event_id from dead_letter_events")
        await desk(shop).retry(Selection(event_ids=(event_id,)))
        await deliver_by_bus(shop)

        assert letters(shop, "status") == [("resolved",)]
        assert sorted(fragile.ledger.numbers()) == [0, 0, 1, 1, 2, 2]

    async def test_one_of_two_discarded_letters_does_not_send_the_event_on_yet(self, shop: Shop) -> None:
        good, _ = await parked_behind_bus(shop, 1)
        event_id = shop.place(number=9)
        good.bad.add(9)
        third = Fragile(shop, 9, name="third", ledger=good.ledger)
        await deliver_by_bus(shop)
        assert third.name in [name for (name,) in letters(shop, "consumer_name")]

        await desk(shop).discard(Selection(event_ids=(event_id,), consumer="good"), reason="spared")
        await deliver_by_bus(shop)
        assert (event_id, "failed", 1) in outbox_rows(shop)

        await desk(shop).discard(Selection(event_ids=(event_id,), consumer="third"), reason="spared")
        await deliver_by_bus(shop)
        assert 9 in [number for _, _, number in shop.log()]

    async def test_an_edit_corrects_the_event_before_it_is_published(self, shop: Shop) -> None:
        _, fragile = await parked_behind_bus(shop, 1)
        event_id = shop.value("select event_id from dead_letter_events")

        await desk(shop).edit(event_id, b'{"order_id": "o-1", "number": 5, "note": ""}')
        await deliver_by_bus(shop)

        assert letters(shop, "status") == [("resolved",)]
        assert sorted(number for _, _, number in shop.log()) == [0, 2, 5]
        # One consumer had taken the event as it was.
        assert sorted(fragile.ledger.numbers()) == [0, 0, 1, 2, 2, 5]


class TestOfARelay:
    async def test_a_retry_delivers_again(self, shop: Shop) -> None:
        transport, event_id = await parked_by_relay(shop)

        await desk(shop).retry(Selection(consumer=RELAY))
        await carry_out(shop, transport)

        assert transport.ids[-1] == event_id
        assert letters(shop, "status") == [("resolved",)]
        assert [number for _, _, number in shop.log()] == [7]

    async def test_a_discarded_delivery_leaves_the_outbox_and_its_letter_keeps_it(self, shop: Shop) -> None:
        transport, event_id = await parked_by_relay(shop)

        await desk(shop).discard(Selection(consumer=RELAY), reason="no such partner")

        assert outbox_rows(shop) == []
        assert letters(shop, "event_id, status, payload->>'number', tenant_id") == [
            (event_id, "discarded", "7", "acme")
        ]

        await desk(shop).retry(Selection(event_ids=(event_id,)))
        await carry_out(shop, transport)
        assert transport.ids[-1] == event_id
        assert letters(shop, "status") == [("resolved",)]
        assert [number for _, _, number in shop.log()] == [7]

    async def test_a_pending_delivery_is_not_discarded_on_its_way(self, shop: Shop) -> None:
        _, event_id = await parked_by_relay(shop)
        await desk(shop).retry(Selection(consumer=RELAY))

        left = await desk(shop).discard(Selection(event_ids=(event_id,)), reason="too late")

        assert left.done == 0
        assert "may be in delivery" in (left.left_alone[0].note or "")
        assert outbox_rows(shop) == [(event_id, "pending", 0)]

    async def test_an_edit_corrects_what_is_delivered(self, shop: Shop) -> None:
        transport, event_id = await parked_by_relay(shop)

        await desk(shop).edit(event_id, b'{"order_id": "o-1", "number": 70, "note": ""}')
        await carry_out(shop, transport)

        assert json.loads(transport.records[-1].payload)["number"] == 70
        assert [number for _, _, number in shop.log()] == [70]

    async def test_what_the_transport_refuses_of_a_published_event_is_not_edited(self, shop: Shop) -> None:
        """The log would say two things of one event."""
        transport, event_id = await parked_by_relay(shop)
        await desk(shop).retry(Selection(consumer=RELAY))
        await carry_out(shop, transport)
        transport.refuse = lambda record: ValueError("no route")
        async with relay_on(shop, transport=transport):
            await replay(shop, Selection(event_ids=(event_id,)), to=TO_TRANSPORT)
        with pytest.raises(LetterNotFound, match="is in the log, which cannot be changed"):
            await desk(shop).edit(event_id, b'{"order_id": "o-1", "number": 5, "note": ""}')
        assert letters(shop, "status, payload->>'number'") == [("parked", "7")]

    async def test_a_discarded_delivery_that_was_made_in_another_way_is_resolved(self, shop: Shop) -> None:
        transport, event_id = await parked_by_relay(shop)
        await desk(shop).discard(Selection(consumer=RELAY), reason="later")
        with shop.connect() as connection:
            draft = shop.outbox.registry.named("order.placed").draft(OrderPlaced("o-1", 7), event_id=event_id)
            shop.outbox.publish(connection, draft, tenant_id="acme")
        await carry_out(shop, transport)

        left = await desk(shop).retry(Selection(event_ids=(event_id,)))

        assert left.done == 0
        assert letters(shop, "status") == [("resolved",)]
        assert outbox_rows(shop) == []


async def test_letters_of_strict_consumers_are_retried_in_order_whatever_is_chosen(shop: Shop) -> None:
    fragile = await parked_in_log(shop, 1, count=8, ordering="strict")
    fragile.mend()
    await desk(shop).retry(PARKED)
    await fragile.work()
    assert orders_in_ledger(fragile.ledger) == {"o-1": list(range(8))}


async def test_a_parked_letter_stops_those_behind_it_also_when_one_before_it_is_retried(shop: Shop) -> None:
    fragile = await parked_in_log(shop, 1, 3, count=6, ordering="strict")
    await desk(shop).discard(PARKED, reason="later")
    async with worker_on(shop, fragile.consumer):
        await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'parked'", 1)
    first = shop.value("select event_id from dead_letter_events where status = 'discarded'")
    fragile.mend()

    await desk(shop).retry(Selection(event_ids=(first,)))
    async with worker_on(shop, fragile.consumer):
        await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'resolved'", 2)

    assert fragile.ledger.numbers() == [0, 2, 1]
    assert letters(shop, "status") == [("resolved",), ("resolved",), ("parked",), ("waiting",), ("waiting",)]


async def test_an_event_sent_again_goes_the_way_of_its_open_letter(shop: Shop) -> None:
    """At its new position it finds a parked letter: tried in its turn, resolved, and handled once."""
    fragile = await parked_in_log(shop, 1, ordering="strict")
    fragile.mend()
    again = shop.value("select event_id from dead_letter_events where status = 'parked'")
    with shop.connect() as connection:
        draft = shop.outbox.registry.named("order.placed").draft(OrderPlaced("o-1", 1), event_id=again)
        shop.outbox.publish(connection, draft, tenant_id="acme")
    place_in_log(shop, ("o-1", 5))
    await fragile.work()
    assert orders_in_ledger(fragile.ledger) == {"o-1": [0, 1, 2, 3, 4, 5]}
    assert {status for (status,) in letters(shop, "status")} == {"resolved"}


async def test_letters_with_large_payloads_are_loaded_a_few_at_a_time(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aftercommit.consumer.dead_letters.MAX_BYTES", 100_000)
    fragile = Fragile(shop, *range(6))
    shop.publish(*(OrderPlaced("o-1", number, "x" * 60_000) for number in range(6)))
    append(shop)
    await fragile.work()
    fragile.mend()
    await desk(shop).retry(PARKED)
    await fragile.work()
    assert fragile.ledger.numbers() == list(range(6))
    assert [detail["letters"] for detail in shop.signals.details["consumer.retrying"]] == [2, 2, 2]
