"""A soak: events at a constant rate for an hour, with consumers and readers; is everything flat, and exact?

Progress goes to standard error, a table to standard output. Exits with 1 if something grows, is lost or comes twice.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import psutil  # type: ignore[import-untyped]
import psycopg

from aftercommit.embedded import EmbeddedPostgres
from bench import machine
from bench.feed_server import allow_files
from bench.peers.environment import ROOT
from bench.soak import declared, record
from bench.stage import tell

MINUTE: Final = 60.0
PATIENCE: Final = 300.0
PAGE, RECORD = "soak.md", "soak.json"
SETTINGS: Final = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "512MB"}
SIZES: Final = f"""
    select (select pg_total_relation_size('{declared.SCHEMA}.outbox')),
           (select sum(pg_total_relation_size(inhrelid)) from pg_inherits
            where inhparent = '{declared.SCHEMA}.log'::regclass),
           (select pg_total_relation_size('{declared.SCHEMA}.processed_events')),
           (select sum(n_dead_tup) from pg_stat_user_tables where schemaname = '{declared.SCHEMA}'),
           (select pg_current_wal_insert_lsn() - '0/0'::pg_lsn)
"""
PLACES: Final = f"""
    select (select position from {declared.SCHEMA}.head),
           (select coalesce(min(position), 0) from {declared.SCHEMA}.consumer),
           (select count(*) from {declared.SCHEMA}.consumer)
"""
EFFECTS: Final = "select consumer, count(*), count(distinct number) from public.soak_effect group by consumer"


class Cast:
    """The processes of a run."""

    def __init__(self, stack: ExitStack, dsn: str, rate: float, readers: int) -> None:
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._stack = stack
        for role in ("relay", "worker", "serve"):
            self._start(role, dsn)
        self._start("read", self._line("serve"), str(readers - readers // 2), str(readers // 2))
        self._start("publish", dsn, f"{rate:g}")

    def ask(self, role: str, word: str = "report") -> dict[str, Any]:
        """A line to a process, and what it answers."""
        stdin = self.processes[role].stdin
        assert stdin is not None
        stdin.write(f"{word}\n")
        stdin.flush()
        found: dict[str, Any] = json.loads(self._line(role))
        return found

    def resident(self) -> dict[str, float]:
        """Megabytes of each process."""
        found = {}
        for role, process in self.processes.items():
            if process.poll() is not None:
                raise click.ClickException(f"{role} has ended with {process.returncode}: see above")
            found[f"RSS of {role}, MB"] = psutil.Process(process.pid).memory_info().rss / (1 << 20)
        return found

    def _start(self, role: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "bench.soak.process", role, *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self.processes[role] = process
        self._stack.callback(_end, process)

    def _line(self, role: str) -> str:
        stdout = self.processes[role].stdout
        assert stdout is not None
        line = stdout.readline().strip()
        if not line:
            raise click.ClickException(f"{role} has ended: see above")
        return line


class Soak:
    """A run: samples while it lasts, and the count at its end."""

    def __init__(self, connection: psycopg.Connection[Any], cast: Cast) -> None:
        self._connection, self._cast = connection, cast
        self._published, self._wal = 0, self._sizes()[4]
        self.samples: list[dict[str, float]] = []

    def run(self, minutes: float) -> None:
        """A sample a minute, from the moment at which the publisher answers."""
        self._cast.ask("publish")
        began = time.monotonic()
        for number in range(1, max(1, round(minutes)) + 1):
            time.sleep(max(0.0, began + number * min(MINUTE, minutes * MINUTE) - time.monotonic()))
            sample = self._sample()
            self.samples.append(sample)
            tell(f"  minute {number}: " + ", ".join(f"{name} {value:,.4g}" for name, value in sample.items()))

    def end(self) -> tuple[int, dict[str, tuple[int, int]], dict[str, Any], dict[str, str]]:
        """Stop publishing, wait until all have caught up, and count."""
        published = self._cast.ask("publish", "stop")["published"]
        deadline = time.monotonic() + PATIENCE
        while True:
            readers = self._cast.ask("read")
            head, slowest, _ = self._places()
            if min(head, slowest, readers["slowest"]) >= published or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        rows = self._connection.execute(EFFECTS).fetchall()
        effects = dict.fromkeys(declared.CONSUMERS, (0, 0)) | {row[0]: (row[1], row[2]) for row in rows}
        return published, effects, readers, record.exactness(published, effects, readers)

    def _sample(self) -> dict[str, float]:
        published, readers = self._cast.ask("publish")["published"], self._cast.ask("read")
        outbox, log, inbox, dead, wal = self._sizes()
        head, slowest, _ = self._places()
        new, self._published = max(1, published - self._published), published
        written, self._wal = wal - self._wal, wal
        return {
            "events": published,
            **self._cast.resident(),
            "WAL per event, B": written / new,
            "outbox, MB": outbox / 1e6,
            "log per event, B": log / max(1, head),
            "inbox per event, B": inbox / max(1, slowest),
            "dead rows": dead,
            "lag, events": published - slowest,
            "stream p99, ms": readers["stream_p99_ms"],
            "poll p99, ms": readers["poll_p99_ms"],
        }

    def _sizes(self) -> tuple[float, ...]:
        return tuple(float(value or 0) for value in self._connection.execute(SIZES).fetchone() or ())

    def _places(self) -> tuple[int, int, int]:
        head, slowest, consumers = self._connection.execute(PLACES).fetchone() or (0, 0, 0)
        return head, slowest if consumers == len(declared.CONSUMERS) else 0, consumers


@click.command(help=__doc__)
@click.option("--minutes", type=click.FloatRange(min=0.05), default=60.0, show_default=True)
@click.option("--rate", type=click.FloatRange(min=1), default=500.0, show_default=True, help="Events per second.")
@click.option("--readers", type=click.IntRange(min=2), default=100, show_default=True, help="Half stream, half poll.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help=f"Write {RECORD} and {PAGE} here.")
def main(minutes: float, rate: float, readers: int, out: Path | None) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    allow_files()
    found = measure(minutes, rate, readers)
    click.echo(record.page(found))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / RECORD).write_text(json.dumps(found, indent=1) + "\n")
        (out / PAGE).write_text(record.page(found))
    sys.exit(0 if record.is_green(found) else 1)


def measure(minutes: float, rate: float, readers: int) -> dict[str, Any]:
    """A run on a server of its own; the record."""
    with (
        tempfile.TemporaryDirectory(prefix="aftercommit-soak-") as folder,
        EmbeddedPostgres(Path(folder), settings=SETTINGS) as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        declared.prepare(connection)
        versions = machine.versions(connection)
        with _cast(server.dsn, rate, readers) as cast:
            soak = Soak(connection, cast)
            soak.run(minutes)
            published, effects, seen, wrong = soak.end()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "minutes": minutes,
        "rate": rate,
        "readers": readers,
        "machine": machine.describe(),
        "versions": versions,
        "published": published,
        "effects": effects,
        "seen": seen,
        "wrong": wrong,
        "flatness": record.flatness(soak.samples),
        "samples": soak.samples,
    }


@contextmanager
def _cast(dsn: str, rate: float, readers: int) -> Iterator[Cast]:
    with ExitStack() as stack:
        yield Cast(stack, dsn, rate, readers)


def _end(process: "subprocess.Popen[str]") -> None:
    """Its input is closed; one that does not end by itself is killed."""
    try:
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    main()
