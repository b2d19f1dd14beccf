"""Strands of a feed that are asked for once each: memory of the server, and how long its event loop stands still."""

import json
import subprocess
import sys
from collections.abc import Callable

from bench import feed_logs, growing
from bench.figures import Finding
from bench.growing import Values
from bench.peers.environment import ROOT
from bench.peers.peer import Peers
from bench.stage import Stage
from bench.strands_process import Said

NAME = "growth-strands"
TITLE = "Growth: strands of a feed"
ABOUT = (
    "A server process with default settings is asked for many strands of one feed, each once, eight at a time. A probe "
    "on its event loop wakes up every millisecond; a stall is the processor time that its thread spent between two "
    "turns of the probe. The floor runs in the same process, in turns with the hub: the statement that loads a strand, "
    "as often, by the driver alone on as many connections. *Beyond the floor* is what the hub adds to that."
)
SMALL, LARGE = 1_000, 50_000
MOST_STALL_MS, MOST_MEMORY = 5.0, 3.0
UNITS = {
    "memory": "MB",
    "longest stall": "ms of CPU",
    "longest stall of the floor": "ms of CPU",
    "longest stall beyond the floor": "ms of CPU",
    "longest stall on the wall": "ms",
    "rate": "strands/s",
}


def run(stage: Stage, peers: Peers) -> Finding:
    """Few and many in turns, each in a new process."""
    small = stage.sizes.count(SMALL, least=50)
    large = max(2 * small, stage.sizes.count(LARGE))
    dsn = stage.database("bench_growth_strands")
    with stage.connect(dsn) as connection:
        feed_logs.prepare(connection, 100)
    group = growing.measure(
        stage,
        "strands",
        UNITS,
        {f"{count:,} strands": _playing(dsn, count) for count in (small, large)},
        warm_up=False,
    )
    verdicts = [
        growing.value(group, "longest stall beyond the floor", "at most", MOST_STALL_MS),
        growing.ratio(group, "memory", "at most", MOST_MEMORY),
    ]
    return Finding(NAME, TITLE, ABOUT, [group], verdicts)


def _playing(dsn: str, count: int) -> Callable[[], Values]:
    def play() -> Values:
        command = [sys.executable, "-m", "bench.strands_process", dsn, str(count)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        said = Said(**json.loads(done.stdout))
        return {
            "memory": said.megabytes,
            "longest stall": said.longest_ms,
            "longest stall of the floor": said.floor_ms,
            "longest stall beyond the floor": max(0.0, said.longest_ms - said.floor_ms),
            "longest stall on the wall": said.longest_wall_ms,
            "rate": count / said.seconds,
        }

    return play
