"""procrastinate on psycopg."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import procrastinate
import psycopg

from bench.peers.programs.protocol import ORDERS, Arrivals, AsyncProgram, Tally, serve

CONCURRENCY = 20


class Procrastinate(AsyncProgram):
    """Jobs deferred on the caller's connection."""

    settings = f"psycopg, uvloop, concurrency={CONCURRENCY}, delete_jobs='always'"
    tables = ("orders", "procrastinate_jobs", "procrastinate_events", "procrastinate_periodic_defers")
    undone = "select exists (select from procrastinate_jobs)"

    async def open(self) -> None:
        connector = procrastinate.PsycopgConnector(conninfo=self.dsn, min_size=1, max_size=CONCURRENCY + 2)
        # It warns of an app in the main module, which would matter if another program were to find its tasks.
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self._app = procrastinate.App(connector=connector)
        self._told: Tally | Arrivals | None = None

        @self._app.task(name="order_placed")
        async def handle(**payload: Any) -> None:
            assert self._told is not None
            self._told.one()

        self._task = handle
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            await connection.execute(ORDERS)

    async def connect(self) -> Any:
        return await psycopg.AsyncConnection.connect(self.dsn)

    async def transact(self, connection: Any, event: bool) -> float:
        await connection.execute("insert into orders (customer, total) values (%s, %s)", ("customer-17", 12500))
        if event:
            await self._task.configure(connection=connection).defer_async(**self.payload)
        started = time.perf_counter()
        await connection.commit()
        return started

    async def bulk(self, events: int) -> None:
        [connection] = await self.connected(1)
        await self._task.configure(connection=connection).batch_defer_async(*[self.payload] * events)
        await connection.commit()

    @asynccontextmanager
    async def working(self, told: Tally | Arrivals) -> AsyncIterator[None]:
        self._told = told
        work = self._app.run_worker_async(
            concurrency=CONCURRENCY, delete_jobs="always", install_signal_handlers=False, shutdown_graceful_timeout=5
        )
        worker = asyncio.create_task(work)
        try:
            yield
        finally:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker

    async def is_true(self, query: str) -> bool:
        [connection] = await self.connected(1)
        row = await (await connection.execute(query)).fetchone()
        await connection.commit()
        return bool(row[0])

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
        await self._app.close_async()


if __name__ == "__main__":
    serve(Procrastinate)
