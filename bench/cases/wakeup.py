"""What producers pay so that a sleeping relay wakes up: 32 connections publish as fast as they can."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psycopg

from bench import shop
from bench.cases.drivers import Asyncpg
from bench.cases.stacks import Given
from bench.figures import Finding, Sample, Verdict
from bench.peers.peer import Peers
from bench.stage import Contestant, Stage

NAME = "wakeup"
TITLE = "Price of the wake-up for producers"
ABOUT = (
    "32 asyncpg connections publish, one business row and one event per transaction. The relay runs in a process of "
    "its own and is asleep when the publishing begins; once with its doorbell, and once polling, which costs "
    "producers nothing. What it takes from the producers by its work on the same cores is in both, so their ratio is "
    "the price of the wake-up. Without any relay nobody drains. NOTIFY in every commit, with one listener, is what "
    "the doorbell avoids."
)
CONNECTIONS = 32
SECONDS = 2.0
TARGET = 0.90
NOTIFY = "select pg_notify('bench_every_commit', '')"
RESET = "truncate public.orders, bench.outbox, bench.log"
ROOT = Path(__file__).resolve().parents[2]


class Notifying(Asyncpg):
    """Rings in every transaction, by hand."""

    async def transact(self, connection: Any, event: Given, row: Any) -> None:
        async with connection.transaction():
            await super().transact(connection, event, row)
            await connection.execute(NOTIFY)


def run(stage: Stage, peers: Peers) -> Finding:
    """Four ways to be heard."""
    dsn = stage.database("bench_wakeup")
    shop.prepare(dsn, shop.OURS, shop.RAW)
    contestants = [
        Contestant("no relay", lambda: _play(stage, dsn)),
        Contestant("relay that polls", lambda: _beside_relay(stage, dsn, "poll")),
        Contestant("relay with doorbell", lambda: _beside_relay(stage, dsn, "listen")),
        Contestant("NOTIFY in every commit", lambda: _notifying(stage, dsn)),
    ]
    group = stage.measure("publish on 32 connections", "tx/s", contestants)
    ratio = group["relay with doorbell"].ratio_to(group["relay that polls"])
    verdict = Verdict("wake-up: throughput of producers, doorbell against polling", "at least", TARGET, ratio)
    return Finding(NAME, TITLE, ABOUT, [group], [verdict])


def _play(stage: Stage, dsn: str, kind: type[Asyncpg] = Asyncpg) -> Sample:
    stack = kind(dsn, CONNECTIONS, shop.declared())
    stack.open()
    try:
        stack.run("aftercommit", 0.1)
        with stage.watch() as watch:
            watch.events = stack.run("aftercommit", stage.sizes.seconds(SECONDS))
    finally:
        stack.close()
    with stage.connect(dsn) as connection:
        connection.execute(RESET)
    return watch.taken


def _beside_relay(stage: Stage, dsn: str, manner: str) -> Sample:
    with _relay(dsn, manner):
        return _play(stage, dsn)


def _notifying(stage: Stage, dsn: str) -> Sample:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("listen bench_every_commit")
        return _play(stage, dsn, Notifying)


@contextmanager
def _relay(dsn: str, manner: str) -> Iterator[None]:
    """A relay in its own process, asleep."""
    command = [sys.executable, "-m", "bench.relay_process", dsn, manner]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "asleep":
            raise click.ClickException("the relay beside the producers did not start: see above")
        try:
            yield
        finally:
            process.stdin.close()
