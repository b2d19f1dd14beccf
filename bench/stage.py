"""The stage all cases play on: one server, a database per case, sizes, the clock and the turns."""

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import psycopg

from aftercommit.embedded import EmbeddedPostgres
from bench.cpu import server_cpu
from bench.figures import Group, Sample, Series

# Commits wait for the disk, as in production. No checkpoint falls into a measurement except where a case asks for one,
# and the write-ahead log reuses its files: making new ones is a cost of the first minutes of a server's life alone.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_connections": "700",
    "min_wal_size": "2GB",
    "max_wal_size": "6GB",
    "checkpoint_timeout": "1h",
}
AGE_THE_LOG = "insert into age select repeat('x', 7000) from generate_series(1, %s)"
MEGABYTES_OF_LOG = 1500


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: all sizes are shares of those of a whole run."""

    scale: float

    def count(self, whole: int, least: int = 1) -> int:
        """A number of events."""
        return max(least, int(whole * self.scale))

    def seconds(self, whole: float) -> float:
        """The length of a window of time; a small run keeps more of it than of the counts."""
        return max(0.05, float(whole * min(1.0, self.scale * 3)))


@dataclass(slots=True)
class Watch:
    """A running measurement: set `events` before it ends."""

    events: int = 0
    sample: Sample | None = None

    @property
    def taken(self) -> Sample:
        """The sample, once the measurement is over."""
        assert self.sample is not None
        return self.sample


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who takes part in a group: `play` is one round."""

    name: str
    play: Callable[[], Sample]
    peer: str | None = None
    note: str = ""


class ContestantFailed(Exception):
    """A contestant cannot go on. The others do, and the table says why this one is not in it."""


class Stage:
    """A running server and how to measure on it."""

    def __init__(self, server: EmbeddedPostgres, sizes: Sizes, rounds: int) -> None:
        """The server is started."""
        self._server = server
        self.sizes = sizes
        self.rounds = rounds

    def database(self, name: str) -> str:
        """A new database; what an earlier case left under the name is gone."""
        with self.connect() as connection:
            connection.execute(f'drop database if exists "{name}" with (force)'.encode())
            connection.execute(f'create database "{name}"'.encode())
        return self._server.dsn_for(name)

    def connect(self, dsn: str | None = None) -> psycopg.Connection[Any]:
        """A connection in autocommit mode, for what is not measured."""
        return psycopg.connect(dsn or self._server.dsn, autocommit=True)

    def age(self) -> None:
        """Write the log once around, so that its files are there to be used again."""
        with self.connect(self.database("age")) as connection:
            connection.execute("create table age (filler text storage external)")
            connection.execute(AGE_THE_LOG, (self.sizes.count(MEGABYTES_OF_LOG * 140),))
            connection.execute("drop table age")
            connection.execute("checkpoint")

    def server_seconds(self) -> float:
        """Processor time the server has used so far."""
        pid = self._server.pid
        assert pid is not None, "the server has ended"
        return server_cpu(pid)

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """Time and processor time of what happens inside, in this process and in the server."""
        watch = Watch()
        gc.collect()
        server, client, started = self.server_seconds(), time.process_time(), time.perf_counter()
        yield watch
        seconds, client = time.perf_counter() - started, time.process_time() - client
        watch.sample = Sample(watch.events, seconds, client, self.server_seconds() - server)

    def measure(self, title: str, unit: str, contestants: Sequence[Contestant]) -> Group:
        """All contestants in turns, round after round. Where there are several, one before them warms up."""
        group = Group(title, unit, [Series(each.name, each.peer, each.note) for each in contestants])
        for number in range(-1 if self.rounds > 1 else 0, self.rounds):
            for contestant in contestants:
                series = group.find(contestant.name)
                if series is None:
                    continue
                say(f"{title} · {'warm-up' if number < 0 else f'round {number + 1}'} · {contestant.name}")
                try:
                    sample = contestant.play()
                except ContestantFailed as problem:
                    group.series.remove(series)
                    group.absent[contestant.name] = str(problem)
                    continue
                if number >= 0:
                    series.samples.append(sample)
        say("")
        for series in group.series:
            tell(f"  {title} · {series.name}: {series.rate.median:,.0f} {unit}")
        return group


def say(text: str) -> None:
    """One line that is written over again, for somebody who watches."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text[:110]}", nl=False, err=True)


def tell(text: str) -> None:
    """A line that stays."""
    click.echo(text, err=True)
