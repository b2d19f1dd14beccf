"""A feed server's hub that is asked for strands once each, in a process of its own: memory, and stalls of its loop.

A probe wakes up every millisecond. The processor time that passed in the thread between two of its turns is what
something kept the event loop for; unlike the time on the wall it does not count what other programs took.

The floor runs in the same process, in turns with the hub: the same statement as often by the driver alone. What one
turn of the loop takes when several answers of the database arrive together is part of both.
"""

import asyncio
import gc
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from aftercommit import Database
from aftercommit.access.bearer import BearerAccess
from aftercommit.access.tokens import TokenVerifier
from aftercommit.feed import Feed
from aftercommit.feed.app import FeedApp
from aftercommit.feed.strands.queries import FeedQueries
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from bench import feed_logs, loops

AT_ONCE = 8
CONNECTIONS = 4
TICK = 0.001
TURNS = 20


@dataclass(frozen=True, slots=True)
class Said:
    """What the process found; `floor_ms` is the longest stall of the floor."""

    seconds: float
    megabytes: float
    longest_ms: float
    longest_wall_ms: float
    floor_ms: float


class Ticker:
    """The probe, which runs inside `with`."""

    def __init__(self) -> None:
        self.longest = self.longest_wall = self.seconds = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The probe runs meanwhile."""
        task, began = asyncio.create_task(self._run()), time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began
            task.cancel()

    async def _run(self) -> None:
        while True:
            used, began = time.thread_time(), time.perf_counter()
            await asyncio.sleep(TICK)
            self.longest = max(self.longest, time.thread_time() - used)
            self.longest_wall = max(self.longest_wall, time.perf_counter() - began - TICK)


def resident() -> float:
    """Megabytes of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def touch(dsn: str, strands: int) -> Said:
    """Ask for so many strands, each once, in turns with the floor."""
    feed = feed_logs.declared()
    access = BearerAccess(TokenVerifier(feed_logs.keys()), Database(dsn), feed.outbox)
    app = FeedApp(Database(dsn), {feed_logs.PATH: feed}, access)
    ours, floor = Ticker(), Ticker()

    async def ask(numbers: Iterator[int]) -> None:
        for number in numbers:
            await app.hub.strand(feed, f"INV-{number}")

    async with app.lifespan(), by_hand(dsn, feed) as ask_by_hand:
        await app.hub.strand(feed, feed_logs.KEY)
        await ask_by_hand(iter(range(AT_ONCE)))
        gc.collect()
        gc.freeze()
        for turn in range(TURNS):
            part = range(strands * turn // TURNS, strands * (turn + 1) // TURNS)
            for ticker, asking in ((ours, ask), (floor, ask_by_hand)):
                numbers = iter(part)
                async with ticker.running():
                    await asyncio.gather(*(asking(numbers) for _ in range(AT_ONCE)))
        longest, wall, least = 1000 * ours.longest, 1000 * ours.longest_wall, 1000 * floor.longest
        return Said(ours.seconds, resident(), longest, wall, least)


@asynccontextmanager
async def by_hand(dsn: str, feed: Feed) -> AsyncIterator[Callable[[Iterator[int]], Awaitable[None]]]:
    """The floor: the statement that loads a strand, on as many connections as the hub has, and the rows thrown away."""
    statement = FeedQueries(feed).load
    constant = {"low": 0, "high": 2**63 - 1, "place": 0, "types": list(feed.types or ()), "limit": 100}
    free: asyncio.LifoQueue[psycopg.AsyncConnection[Any]] = asyncio.LifoQueue()

    async def ask(numbers: Iterator[int]) -> None:
        for number in numbers:
            parameters = {"key": f"INV-{number}", **constant, "max_bytes": 1 << 20}
            connection = await free.get()
            await (await connection.execute(statement, parameters, prepare=True)).fetchall()
            free.put_nowait(connection)

    async with AsyncExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
            await connection.execute(Statements(Shape())["feed_plan"])
            free.put_nowait(await stack.enter_async_context(connection))
        yield ask


def main(dsn: str, count: str) -> None:
    """One measurement."""
    sys.stdout.write(json.dumps(asdict(loops.run(touch(dsn, int(count))))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
