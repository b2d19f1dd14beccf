"""How fast the relay moves events from outbox to log, beside a raw loop that deletes and inserts the same rows.

Both work on tables with the same columns and indexes, on the embedded PostgreSQL with fsync on, with payloads of about
500 bytes, in turns. Then the same with somebody's transaction left open, which keeps dead rows from being cleaned up.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psycopg
from psycopg import sql

from aftercommit import Database, Outbox, RelaySettings
from aftercommit.postgres import migrate
from aftercommit.postgres.embedded import EmbeddedPostgres
from aftercommit.relay import Relay
from aftercommit.testing.signals import Signals
from aftercommit.transports import LogTransport

BATCH = 1000
TARGET = 0.75

FILL = """
insert into {schema}.outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id)
select gen_random_uuid(), 'order', 'o-' || (n % 5000), 'order.placed', n::text,
       json_build_object('order_id', 'o-' || (n % 5000), 'number', n, 'note', repeat('x', 440)), 'acme'
from generate_series(1, {count}) n
"""

RAW = """
with due as (
    select id from {schema}.outbox
    where status = 'pending' and next_retry_at is null order by seq limit {batch}
),
moved as (delete from {schema}.outbox o using due where o.id = due.id returning o.*)
insert into {schema}.log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version,
    occurred_at, correlation_id, causation_id, payload, retry_count, created_at, tenant_id)
select {position} + row_number() over (order by seq), now(), id, seq, lane, aggregate_type, aggregate_id, event_type,
    schema_version, occurred_at, correlation_id, causation_id, payload, retry_count, created_at, tenant_id
from moved
"""


class Bench:
    """One server, one outbox for the relay, one for the raw loop."""

    def __init__(self, dsn: str, events: int) -> None:
        """Migrated and empty."""
        self.dsn = dsn
        self.events = events
        self.outboxes = {name: Outbox(name, scope={"tenant_id": str}) for name in ("bench_relay", "bench_raw")}
        self.positions = {"bench_raw": 0}
        self.connection = psycopg.connect(dsn, autocommit=True)
        for outbox in self.outboxes.values():
            migrate.up(self.connection, outbox.shape)

    def fill(self, name: str) -> None:
        """A backlog to drain."""
        statement = sql.SQL(FILL).format(schema=sql.Identifier(name), count=sql.Literal(self.events))
        self.connection.execute(statement)
        self.connection.execute(sql.SQL("vacuum analyze {}.outbox").format(sql.Identifier(name)))
        self.connection.execute("checkpoint")

    def raw(self) -> float:
        """Events per second of the raw loop."""
        self.fill("bench_raw")
        started, moved = time.perf_counter(), 0
        while True:
            statement = sql.SQL(RAW).format(
                schema=sql.Identifier("bench_raw"),
                batch=sql.Literal(BATCH),
                position=sql.Literal(self.positions["bench_raw"]),
            )
            count = self.connection.execute(statement).rowcount
            if not count:
                return moved / (time.perf_counter() - started)
            moved += count
            self.positions["bench_raw"] += count

    def relay(self) -> float:
        """Events per second of the relay, from its first batch to its last."""
        self.fill("bench_relay")
        return asyncio.run(self._relay())

    async def _relay(self) -> float:
        signals = Signals()
        relay = Relay(
            self.outboxes["bench_relay"],
            Database(self.dsn),
            LogTransport(),
            settings=RelaySettings(batch_size=BATCH),
            probe=signals,
        )
        async with relay:
            await signals.wait("relay.ready")
            started = time.perf_counter()
            await signals.wait_total("relay.appended", self.events, timeout=600)
            return self.events / (time.perf_counter() - started)


def measure(rounds: int, *contenders: Callable[[], float]) -> list[float]:
    """The median of each contender, taken in turns so that a slow moment of the machine hits all of them."""
    figures: list[list[float]] = [[] for _ in contenders]
    for number in range(rounds):
        for contender, found in zip(contenders, figures, strict=True):
            found.append(contender())
            click.echo(f"  round {number + 1}: {contender.__name__} {found[-1]:,.0f} ev/s", err=True)
    return [statistics.median(found) for found in figures]


def run(dsn: str, events: int, rounds: int) -> dict[str, Any]:
    """All figures."""
    bench = Bench(dsn, events)
    raw, relay = measure(rounds, bench.raw, bench.relay)
    with psycopg.connect(dsn) as idle:
        idle.execute("set transaction isolation level repeatable read")
        idle.execute("select txid_current()")
        held_raw, held_relay = measure(rounds, bench.raw, bench.relay)
        idle.rollback()
    return {
        "events": events,
        "raw": raw,
        "relay": relay,
        "relay_to_raw": relay / raw,
        "raw_with_open_transaction": held_raw,
        "relay_with_open_transaction": held_relay,
        "relay_kept": held_relay / relay,
        "raw_kept": held_raw / raw,
    }


def table(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """The figures for a person."""
    raw, relay = figures["raw_with_open_transaction"], figures["relay_with_open_transaction"]
    return [
        ("", "raw loop", "relay", "ratio"),
        ("drain, ev/s", f"{figures['raw']:,.0f}", f"{figures['relay']:,.0f}", f"{figures['relay_to_raw']:.2f}"),
        ("with a transaction left open, ev/s", f"{raw:,.0f}", f"{relay:,.0f}", f"{relay / raw:.2f}"),
        ("share kept with it open", f"{figures['raw_kept']:.2f}", f"{figures['relay_kept']:.2f}"),
    ]


@click.command()
@click.option("--events", default=50_000, show_default=True, help="Backlog per round.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--dsn", default=None, help="A server to use instead of the embedded one.")
@click.option("--json", "as_json", is_flag=True)
def main(events: int, rounds: int, dsn: str | None, as_json: bool) -> None:
    """Relay drain to the log, as a ratio to a raw SQL loop."""
    if dsn is not None:
        figures = run(dsn, events, rounds)
    else:
        settings = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
        with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder), settings=settings) as server:
            figures = run(server.dsn, events, rounds)
    if as_json:
        click.echo(json.dumps(figures))
    else:
        for label, *cells in table(figures):
            click.echo(f"{label:36}" + "".join(f"{cell:>12}" for cell in cells))
    if figures["relay_to_raw"] < TARGET:
        click.echo(f"below the target of {TARGET} of the raw loop", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
