"""The processes of a soak: `relay`, `worker`, `serve`, `publish` and `read`. Each ends when its input is closed.

`serve` says where it listens. `publish` and `read` answer each line of their input with figures as JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from aftercommit import Database, Engine
from aftercommit.access.bearer import BearerAccess
from aftercommit.access.tokens import TokenVerifier
from aftercommit.feed import FeedApp, StreamCaps
from aftercommit.server.http_server import HttpServer
from bench import feed_logs, loops
from bench.soak import declared
from bench.soak.readers import Readers

TURN = 0.02
AT_ONCE = 20
MANY = 10_000
Lines = AsyncIterator[str]


async def relay(dsn: str) -> None:
    """Outbox to log."""
    async with Engine(declared.declared(), Database(dsn), workers=False):
        await _until_closed()


async def worker(dsn: str) -> None:
    """The three consumers."""
    async with Engine(declared.declared(), Database(dsn), relay=False):
        await _until_closed()


async def serve(dsn: str) -> None:
    """The feed."""
    outbox, database = declared.declared(), Database(dsn)
    access = BearerAccess(TokenVerifier(feed_logs.keys()), database, outbox)
    caps = StreamCaps(max_streams=MANY, max_streams_per_user=MANY)
    app = FeedApp(database, {declared.PATH: declared.feed(outbox)}, access, caps=caps)
    async with HttpServer(app, on_stop=app.drain) as server:
        await server.answers()
        print(server.url, flush=True)
        await _until_closed()


async def publish(dsn: str, rate: str) -> None:
    """So many events a second, a few per transaction, until a line says `stop`; each line is answered."""
    outbox, published, going = declared.declared(), 0, True

    async def work() -> None:
        nonlocal published
        began = time.monotonic()
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            while going:
                due = int((time.monotonic() - began) * float(rate)) - published
                # A publisher that was held up catches up in short transactions: delays count from their COMMIT.
                due = min(due, AT_ONCE)
                for _ in range(due):
                    published += 1
                    await connection.execute("insert into public.soak_business (number) values (%s)", (published,))
                    event = declared.event(published, int(1000 * time.time()))
                    await outbox.publish(connection, event)
                await connection.commit()
                await asyncio.sleep(TURN if due < AT_ONCE else 0)

    task = asyncio.create_task(work())
    async for line in _lines():
        if line == "stop":
            going = False
            await task
        if task.done():
            task.result()
        print(json.dumps({"published": published}), flush=True)


async def read(url: str, streams: str, pollers: str) -> None:
    """Readers of the feed."""
    readers = Readers(url, declared.PATH, declared.bearer(), int(streams), int(pollers))
    async with readers.running():
        async for _ in _lines():
            print(json.dumps(readers.told()), flush=True)


@asynccontextmanager
async def _input() -> AsyncIterator[asyncio.StreamReader]:
    told = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
    try:
        yield told
    finally:
        transport.close()


async def _lines() -> AsyncIterator[str]:
    async with _input() as told:
        while line := await told.readline():
            yield line.decode().strip()


async def _until_closed() -> None:
    async for _ in _lines():
        pass


ROLES: dict[str, Callable[..., Awaitable[None]]] = {
    "relay": relay,
    "worker": worker,
    "serve": serve,
    "publish": publish,
    "read": read,
}


async def main(role: str, *arguments: Any) -> None:
    """One role."""
    await ROLES[role](*arguments)


if __name__ == "__main__":
    loops.run(main(*sys.argv[1:]))
