"""faststream-outbox on SQLAlchemy and asyncpg."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy
from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from bench.peers.programs.protocol import ORDERS, Arrivals, AsyncProgram, Tally, serve

QUEUE = "orders"
WORKERS = 1
PLACE = sqlalchemy.text("insert into orders (customer, total) values (:customer, :total)")


class FaststreamOutbox(AsyncProgram):
    """Messages published on the caller's AsyncSession."""

    settings = (
        "SQLAlchemy on asyncpg, uvloop, fetch_batch_size=500, terminal_flush_batch_size=100, "
        f"max_workers={WORKERS}, apply_types=False"
    )
    tables = ("orders", "outbox")
    undone = "select exists (select from outbox)"

    async def open(self) -> None:
        metadata = sqlalchemy.MetaData()
        self._table = make_outbox_table(metadata, "outbox")
        [engine] = await self.connected(1)
        self._publishing = OutboxBroker(engine, outbox_table=self._table, logger=None)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.execute(sqlalchemy.text(ORDERS))

    def _engine(self, size: int) -> AsyncEngine:
        # As an address and not through a function that connects: its LISTEN connection is made from the address.
        address = self.dsn.replace("postgresql://", "postgresql+asyncpg://", 1)
        return create_async_engine(address, pool_size=size, max_overflow=0)

    async def connect(self) -> Any:
        return self._engine(1)

    async def transact(self, connection: Any, event: bool) -> float:
        async with AsyncSession(connection) as session:
            await session.execute(PLACE, {"customer": "customer-17", "total": 12500})
            if event:
                await self._publishing.publish(self.payload, queue=QUEUE, session=session)
            started = time.perf_counter()
            await session.commit()
        return started

    async def bulk(self, events: int) -> None:
        [engine] = await self.connected(1)
        async with AsyncSession(engine) as session:
            await self._publishing.publish_batch(*[self.payload] * events, queue=QUEUE, session=session)
            await session.commit()

    @asynccontextmanager
    async def working(self, told: Tally | Arrivals) -> AsyncIterator[None]:
        engine = self._engine(WORKERS + 1)
        broker = OutboxBroker(engine, outbox_table=self._table, logger=None, apply_types=False)

        @broker.subscriber(QUEUE, max_workers=WORKERS, fetch_batch_size=500, terminal_flush_batch_size=100)
        async def handle(message: Any) -> None:
            told.one()

        async with broker:
            yield
        await engine.dispose()

    async def is_true(self, query: str) -> bool:
        [engine] = await self.connected(1)
        async with engine.begin() as connection:
            return bool((await connection.execute(sqlalchemy.text(query))).scalar())

    async def close(self) -> None:
        for engine in self._connections:
            await engine.dispose()


if __name__ == "__main__":
    serve(FaststreamOutbox)
