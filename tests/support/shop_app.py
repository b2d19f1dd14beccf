"""The shop as an application for the command line: an outbox with consumers, `tests.support.shop_app:outbox`."""

import asyncio
from typing import Any

import psycopg

from aftercommit.event.envelope import Event
from tests.support.shop import OrderPaid, OrderPlaced, shop_outbox

outbox = shop_outbox()
not_an_outbox = "a string"


@outbox.on(OrderPlaced, consumer="order-index")
async def index(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
    """Leaves a row that the test can see."""
    await connection.execute("create table if not exists indexed (order_id text)")
    await connection.execute("insert into indexed values (%s)", (event.payload.order_id,))


@outbox.on(OrderPaid, consumer="slow")
async def never_finish(event: Event[OrderPaid]) -> None:
    """Holds its worker for as long as the consumer's timeout allows."""
    await asyncio.Event().wait()
