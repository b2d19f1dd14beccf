"""A feed server's hub that is asked for strands once each, in a process of its own: memory, and stalls of its loop.

A probe wakes up every millisecond. The processor time that passed in the thread between two of its turns is what
something kept the event loop for; unlike the time on the wall it does not count what other programs took.
"""

import asyncio
import gc
import json
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from aftercommit import Database
from aftercommit.access.bearer import BearerAccess
from aftercommit.access.tokens import TokenVerifier
from aftercommit.feed.app import FeedApp
from bench import feed_logs, loops

AT_ONCE = 8
TICK = 0.001


@dataclass(frozen=True, slots=True)
class Said:
    """What the process found."""

    seconds: float
    megabytes: float
    longest_ms: float
    longest_wall_ms: float


class Ticker:
    """The probe."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.longest_wall = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            used, began = time.thread_time(), time.perf_counter()
            await asyncio.sleep(TICK)
            self.longest = max(self.longest, time.thread_time() - used)
            self.longest_wall = max(self.longest_wall, time.perf_counter() - began - TICK)


@asynccontextmanager
async def ticking() -> AsyncIterator[Ticker]:
    """The probe runs meanwhile."""
    gc.collect()
    gc.freeze()
    ticker = Ticker()
    task = asyncio.create_task(ticker.run())
    try:
        yield ticker
    finally:
        task.cancel()


def resident() -> float:
    """Megabytes of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def touch(dsn: str, strands: int) -> Said:
    """Ask for so many strands, each once."""
    feed = feed_logs.declared()
    access = BearerAccess(TokenVerifier(feed_logs.keys()), Database(dsn), feed.outbox)
    app = FeedApp(Database(dsn), {feed_logs.PATH: feed}, access)
    keys = iter(range(strands))

    async def ask() -> None:
        for number in keys:
            await app.hub.strand(feed, f"INV-{number}")

    async with app.lifespan():
        await app.hub.strand(feed, feed_logs.KEY)
        async with ticking() as ticker:
            began = time.perf_counter()
            await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
            return _said(ticker, began)


async def bare(dsn: str, questions: int) -> Said:
    """The floor: as many trivial queries by the same driver, on as many connections as the hub has, and no hub."""
    left = iter(range(questions))

    async def ask() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            for _ in left:
                await (await connection.execute("select 1")).fetchall()

    async with ticking() as ticker:
        began = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(4)))
        return _said(ticker, began)


def _said(ticker: Ticker, began: float) -> Said:
    seconds = time.perf_counter() - began
    return Said(seconds, resident(), 1000 * ticker.longest, 1000 * ticker.longest_wall)


def main(role: str, dsn: str, count: str) -> None:
    """One measurement."""
    work: dict[str, Any] = {"touch": touch, "bare": bare}
    sys.stdout.write(json.dumps(asdict(loops.run(work[role](dsn, int(count))))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
