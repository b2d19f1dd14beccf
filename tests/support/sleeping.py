"""A worker in a long statement: `python -m tests.support.sleeping DSN CONCURRENCY` waits in it until it is killed."""

import asyncio
import sys
from typing import Any

from aftercommit.consumer import LogWorker, WorkerSettings
from aftercommit.event.envelope import Event
from tests.support.shop import OrderPlaced, Shop

SLEEP = "select pg_sleep(600)"


async def main(dsn: str, concurrency: int) -> None:
    """Until death."""
    shop = Shop(dsn)
    consumer = shop.outbox.consumer("index", concurrency=concurrency, timeout=600.0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await connection.execute(SLEEP)

    async with LogWorker(shop.outbox, consumer, shop.database, settings=WorkerSettings(lease_seconds=0.5)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
