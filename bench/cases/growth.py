"""What the relay's drain keeps of its speed when the database has a past: old snapshots, a long log, many failures."""

import psycopg

from bench import engines, shop
from bench.cases import consumer, drain
from bench.figures import Finding, Sample, Verdict
from bench.peers.peer import Peers
from bench.stage import Contestant, Stage, say

NAME = "growth"
TITLE = "Growth"
ABOUT = (
    "The same drain, each in a database of its own: with nothing else in it; with somebody's transaction left open "
    "since before the backlog was written, which keeps every dead row from being cleaned up; with a long log behind "
    "it; with many failed events among the pending ones."
)
EVENTS = 100_000
LOG_ROWS = 2_000_000
FAILED_ROWS = 100_000
PER_STATEMENT = 100_000
TARGETS = {"idle transaction": 0.8, "log rows": 0.9, "failed rows": 0.9}

EMPTY_OUTBOX = "truncate bench.outbox"
FAIL_ALL = """
    update bench.outbox
    set status = 'failed', retry_count = 10, last_error = 'TimeoutError: the broker did not answer'
    where status = 'pending'
"""


def run(stage: Stage, peers: Peers) -> Finding:
    """Four databases in turns."""
    events = stage.sizes.count(EVENTS, least=1000)
    log_rows, failed_rows = stage.sizes.count(LOG_ROWS, least=2000), stage.sizes.count(FAILED_ROWS, least=500)
    names = ("plain", "idle transaction", f"{log_rows:,} log rows", f"{failed_rows:,} failed rows")
    plain, idle, history, failures = (stage.database(f"bench_growth_{number}") for number in range(4))
    for dsn in (plain, idle, history, failures):
        shop.prepare(dsn, shop.OURS)
    _write_history(stage, history, log_rows)

    contestants = [
        Contestant(names[0], lambda: drain.ours(stage, plain, events)),
        Contestant(names[1], lambda: _with_snapshot_held(stage, idle, events)),
        Contestant(names[2], lambda: _on_top(stage, history, events)),
        Contestant(names[3], lambda: _among_failures(stage, failures, events, failed_rows)),
    ]
    group = stage.measure("drain", "ev/s", contestants)
    verdicts = [
        Verdict(
            f"drain with {name}: share of the plain drain", "at least", target, group[name].ratio_to(group["plain"])
        )
        for name, target in zip(names[1:], TARGETS.values(), strict=True)
    ]
    return Finding(NAME, TITLE, ABOUT, [group], verdicts)


def _with_snapshot_held(stage: Stage, dsn: str, events: int) -> Sample:
    with psycopg.connect(dsn) as idle:
        idle.execute("set transaction isolation level repeatable read")
        idle.execute("select pg_current_xact_id()")
        # It has touched no table of ours and blocks nobody; what it does is keep dead rows from being cleaned up.
        drain.refill(stage, dsn, shop.OURS, events)
        sample = engines.relay(stage, dsn, events)
        idle.rollback()
    return sample


def _on_top(stage: Stage, dsn: str, events: int) -> Sample:
    with stage.connect(dsn) as connection:
        connection.execute(EMPTY_OUTBOX)
        shop.fill(connection, shop.OURS, events)
    return engines.relay(stage, dsn, events)


def _among_failures(stage: Stage, dsn: str, events: int, failed: int) -> Sample:
    """Failed rows below and among the backlog: half of them older than it, half in its midst."""
    with stage.connect(dsn) as connection:
        connection.execute(drain.RESET.format(schema=shop.OURS).encode())
        shop.fill(connection, shop.OURS, failed // 2)
        connection.execute(FAIL_ALL)
        shop.fill(connection, shop.OURS, failed - failed // 2)
        connection.execute(FAIL_ALL)
        shop.fill(connection, shop.OURS, events)
    return engines.relay(stage, dsn, events)


def _write_history(stage: Stage, dsn: str, rows: int) -> None:
    with stage.connect(dsn) as connection:
        for done in range(0, rows, PER_STATEMENT):
            say(f"growth · writing a log of {rows:,} events · {done:,}")
            shop.fill(connection, shop.OURS, min(PER_STATEMENT, rows - done))
            connection.execute(consumer.APPEND.format(schema=shop.OURS, columns=consumer.COLUMNS).encode())
        connection.execute("vacuum analyze bench.log")
