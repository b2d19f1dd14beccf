"""A worker that an event kills: `python -m tests.support.poisonous DSN` dies in the handler of order number 3."""

import asyncio
import os
import sys
from typing import Any

from aftercommit.consumer import LogWorker, WorkerSettings
from aftercommit.event.envelope import Event
from tests.support.shop import OrderPlaced, Shop

WRITE = "insert into public.ledger (event_id, order_id, number) values (%s, %s, %s)"


async def main(dsn: str) -> None:
    """Until there is nothing to do, or until death."""
    shop = Shop(dsn)
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], connection: Any) -> None:
        connection.execute(WRITE, (event.event_id, event.payload.order_id, event.payload.number))
        if event.payload.number == 3:
            os._exit(9)

    settings = WorkerSettings(lease_seconds=0.5)
    async with LogWorker(shop.outbox, consumer, shop.database, settings=settings, probe=shop.signals):
        await shop.signals.wait("consumer.idle")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
