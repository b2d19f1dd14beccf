"""The journal's server as a program: `python -m tests.feed.program WORKERS`, with the database in JOURNAL_DSN.

Prints its address when it listens. SIGTERM drains it. With JOURNAL_CODE=newer it runs newer code.
While there is a file at JOURNAL_FAILS, reading the log fails for good, as it would if the database answered with
something that nobody can read.
"""

import os
import sys
from pathlib import Path
from typing import Any

import psycopg

from aftercommit.feed.app.service import service
from aftercommit.feed.live.streams import StreamTimes
from aftercommit.server.http_server import serve
from tests.feed.journal import Journal
from tests.feed.newer import newer_app

BROKEN = Path(os.environ.get("JOURNAL_FAILS", "/nowhere"))
TIMES = StreamTimes(tick_seconds=0.05, drain_seconds=1.5, retry_seconds=0.2, hold_seconds=1.0)


def say(url: str) -> None:
    print(url, flush=True)


def is_broken() -> bool:
    return BROKEN.exists()


async def failing(point: str, detail: dict[str, Any]) -> None:
    """What the tailer meets."""
    if point == "feed.read" and is_broken():
        raise psycopg.DataError("planted: this cannot be read")


# Imported by every worker process; nothing is connected before its lifespan begins.
journal = Journal(os.environ.get("JOURNAL_DSN", "postgresql://nowhere"))
newer = os.environ.get("JOURNAL_CODE") == "newer"
app = service((newer_app if newer else Journal.app)(journal, times=TIMES, probe=failing))

if __name__ == "__main__":
    serve(
        "tests.feed.program:app", port=0, workers=int(sys.argv[1]), drain_seconds=TIMES.drain_seconds, on_listening=say
    )
