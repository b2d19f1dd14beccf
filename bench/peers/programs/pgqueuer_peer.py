"""pgqueuer on asyncpg."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer.core.qm import QueueManager
from pgqueuer.queries import Queries

from bench.peers.programs.protocol import ORDERS, Arrivals, AsyncProgram, Tally, serve

ENTRYPOINT = "order_placed"
BATCH = 500


class Pgqueuer(AsyncProgram):
    """Jobs with the payload as JSON bytes."""

    settings = f"asyncpg, uvloop, batch_size={BATCH}"
    tables = ("orders", "pgqueuer", "pgqueuer_log", "pgqueuer_statistics")
    undone = "select exists (select from pgqueuer)"

    async def open(self) -> None:
        connection = await asyncpg.connect(self.dsn)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.execute(ORDERS)
        await connection.close()

    async def connect(self) -> Any:
        connection = await asyncpg.connect(self.dsn)
        return connection, Queries.from_asyncpg_connection(connection)

    async def transact(self, connection: Any, event: bool) -> float:
        connection, queries = connection
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("insert into orders (customer, total) values ($1, $2)", "customer-17", 12500)
        if event:
            await queries.enqueue(ENTRYPOINT, json.dumps(self.payload).encode())
        started = time.perf_counter()
        await transaction.commit()
        return started

    async def bulk(self, events: int) -> None:
        [(connection, queries)] = await self.connected(1)
        async with connection.transaction():
            payloads = [json.dumps(self.payload).encode() for _ in range(events)]
            await queries.enqueue([ENTRYPOINT] * events, payloads, [0] * events)

    @asynccontextmanager
    async def working(self, told: Tally | Arrivals) -> AsyncIterator[None]:
        connection = await asyncpg.connect(self.dsn)
        manager = QueueManager(Queries.from_asyncpg_connection(connection))

        @manager.entrypoint(ENTRYPOINT)
        async def handle(job: Any) -> None:
            told.one()

        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=5)))
            yield
            manager.shutdown.set()
        await connection.close()

    async def is_true(self, query: str) -> bool:
        [(connection, _)] = await self.connected(1)
        return bool(await connection.fetchval(query))

    async def close(self) -> None:
        for connection, _ in self._connections:
            await connection.close()


if __name__ == "__main__":
    serve(Pgqueuer)
