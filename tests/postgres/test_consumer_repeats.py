"""Behind the bus: events that the inbox knows already, beside new ones and in two slices at the same time."""

import asyncio
from typing import Any

import psycopg
import pytest

from aftercommit.consumer import Dispatcher
from aftercommit.event.envelope import Event
from tests.support.consuming import BLOCKED_AT_INBOX, Ledger, inbox, outbox_records
from tests.support.shop import OrderPlaced, Shop


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_repeated_event_among_new_ones_is_skipped(shop: Shop, blocking: bool) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("ledger", retry_count=0)
    consumer.on(OrderPlaced)(ledger.write_sync if blocking else ledger.write)
    dispatcher = Dispatcher(shop.outbox, shop.database)
    for number in (1, 2, 3):
        shop.publish(OrderPlaced("o-1", number))
    records = outbox_records(shop)
    assert await dispatcher.dispatch(records[1:2]) == []
    assert await dispatcher.dispatch(records) == []
    await dispatcher.close()
    assert ledger.numbers() == [2, 1, 3]
    assert inbox(shop, "ledger") == 3


@pytest.mark.parametrize("first_fails", [False, True])
async def test_of_two_slices_with_the_same_event_one_has_its_effect(shop: Shop, first_fails: bool) -> None:
    ledger, go_on, called = Ledger(shop), asyncio.Event(), asyncio.Event()

    async def wait_at_first(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)
        if not called.is_set():
            called.set()
            await go_on.wait()
            if first_fails:
                raise RuntimeError("the first slice fails")

    shop.outbox.consumer("ledger", retry_count=0).on(OrderPlaced)(wait_at_first)
    shop.publish(OrderPlaced("o-1", 1))
    records = outbox_records(shop)
    dispatchers = [Dispatcher(shop.outbox, shop.database) for _ in range(2)]
    first = asyncio.create_task(dispatchers[0].dispatch(records))
    await called.wait()
    second = asyncio.create_task(dispatchers[1].dispatch(records))
    await shop.value_becomes(BLOCKED_AT_INBOX.replace("%%", "%"), 1)
    go_on.set()
    assert len(await first) == first_fails
    assert await second == []
    for dispatcher in dispatchers:
        await dispatcher.close()
    assert ledger.numbers() == [1]
    assert inbox(shop, "ledger") == 1
