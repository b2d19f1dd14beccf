"""A server process that lets through what it may: `python -m tests.postgres.rate_process DSN REQUESTS`.

It says "ready", waits for a line, asks as fast as it can until nothing passes any more, and prints as JSON how much it
let through in all, how much of it the others were told, and how much at most from the sending of one exchange until the
answer to the next was there.
"""

import asyncio
import json
import sys
from typing import Any

from aftercommit.feed.access.rate_limit import Rate, RateLimiter
from aftercommit.postgres.database import Database
from tests.shop import shop_outbox

# Refused this often in a row, after exchanges in between: nothing will pass any more.
ENOUGH = 300


async def main(dsn: str, requests: int) -> None:
    passed = refused = sent = most = 0

    async def note(point: str, detail: dict[str, Any]) -> None:
        nonlocal sent, most
        if point == "rates.exchanged":
            # The answer is there: until now nothing was heard since the exchange before this one was sent.
            most = max(most, passed - sent)
            sent += detail["count"]

    rate = Rate("user", requests, 86_400)
    async with RateLimiter(Database(dsn), shop_outbox(), probe=note) as limiter:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        while refused < ENOUGH:
            for _ in range(3):
                if limiter.take("user", "ann", rate).allowed:
                    passed, refused = passed + 1, 0
                else:
                    refused += 1
            await asyncio.sleep(0.002)
    print(json.dumps({"passed": passed, "sent": sent, "most": most}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
