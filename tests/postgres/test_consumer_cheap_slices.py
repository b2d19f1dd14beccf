"""What a slice of small handlers does not pay for."""

import asyncio
import time
from typing import Any

import pytest

from aftercommit.consumer.runner import Runner
from aftercommit.consumer.slices import Query, prepare
from aftercommit.event.envelope import Event
from aftercommit.postgres.arrays import uuid_array
from aftercommit.postgres.handler_connections import ConsumerConnections
from tests.support.consuming import BLOCKED_AT_INBOX, handle_all, numbered, outbox_records, place_in_log
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


async def test_only_handlers_count_for_the_time_of_a_slice(shop: Shop) -> None:
    """Slices would become ever smaller where they wait for their turn, or where BEGIN and COMMIT take long."""
    consumer = shop.outbox.consumer("index")

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        return

    connections = ConsumerConnections(shop.database, 1)
    [event_id] = shop.publish(OrderPlaced("o-1", 1))
    items = prepare(consumer, outbox_records(shop), attempt=1)
    parameters = {"consumer": "index", "ids": uuid_array([event_id]), "patience": "10000"}
    with shop.connect() as other:
        other.execute("insert into shop.processed_events (event_id, consumer_name) values (%s, 'index')", (event_id,))
        slices = Runner(shop.outbox, consumer, connections)
        running = asyncio.create_task(slices.slice(items, Query("begin_unfenced_slice", parameters), lambda _: []))
        await shop.value_becomes(BLOCKED_AT_INBOX, 1)
        began = time.monotonic()
        other.rollback()
    result = await running
    assert len(result.handled) == 1
    assert 0 < result.seconds <= time.monotonic() - began
    await connections.close()
