"""Strict order while events of an aggregate are read ahead and an operator sends an older one again."""

import asyncio
from typing import Any

from aftercommit.event.envelope import Event
from aftercommit.operate import Selection
from tests.support.consuming import Ledger, place_in_log, settled, worker_on
from tests.support.repairing import desk
from tests.support.shop import OrderPlaced, Shop


async def test_events_in_memory_are_not_overtaken_by_later_ones_while_an_older_one_is_sent_again(shop: Shop) -> None:
    consumer = shop.outbox.consumer("index", concurrency=2, ordering="strict", start="earliest")
    ledger = Ledger(shop)
    held, gate = asyncio.Event(), asyncio.Event()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if event.payload.number == 1:
            held.set()
            await gate.wait()
        await ledger.write(event, connection)

    (first,) = place_in_log(shop, ("o-1", 0))
    async with worker_on(shop, consumer, lease_seconds=1.0):
        await settled(shop, "index")
        # One slice takes some of them; the others wait in memory.
        place_in_log(shop, *(("o-1", number) for number in range(1, 40)))
        await asyncio.wait_for(held.wait(), 60)
        operation = await desk(shop).start(Selection(event_ids=(first,)), to="index", again=True)
        driving = asyncio.ensure_future(desk(shop).drive(operation.id))
        await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'retrying'", 1)
        reading = asyncio.ensure_future(shop.signals.next("consumer.read"))
        await asyncio.sleep(0)
        place_in_log(shop, *(("o-1", number) for number in range(40, 60)))
        await reading
        await shop.signals.next("consumer.heartbeat")
        gate.set()
        assert (await asyncio.wait_for(driving, 60)).done == 1
        await settled(shop, "index")
    numbers = ledger.numbers("o-1")
    assert sorted(numbers) == [0, *range(60)]
    assert [number for number in numbers if number] == list(range(1, 60))


async def test_events_in_memory_wait_behind_an_older_one_that_is_sent_again_and_fails(shop: Shop) -> None:
    """They were read while other aggregates were at work in every slot."""
    consumer = shop.outbox.consumer("index", concurrency=2, ordering="strict", start="earliest", retry_count=0)
    ledger = Ledger(shop)
    held: asyncio.Queue[str] = asyncio.Queue()
    gate = asyncio.Event()
    is_bad = False

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if event.payload.order_id != "o-1":
            held.put_nowait(event.payload.order_id)
            await gate.wait()
        elif is_bad and event.payload.number == 0:
            raise ValueError("bad")
        await ledger.write(event, connection)

    (first,) = place_in_log(shop, ("o-1", 0))
    async with worker_on(shop, consumer, lease_seconds=1.0):
        await settled(shop, "index")
        is_bad = True
        place_in_log(shop, ("slow-1", 0), ("slow-2", 0))
        assert {await asyncio.wait_for(held.get(), 60) for _ in range(2)} == {"slow-1", "slow-2"}
        reading = asyncio.ensure_future(shop.signals.next("consumer.read"))
        await asyncio.sleep(0)
        place_in_log(shop, ("o-1", 1))
        await reading
        operation = await desk(shop).start(Selection(event_ids=(first,)), to="index", again=True)
        driving = asyncio.ensure_future(desk(shop).drive(operation.id))
        await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'waiting'", 1)
        gate.set()
        await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'parked'", 1)
        await settled(shop, "index")
        await asyncio.wait_for(driving, 60)
    assert ledger.numbers("o-1") == [0]
