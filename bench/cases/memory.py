"""How much memory a relay and a consumer need for a large backlog: as much as for a handful."""

import subprocess
import sys
import time
from collections.abc import Sequence

from bench import shop
from bench.figures import Finding, Group, Sample, Series, Spread, Verdict
from bench.memory_process import CONSUMER, ROLES, Said
from bench.peers.environment import ROOT
from bench.peers.peer import Peers
from bench.stage import Stage, say, tell

NAME = "memory"
TITLE = "Memory for a large backlog"
ABOUT = (
    "A relay with a transport that takes every payload and throws it away, and a worker behind it with a handler, each "
    "in a process of its own, side by side through one backlog. Measured once: what counts is the most memory that "
    "each ever had resident."
)
EVENTS = 1_000_000
SLICE = 100_000
LIMIT_MB = 200
LOOK = 0.1
PATIENCE = 900.0
PROGRESS = """
    select (select position from bench.head),
           coalesce((select position from bench.consumer where name = %s), 0)
"""


def run(stage: Stage, peers: Peers) -> Finding:
    """Both at once, one time; no peer takes part."""
    dsn = stage.database("bench_memory")
    shop.prepare(dsn, shop.OURS)
    events = stage.sizes.count(EVENTS, least=1000)
    with stage.connect(dsn) as connection:
        for first in range(0, events, SLICE):
            say(f"memory · writing a backlog of {events:,} · {first:,}")
            shop.fill(connection, shop.OURS, min(SLICE, events - first))
    children = [_child(dsn, role) for role in ROLES]
    try:
        before = stage.server_seconds()
        seconds = _until_drained(stage, dsn, events, children)
        used = stage.server_seconds() - before
        said = [Said.read(child) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    sample = Sample(events, seconds, sum(each.cpu_seconds for each in said), used)
    group = Group("relay and consumer side by side", "ev/s", [Series("both", samples=[sample])])
    for each in said:
        tell(f"  memory · {each.role}: {each.peak_megabytes:.1f} MB at most")
    return Finding(NAME, TITLE, ABOUT, [group], [_verdict(events, each) for each in said])


def _child(dsn: str, role: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench.memory_process", dsn, role]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _until_drained(stage: Stage, dsn: str, events: int, children: Sequence["subprocess.Popen[str]"]) -> float:
    """Seconds until both were through."""
    started = time.monotonic()
    with stage.connect(dsn) as connection:
        while True:
            published, consumed = connection.execute(PROGRESS, (CONSUMER,)).fetchone() or (0, 0)
            if min(published, consumed) >= events:
                return time.monotonic() - started
            say(f"memory · published {published:,} · consumed {consumed:,}")
            if any(child.poll() is not None for child in children) or time.monotonic() - started > PATIENCE:
                raise RuntimeError("a process of the memory case ended or stood still before it was through: see above")
            time.sleep(LOOK)


def _verdict(events: int, said: Said) -> Verdict:
    what = f"memory, {said.role}: MB for a backlog of {events:,}"
    return Verdict(what, "at most", LIMIT_MB, Spread.of([said.peak_megabytes]))
