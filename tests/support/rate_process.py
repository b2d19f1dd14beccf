"""A server process that lets through what it may: `python -m tests.support.rate_process DSN REQUESTS SECONDS`.

It says "ready", waits for a line, and asks in bursts as fast as it can for three windows. Then it prints as JSON, for
each request that it let through, the moments before and after it asked.
"""

import asyncio
import json
import sys
import time

from aftercommit.access.key_count import Rate
from aftercommit.access.rate_limiter import RateLimiter
from aftercommit.postgres.database import Database
from tests.support.shop import shop_outbox

WINDOWS = 3
AT_ONCE = 20


async def main(dsn: str, rate: Rate) -> None:
    moments: list[tuple[float, float]] = []

    async def ask() -> None:
        asked = time.time()
        if (await limiter.take("user", "ann", rate)).allowed:
            moments.append((asked, time.time()))

    async with RateLimiter(Database(dsn), shop_outbox()) as limiter:
        # The others are there, and all have heard the clock.
        await limiter.take("user", "warm", rate)
        await asyncio.gather(*(limiter.take("user", "warm", rate) for _ in range(2)))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        until = time.monotonic() + WINDOWS * rate.seconds
        while time.monotonic() < until:
            await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
            await asyncio.sleep(0.002)
    print(json.dumps(moments), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Rate("user", int(sys.argv[2]), int(sys.argv[3]))))
