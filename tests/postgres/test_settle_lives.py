"""What a relay has seen of the log is what was committed: appends that are rolled back, or under way, are no proof."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest

from aftercommit.relay.lanes import Lanes
from aftercommit.relay.settle import Settlement
from tests.support.shop import OrderPlaced, Shop


@pytest.fixture
async def settlement(shop: Shop) -> AsyncIterator[Settlement]:
    """That of a relay which holds every lane."""
    lanes = Lanes(shop.outbox.shape, "relay", 600.0)
    made = Settlement(shop.outbox, lanes.token)
    connection = await shop.database.connect()
    await lanes.tick(connection)
    await made.recognise_server(connection)
    yield made
    await connection.close()


def publish(shop: Shop, *numbers: int) -> list[tuple[UUID, int]]:
    shop.publish(*(OrderPlaced(f"o-{number}", number) for number in numbers))
    return shop.rows("select id, lane from outbox order by seq")


async def test_an_append_that_is_rolled_back_begins_no_life_of_the_log(shop: Shop, settlement: Settlement) -> None:
    [(event, lane)] = publish(shop, 1)
    connection = await shop.database.connect()
    await connection.execute("set lock_timeout = '50ms'")
    with psycopg.connect(shop.dsn) as other:
        other.execute(f"lock table {shop.outbox.shape.schema}.dead_letter_events".encode())
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await settlement.append(connection, [event], [lane], retried=[event])

    await settlement.append(connection, [event], [lane], retried=[event])
    assert await settlement.recognise_server(connection) is None
    assert shop.rows("select position from log") == [(1,)]
    assert shop.value("select count(*) from life") == 1
    await connection.close()


@pytest.mark.thorough
async def test_carriers_that_retry_side_by_side_do_not_take_each_other_for_a_restore(
    shop: Shop, settlement: Settlement
) -> None:
    events = publish(shop, *range(120))
    connections = [await shop.database.connect() for _ in range(4)]

    async def carry(connection: psycopg.AsyncConnection[object], share: list[tuple[UUID, int]]) -> None:
        for event, lane in share:
            await settlement.append(connection, [event], [lane], retried=[event])

    async with asyncio.timeout(60):
        await asyncio.gather(*(carry(each, events[place::4]) for place, each in enumerate(connections)))
    assert shop.value("select max(position) from log") == len(events)
    assert shop.value("select count(*) from life") == 1
    for connection in connections:
        await connection.close()
