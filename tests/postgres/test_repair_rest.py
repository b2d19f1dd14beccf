"""Repair touches what is at rest, and handles nothing twice: under way, spared, given up and delivered meanwhile."""

import json

import pytest

from aftercommit.errors import RepairError
from aftercommit.operate import RELAY, Selection
from tests.postgres.test_repair_letters import carry_out, deliver_by_bus, parked_behind_bus, parked_by_relay
from tests.support.consuming import bus_on, inbox, letters, numbered, place_in_log, worker_on
from tests.support.repairing import Fragile, desk, outbox_rows, replay
from tests.support.shop import Shop

ALL = Selection(from_position=1)
PARKED = Selection(statuses=("parked",))


@pytest.mark.thorough
async def test_a_discarded_letter_is_not_wanted_again_while_its_event_is_on_its_way(shop: Shop) -> None:
    """Its consumer is passed by in this delivery, and would count as having taken it."""
    _, fragile = await parked_behind_bus(shop, 1)
    (event_id,) = (row[0] for row in letters(shop, "event_id"))
    await desk(shop).discard(PARKED, reason="not wanted")
    left = await desk(shop).retry(Selection(event_ids=(event_id,)))
    assert (left.done, ["may be in delivery" in (each.note or "") for each in left.left_alone]) == (0, [True])
    await deliver_by_bus(shop)
    fragile.mend()
    await desk(shop).retry(Selection(event_ids=(event_id,)))
    await deliver_by_bus(shop)
    assert letters(shop, "status") == [("resolved",)]
    assert fragile.ledger.numbers().count(1) == 2


@pytest.mark.thorough
async def test_a_replay_that_handles_a_discarded_event_resolves_its_letter(shop: Shop) -> None:
    _, fragile = await parked_behind_bus(shop, 1)
    (event_id,) = (row[0] for row in letters(shop, "event_id"))
    await desk(shop).discard(PARKED, reason="not wanted")
    await deliver_by_bus(shop)
    fragile.mend()
    async with bus_on(shop):
        done = await replay(shop, Selection(event_ids=(event_id,)), to="index", again=True)
    assert (done.status, done.done) == ("done", 1)
    assert letters(shop, "status") == [("resolved",)]
    again = await desk(shop).retry(Selection(event_ids=(event_id,)))
    assert again.done == 0
    assert outbox_rows(shop) == []


@pytest.mark.thorough
async def test_discarding_what_was_to_be_handled_again_counts_it_as_handled(shop: Shop) -> None:
    fragile = Fragile(shop)
    place_in_log(shop, ("o-1", 1))
    await fragile.work()
    fragile.bad.add(1)
    async with worker_on(shop, fragile.consumer):
        failed = await replay(shop, ALL, to="index", again=True)
        await desk(shop).discard(PARKED, reason="once was enough")
        fragile.mend()
        plain = await replay(shop, ALL, to="index")
    assert (failed.failed, plain.skipped) == (1, 1)
    assert inbox(shop, "index") == 1
    assert fragile.ledger.numbers() == [1]


async def test_that_a_consumer_keeps_no_inbox_is_known_without_its_declaration(shop: Shop) -> None:
    fragile = Fragile(shop, inbox=False)
    place_in_log(shop, *numbered(3))
    await fragile.work()
    with pytest.raises(RepairError, match="inbox=False"):
        await desk(shop, declared=False).start(ALL, to="index")


@pytest.mark.thorough
async def test_two_replays_of_one_delivery_publish_it_once(shop: Shop) -> None:
    transport, _ = await parked_by_relay(shop)
    first = await desk(shop).start(Selection(consumer=RELAY))
    second = await desk(shop).start(Selection(consumer=RELAY))
    driver = desk(shop).driver(first.id)
    driver.stopping.set()
    await driver.run()
    await desk(shop).retry(Selection(consumer=RELAY))
    await carry_out(shop, transport)
    for operation in (first, second):
        ended = await desk(shop).drive(operation.id)
        assert (ended.status, ended.skipped) == ("done", 1)
    assert shop.value("select count(*)::int from log") == 1


async def test_what_was_discarded_since_a_replay_was_started_stays_discarded(shop: Shop) -> None:
    fragile = Fragile(shop, 1)
    place_in_log(shop, ("o-1", 1))
    await fragile.work()
    operation = await desk(shop).start(Selection(consumer="index"))
    await desk(shop).discard(PARKED, reason="not wanted")
    ended = await desk(shop).drive(operation.id)
    (problem,) = await desk(shop).problems(operation.id)
    assert (ended.status, ended.skipped) == ("done", 1)
    assert problem.note == "was discarded since the replay was started"
    assert letters(shop, "status") == [("discarded",)]


async def test_a_replay_of_nothing_has_ended(shop: Shop) -> None:
    operation = await desk(shop).start(Selection(consumer="nobody"))
    assert (operation.status, operation.total, operation.is_finished) == ("done", 0, True)


async def test_the_record_of_operations_shows_no_payload(shop: Shop) -> None:
    fragile = Fragile(shop, 1)
    (event_id,) = place_in_log(shop, ("o-1", 1))
    await fragile.work()
    await desk(shop).edit(event_id, json.dumps({"order_id": "o-1", "number": 1, "note": "new"}).encode())
    (operation,) = await desk(shop).operations()
    assert operation.detail == {}
    (letter,) = await desk(shop).letter(event_id)
    assert letter.deeds[0].former_payload is not None
