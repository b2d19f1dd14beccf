"""`aftercommit status`: shows the state of an outbox, once or every few seconds."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from aftercommit.cli.consumers import CONSUMER_COLUMNS, consumer_rows
from aftercommit.cli.durations import rough_duration
from aftercommit.cli.exits import NOT_AS_IT_SHOULD_BE
from aftercommit.cli.figures import RateTracker
from aftercommit.cli.limits import limit_options, limits_of
from aftercommit.cli.loading import find_shape, load_database
from aftercommit.cli.numbers import DAY, Seconds
from aftercommit.cli.options import as_json, pass_settings
from aftercommit.cli.output import line, message, print_json, print_table, printable
from aftercommit.cli.overview_reader import OverviewReader
from aftercommit.cli.remedies import pasteable
from aftercommit.cli.retention import shown
from aftercommit.cli.screen import Screen
from aftercommit.errors import DatabaseUnavailable
from aftercommit.operate.health import HealthLimits, HealthProblem, problems
from aftercommit.operate.overview import Overview
from aftercommit.postgres.shape import LANES
from aftercommit.settings import Settings
from aftercommit.text import utc_second

Section = tuple[Sequence[str], list[tuple[Any, ...]]]


@click.command(short_help="Show backlog, relays, consumers and problems.")
@click.option("-w", "--watch", is_flag=True, help="Refresh until interrupted.")
@click.option(
    "--interval",
    type=Seconds(0.1, DAY),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often --watch refreshes.",
)
@limit_options
@as_json
@pass_settings
@click.pass_context
def status(
    ctx: click.Context, /, settings: Settings, watch: bool, interval: float, as_json: bool, **options: Any
) -> None:
    """Show the backlog, the log, relays, consumers, dead letters, operations, blocking transactions and problems.

    Exits with 3 if there is a problem: events wait without a relay or too long, a consumer has no worker, dead letters
    are parked, an operation is not driven, or a transaction blocks others. Each problem is shown with a remedy.
    """
    allowed = limits_of(options)
    database = load_database(settings, "status")
    with OverviewReader(database, lambda connection: find_shape(settings, connection)) as reader:
        if watch:
            _watch(reader, interval, allowed, as_json)
            return
        found = reader.now()
    wrong = problems(found, allowed)
    if as_json:
        print_json(_document(found, wrong))
    else:
        for columns, rows in _sections(found):
            print_table(columns, rows)
            if not sys.stdout.isatty():
                line("")
    for problem in wrong:
        message(f"problem: {printable(str(problem))}")
    ctx.exit(NOT_AS_IT_SHOULD_BE if wrong else 0)


def _watch(reader: OverviewReader, interval: float, limits: HealthLimits, as_json: bool) -> None:
    """Refresh until interrupted, also across outages of the database."""
    pace = RateTracker()
    try:
        if sys.stdout.isatty() and not as_json:
            # On the terminal's alternate screen: nothing scrolls or flickers.
            with Live(console=Console(highlight=False), auto_refresh=False, screen=True) as live:
                while True:
                    live.update(_screen(reader, pace, limits, interval), refresh=True)
                    time.sleep(interval)
        while True:
            _print_line(reader, pace, limits, as_json)
            time.sleep(interval)
    except KeyboardInterrupt:
        return


def _screen(reader: OverviewReader, pace: RateTracker, limits: HealthLimits, interval: float) -> Screen:
    try:
        found = pace.of(reader.now(), time.monotonic())
    except DatabaseUnavailable as problem:
        return Screen(None, [str(problem)], interval)
    return Screen(found, [pasteable(str(problem)) for problem in problems(found, limits)], interval)


def _print_line(reader: OverviewReader, pace: RateTracker, limits: HealthLimits, as_json: bool) -> None:
    try:
        found = pace.of(reader.now(), time.monotonic())
    except DatabaseUnavailable as problem:
        message(f"problem: {printable(str(problem))}")
        return
    wrong = problems(found, limits)
    if as_json:
        print_json(_document(found, wrong), compact=True)
        return
    line(
        f"pending={found.pending} oldest={found.oldest_seconds:.1f}s in={_rate(found.published_rate)}/s "
        f"out={_rate(found.delivered_rate)}/s failed={found.failed} head={found.head} lag={found.max_lag} "
        f"retrying={found.dead('retrying')} parked={found.dead('parked')} held_up_by={len(found.holders)} "
        f"problems={len(wrong)}"
    )


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"


def _document(found: Overview, wrong: Sequence[HealthProblem]) -> dict[str, Any]:
    relays = [{**asdict(relay), "alive": relay.is_alive} for relay in found.relays]
    holders = [{**asdict(holder), "remedy": holder.remedy} for holder in found.holders]
    return {
        **asdict(found),
        "drain_seconds": found.drain_seconds,
        "relays": relays,
        "holders": holders,
        "problems": [pasteable(str(problem)) for problem in wrong],
    }


def _sections(found: Overview) -> Iterator[Section]:
    yield (
        ("outbox", "pending", "oldest (s)", "retrying", "failed", "log head"),
        [(found.outbox, found.pending, found.oldest_seconds, found.retrying, found.failed, found.head)],
    )
    yield (
        ("in (/s)", "out (/s)", "drained in (s)", "lanes held"),
        [(found.published_rate, found.delivered_rate, found.drain_seconds, f"{LANES - found.free_lanes} of {LANES}")],
    )
    if found.life is not None and found.life.number > 1:
        life = found.life
        yield (
            ("life of the log", "began", "continues after", "previous life ended at", "why"),
            [(life.number, _ago(life.seconds), life.base, life.previous_last, life.reason)],
        )
    yield from (section for section in _details(found) if section[1])


def _details(found: Overview) -> Iterator[Section]:
    yield CONSUMER_COLUMNS, consumer_rows(found.consumers)
    yield (
        ("consumer", "waits", "until"),
        [(wait.consumer, str(wait), utc_second(wait.until)) for wait in found.version_waits],
    )
    yield (
        ("relay", "last seen (s)", "lanes", "alive"),
        [(relay.name, relay.silent_seconds, relay.lanes, relay.is_alive) for relay in found.relays],
    )
    yield (
        ("dead letters of", "status", "count"),
        [(each.owner, each.status, each.count) for each in found.dead_letters],
    )
    yield (
        ("operation", "kind", "status", "finished", "failed", "driven"),
        [
            (each.id, each.kind, each.status, f"{each.through} of {each.total}", each.failed, each.driven)
            for each in found.operations
        ],
    )
    yield (
        ("retention of", "kept for", "removed", "last run", "waits for"),
        [
            (
                each.task.replace("_", " "),
                _kept(each.keep_seconds),
                each.removed,
                _ago(each.ran_seconds_ago),
                "; ".join(each.kept_back) or None,
            )
            for each in found.upkeep
            if each.ran_seconds_ago is not None
        ],
    )
    yield ("blocked by", "what"), [(str(holder), "; ".join(holder.holds)) for holder in found.holders]


def _kept(seconds: float | None) -> str:
    return shown(timedelta(seconds=seconds) if seconds is not None else None)


def _ago(seconds: float) -> str:
    return f"{rough_duration(seconds)} ago"
