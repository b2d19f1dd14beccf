"""How much memory a relay and a consumer need for a backlog of millions: as much as for a handful.

A backlog is inserted by SQL. Then a relay, with a transport that takes every payload and throws it away, and a worker
with a handler drain it, each in a process of its own. Fails when one of them needed more than it may.
"""

import asyncio
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import psycopg
from psycopg import sql

from aftercommit import Database, Outbox
from aftercommit.consumer import LogWorker
from aftercommit.event.envelope import Event, Record
from aftercommit.postgres import migrate
from aftercommit.postgres.embedded import EmbeddedPostgres
from aftercommit.relay import Relay
from aftercommit.service import Service
from aftercommit.transport import Capabilities, Failure

LIMIT_MB = 200
SCHEMA = "bench_memory"
CONSUMER = "reader"
SLICE = 100_000

FILL = """
insert into {schema}.outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id)
select gen_random_uuid(), 'order', 'o-' || (n % 5000), 'order.placed', n::text,
       json_build_object('order_id', 'o-' || (n % 5000), 'number', n, 'note', repeat('x', 440)), 'acme'
from generate_series({first}, {last}) n
"""
PROGRESS = """
select (select position from {schema}.head),
       coalesce((select position from {schema}.consumer where name = {consumer}), 0)
"""


class Discarding:
    """Takes everything, keeps nothing: what is measured is the relay."""

    name = "discard"
    capabilities = Capabilities(durable=False)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        return ()


def declared() -> Outbox:
    """The outbox, with a consumer that looks at every event."""
    outbox = Outbox(SCHEMA, scope={"tenant_id": str})
    outbox.declare("order.placed", aggregate="order", key="order_id")

    @outbox.on("order.placed", consumer=CONSUMER)
    async def read(event: Event[Any], connection: psycopg.AsyncConnection[Any]) -> None:
        assert event.payload["number"] > 0

    return outbox


def service(role: str, dsn: str) -> Service:
    """The service that a child process runs."""
    outbox, database = declared(), Database(dsn)
    if role == "relay":
        return Relay(outbox, database, Discarding())
    return LogWorker(outbox, outbox.consumers[CONSUMER], database)


def peak_megabytes() -> float:
    """The most memory this process ever had resident."""
    status = Path("/proc/self/status")
    if status.exists():
        # What getrusage says begins with the memory of the process that started us.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


async def run(role: str, dsn: str) -> None:
    """A child: work until told to stop, then say how much memory it took."""
    running = service(role, dsn)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.stopping.set)
    await running.start()
    await running.wait()
    print(json.dumps({"role": role, "peak_mb": round(peak_megabytes(), 1)}), flush=True)


def progress(text: str) -> None:
    """One line that is written over again, for somebody who watches."""
    if sys.stderr.isatty():
        click.echo(f"\r{text:60}", nl=False, err=True)


def fill(connection: psycopg.Connection[Any], events: int) -> None:
    """The backlog, in slices so that progress can be shown."""
    for first in range(1, events + 1, SLICE):
        last = min(events, first + SLICE - 1)
        connection.execute(sql.SQL(FILL).format(schema=sql.Identifier(SCHEMA), first=first, last=last))
        progress(f"inserted {last:,}")
    connection.execute(sql.SQL("vacuum analyze {}.outbox").format(sql.Identifier(SCHEMA)))


def wait_until_drained(
    connection: psycopg.Connection[Any], events: int, children: Sequence["subprocess.Popen[str]"]
) -> dict[str, float]:
    """Seconds until the relay and until the consumer were through."""
    query = sql.SQL(PROGRESS).format(schema=sql.Identifier(SCHEMA), consumer=CONSUMER)
    started = time.monotonic()
    through: dict[str, float] = {}
    while len(through) < 2:
        published, consumed = connection.execute(query).fetchone() or (0, 0)
        for role, position in (("relay", published), ("consumer", consumed)):
            if position >= events and role not in through:
                through[role] = time.monotonic() - started
        progress(f"published {published:,}  consumed {consumed:,}")
        for child in children:
            if child.poll() is not None:
                raise click.ClickException("a process ended before it was through: see above")
        time.sleep(0.25)
    return through


def measure(dsn: str, events: int) -> bool:
    """Fill, drain, report; whether everybody kept within the limit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, declared().shape)
        fill(connection, events)
        command = [sys.executable, "-m", "bench.memory", "--dsn", dsn, "--role"]
        children = [
            subprocess.Popen([*command, role], stdout=subprocess.PIPE, text=True) for role in ("relay", "consumer")
        ]
        try:
            through = wait_until_drained(connection, events, children)
            for child in children:
                child.terminate()
            said = [json.loads(child.communicate(timeout=60)[0]) for child in children]
        finally:
            for child in children:
                child.kill()
                child.wait()
    for each in said:
        seconds = through[each["role"]]
        rate = f"{events / seconds:,.0f} events/s"
        click.echo(f"{each['role']:8}  peak {each['peak_mb']:6.1f} MB  {seconds:7.1f} s  {rate}")
    return all(each["peak_mb"] <= LIMIT_MB for each in said)


@click.command(help=__doc__)
@click.argument("events", type=click.IntRange(min=1), default=2_000_000)
@click.option("--dsn", help="A database of its own to measure in; an embedded server when not given.")
@click.option("--role", type=click.Choice(["relay", "consumer"]), hidden=True)
def main(events: int, dsn: str | None, role: str | None) -> None:
    if role is not None and dsn is not None:
        asyncio.run(run(role, dsn))
        return
    if dsn is not None:
        kept = measure(dsn, events)
    else:
        with (
            tempfile.TemporaryDirectory(prefix="aftercommit-bench-") as folder,
            EmbeddedPostgres(Path(folder)) as server,
        ):
            kept = measure(server.dsn, events)
    if not kept:
        raise click.ClickException(f"more than {LIMIT_MB} MB were needed")


if __name__ == "__main__":
    main()
