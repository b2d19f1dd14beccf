"""What a slice of small handlers does not pay for."""

import asyncio
import time
from typing import Any

import pytest

from aftercommit.postgres.handler_connections import ConsumerConnections
from aftercommit.consumer.runner import Runner
from aftercommit.consumer.slices import Query, prepare
from aftercommit.event.envelope import Event
from aftercommit.postgres.arrays import uuid_array
from tests.support.consuming import handle_all, numbered, outbox_records, place_in_log
from tests.support.shop import OrderPlaced, Shop


@pytest.mark.parametrize("is_async", [True, False])
async def test_handlers_of_a_slice_that_let_go_of_their_connection_get_the_same_one(shop: Shop, is_async: bool) -> None:
    """A new one for every call would also make the slice ask for changed settings and clean up the session."""
    calls_before: list[int] = []
    consumer = shop.outbox.consumer("index")

    def handle_sync(event: Event[OrderPlaced], connection: Any) -> None:
        calls_before.append(vars(connection).get("calls", 0))
        connection.calls = calls_before[-1] + 1

    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        handle_sync(event, connection)

    consumer.on(OrderPlaced)(handle if is_async else handle_sync)
    place_in_log(shop, *numbered(10))
    await handle_all(shop, consumer)
    assert calls_before == list(range(10))


async def test_the_time_of_a_slice_begins_with_its_turn(shop: Shop) -> None:
    """Slices would become ever smaller where several wait for each other."""
    first, go_on = asyncio.Event(), asyncio.Event()
    consumer = shop.outbox.consumer("index", concurrency=1)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        first.set()
        await go_on.wait()

    connections = ConsumerConnections(shop.database, 1)
    runner = Runner(shop.outbox, consumer, connections)
    shop.publish(*(OrderPlaced(order_id, number) for order_id, number in numbered(2)))
    slices = []
    for item in prepare(consumer, outbox_records(shop), attempt=1):
        parameters = {"consumer": "index", "ids": uuid_array([item.record.event_id]), "patience": "1000"}
        begin = Query("begin_unfenced_slice", parameters)
        slices.append(asyncio.create_task(runner.slice([item], begin, lambda *_: [])))
    await first.wait()
    turn = time.monotonic()
    go_on.set()
    await slices[0]
    _, seconds = await slices[1]
    assert seconds <= time.monotonic() - turn
    await connections.close()
