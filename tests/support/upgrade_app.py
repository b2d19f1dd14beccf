"""The shop during an upgrade, as `tests.support.upgrade_app:outbox`: its consumer writes down what it is given."""

from collections.abc import Sequence
from typing import Any

import psycopg

from aftercommit.event.envelope import Event
from tests.support.shop import OrderPlaced, shop_outbox

outbox = shop_outbox()


@outbox.on(OrderPlaced, consumer="recorder", batch=True)
async def record(events: Sequence[Event[OrderPlaced]], connection: psycopg.AsyncConnection[Any]) -> None:
    """One row for each event, in the order in which they were handled."""
    async with connection.cursor() as cursor:
        rows = [(event.payload.order_id, event.payload.number) for event in events]
        await cursor.executemany("insert into public.recorded (order_id, number) values (%s, %s)", rows)
