"""The same way by hand, for the floor: a notification wakes a process that does nothing but the writes of this way."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg

from bench import shop
from bench.cases.consumer import COLUMNS

PATIENCE: Final = 30.0
WARM_UP: Final = 5
CHANNEL: Final = "bench_raw"
# The handler's transaction takes the event, and writes its inbox row.
TAKE: Final = f"""
    with due as (
        select id, payload from {shop.RAW}.outbox where status = 'pending' order by seq limit 1 for update skip locked
    ), inbox as (
        insert into {shop.RAW}.processed_events (event_id, consumer_name) select id, 'raw' from due
    )
    select id, payload from due
"""
DONE: Final = f"delete from {shop.RAW}.outbox where id = %s"
# A relay's transaction moves the event to the log; after its commit, the handler's writes the inbox row.
APPEND: Final = f"""
    with moved as (delete from {shop.RAW}.outbox returning *),
    tip as (
        update {shop.RAW}.head set position = position + (select count(*) from moved), ts = clock_timestamp()
        returning position, ts
    )
    insert into {shop.RAW}.log (position, ts, {COLUMNS})
    select tip.position - count(*) over () + row_number() over (order by seq), tip.ts, {COLUMNS} from moved, tip
    returning id, payload
"""
INBOX: Final = f"insert into {shop.RAW}.processed_events (event_id, consumer_name) values (%s, 'raw')"

Connection = psycopg.AsyncConnection[Any]
Way = Callable[[Connection, Callable[[Any], Awaitable[None]]], Awaitable[None]]


async def bus(connection: Connection, handle: Callable[[Any], Awaitable[None]]) -> None:
    """Take the event and handle it, in one transaction."""
    async with connection.transaction():
        row = await (await connection.execute(TAKE)).fetchone()
        if row is not None:
            await handle(row[1])
            await connection.execute(DONE, (row[0],))


async def log(connection: Connection, handle: Callable[[Any], Awaitable[None]]) -> None:
    """Move the event to the log, commit, and handle it in a second transaction."""
    rows = await (await connection.execute(APPEND)).fetchall()
    for event_id, payload in rows:
        async with connection.transaction():
            await connection.execute(INBOX, (event_id,))
            await handle(payload)


async def singles(dsn: str, way: Way, count: int, rest: float) -> list[float]:
    """So many delays in milliseconds, after a few that do not count."""
    arrived = asyncio.Queue[float]()

    async def handle(payload: Any) -> None:
        arrived.put_nowait(time.perf_counter())

    async def serve(listening: Connection, working: Connection) -> None:
        async for _ in listening.notifies():
            await way(working, handle)

    connect = psycopg.AsyncConnection.connect
    async with (
        await connect(dsn) as publishing,
        await connect(dsn, autocommit=True) as listening,
        await connect(dsn, autocommit=True, prepare_threshold=0) as working,
    ):
        # What the end of another round may have left.
        await working.execute(f"delete from {shop.RAW}.outbox".encode())
        await listening.execute(f"listen {CHANNEL}".encode())
        serving = asyncio.create_task(serve(listening, working))
        try:
            found = [await _single(publishing, arrived, rest) for _ in range(WARM_UP + count)]
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
    return found[WARM_UP:]


async def _single(connection: Connection, arrived: asyncio.Queue[float], rest: float) -> float:
    await asyncio.sleep(rest)
    await connection.execute(shop.order_statement("%s").encode(), ("customer-17", 12500))
    await connection.execute(shop.insert_statement("%s").encode(), shop.with_ready_payload(shop.EVENTS[0]))
    await connection.execute(f"notify {CHANNEL}".encode())
    started = time.perf_counter()
    await connection.commit()
    return 1000 * (await asyncio.wait_for(arrived.get(), PATIENCE) - started)
