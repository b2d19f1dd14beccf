"""Many consumers and many outboxes in one `aftercommit up`: what they cost at rest, and how soon one event is there."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psutil  # type: ignore[import-untyped]
import psycopg

from bench import growing
from bench.figures import Finding, Group, percentile
from bench.growing import Play, Values
from bench.growth_app import CONSUMERS, OUTBOXES
from bench.peers.environment import ROOT
from bench.peers.peer import Peers
from bench.stage import ContestantFailed, Stage

NAME = "growth-consumers"
TITLE = "Growth: consumers and outboxes in one process"
ABOUT = (
    "`aftercommit up` with few and with many consumers of one outbox, then with one and with many outboxes that have "
    "one consumer each, in a process of its own. At rest: its connections, the transactions and the write-ahead log "
    "of the whole server (without autovacuum, which goes through all databases of the bench), the share of a core that "
    "the process uses, and that of PostgreSQL. Then single events, one "
    "after the other (in every outbox at once): from COMMIT to the first and to the last handler. The floor is the "
    "same server while nothing is connected to it but the bench. `aftercommit up --rate 0` is told apart: at "
    "rest with its figures on the screen, as after its start."
)
FEW, MANY, OUTBOXES_MANY = 10, 200, 20
SECONDS, SETTLE, SINGLES = 20.0, 4.0, 20
PATIENCE = 120.0
# Figures on the screen are another question than consumers.
NO_SCREEN: Final = ("--interval", "86400")
AT_REST: Final[Mapping[str, str]] = {
    "connections": "count",
    "transactions at rest": "1/s",
    "WAL at rest": "MB/min",
    "CPU at rest": "% of a core",
    "CPU of PostgreSQL at rest": "% of a core",
}
LATENCY: Final[Mapping[str, str]] = {
    "first handler p50": "ms",
    "last handler p50": "ms",
    "last handler p99": "ms",
}
COUNTERS: Final = """
    select sum(xact_commit + xact_rollback), pg_current_wal_insert_lsn() - '0/0'::pg_lsn from pg_stat_database
"""
BACKENDS: Final = "select count(*) from pg_stat_activity where datname = %s and pid <> pg_backend_pid()"


def run(stage: Stage, peers: Peers) -> Finding:
    """Consumers, outboxes, and the idle `up`."""
    few, many = FEW, max(FEW + 1, stage.sizes.count(MANY))
    outboxes = max(2, stage.sizes.count(OUTBOXES_MANY))
    consumers = _compared(stage, "consumers", {f"{n} consumers": (1, n) for n in (few, many)})
    in_outboxes = _compared(stage, "outboxes", {"1 outbox": (1, 1), f"{outboxes} outboxes": (outboxes, 1)})
    idle = _idle(stage, outboxes)
    verdicts = [
        growing.value(consumers, "connections", "at most", 20),
        growing.value(consumers, "CPU at rest", "at most", 5),
        growing.value(consumers, "first handler p50", "at most", 60),
        growing.value(consumers, "last handler p50", "at most", 60),
        growing.value(in_outboxes, "connections", "at most", 20),
        growing.value(in_outboxes, "CPU at rest", "at most", 5),
        growing.value(in_outboxes, "last handler p50", "at most", 60),
        growing.value(idle, "transactions at rest per outbox", "at most", 3),
        growing.value(idle, "WAL at rest per outbox", "at most", 0.1),
    ]
    return Finding(NAME, TITLE, ABOUT, [consumers, in_outboxes, idle], verdicts)


def _compared(stage: Stage, title: str, sizes: Mapping[str, tuple[int, int]]) -> Group:
    """Once each: what is measured is a rest of many seconds, and many singles."""
    return growing.measure(
        stage,
        title,
        {**AT_REST, **LATENCY},
        {name: _playing(stage, *size) for name, size in sizes.items()},
        floor=("server alone", lambda: _at_rest(stage, None, "postgres")),
        rounds=1,
    )


def _idle(stage: Stage, outboxes: int) -> Group:
    """With its figures on the screen; per outbox."""

    def play(count: int) -> Values:
        with _running(stage, count, 1) as (process, database):
            found = _at_rest(stage, process, database)
        return {f"{name} per outbox": found[name] / count for name in ("transactions at rest", "WAL at rest")}

    units = {"transactions at rest per outbox": "1/s", "WAL at rest per outbox": "MB/min"}
    sizes: dict[str, Play] = {"1 outbox": lambda: play(1), f"{outboxes} outboxes": lambda: play(outboxes)}
    return growing.measure(stage, "idle up", units, sizes, rounds=1)


def _playing(stage: Stage, outboxes: int, consumers: int) -> Play:
    def play() -> Values:
        with _running(stage, outboxes, consumers, *NO_SCREEN) as (process, database):
            found = _at_rest(stage, process, database)
            singles = _ask(process, stage.sizes.count(SINGLES, least=3))
        first, last = ([each[place] for each in singles] for place in (0, 1))
        return {
            **found,
            "first handler p50": percentile(first, 0.5),
            "last handler p50": percentile(last, 0.5),
            "last handler p99": percentile(last, 0.99),
        }

    return play


@contextmanager
def _running(
    stage: Stage, outboxes: int, consumers: int, *options: str
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """An `aftercommit up` whose consumers all work: a first event has reached every one of them."""
    database = f"bench_up_{outboxes}_{consumers}"
    dsn = stage.database(database)
    environment = {**os.environ, OUTBOXES: str(outboxes), CONSUMERS: str(consumers)}
    command = [sys.executable, "-m", "aftercommit.cli", "up", "--app", "bench.growth_app:application", "--rate", "0"]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*command, "--dsn", dsn, *options], cwd=ROOT, env=environment, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
        )  # fmt: skip
        try:
            _ask(process, 2)
            yield process, database
        except ContestantFailed as problem:
            said.seek(0)
            raise RuntimeError(f"{problem}: {said.read()[-500:]}") from problem
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


def _ask(process: "subprocess.Popen[str]", singles: int) -> list[tuple[float, float]]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"singles {singles}\n")
    process.stdin.flush()
    for line in process.stdout:
        # Between them are the figures that `up` prints.
        if line.startswith("[["):
            return [(first, last) for first, last in json.loads(line)]
    raise ContestantFailed("`aftercommit up` ended")


def _at_rest(stage: Stage, process: "subprocess.Popen[str] | None", database: str) -> Values:
    with stage.connect() as connection, _without_autovacuum(connection):
        time.sleep(stage.sizes.seconds(SETTLE))
        used, before, began = _used(stage, process), _counters(connection), time.monotonic()
        time.sleep(stage.sizes.seconds(SECONDS))
        seconds, after, using = time.monotonic() - began, _counters(connection), _used(stage, process)
        (connections,) = connection.execute(BACKENDS, (database,)).fetchone() or (0,)
    return {
        "connections": float(connections),
        # The question about the counters is one.
        "transactions at rest": max(0.0, after[0] - before[0] - 1) / seconds,
        "WAL at rest": (after[1] - before[1]) / seconds * 60 / 1e6,
        "CPU at rest": 100 * (using[0] - used[0]) / seconds,
        "CPU of PostgreSQL at rest": 100 * (using[1] - used[1]) / seconds,
    }


@contextmanager
def _without_autovacuum(connection: psycopg.Connection[Any]) -> Iterator[None]:
    connection.execute("alter system set autovacuum = off")
    connection.execute("select pg_reload_conf()")
    try:
        yield
    finally:
        connection.execute("alter system reset autovacuum")
        connection.execute("select pg_reload_conf()")


def _counters(connection: psycopg.Connection[Any]) -> tuple[float, float]:
    connection.execute("select pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
    transactions, wal = connection.execute(COUNTERS).fetchone() or (0, 0)
    return float(transactions), float(wal)


def _used(stage: Stage, process: "subprocess.Popen[str] | None") -> tuple[float, float]:
    times = psutil.Process(process.pid).cpu_times() if process is not None else None
    return (times.user + times.system if times is not None else 0.0), stage.server_seconds()
