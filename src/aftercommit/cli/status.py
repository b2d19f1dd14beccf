"""`aftercommit status`: one look at an outbox, or one every few seconds. Exit status 3 when it needs a person."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from aftercommit.cli.consumers import CONSUMER_COLUMNS, consumer_rows
from aftercommit.cli.loading import find_shape, load_database
from aftercommit.cli.look import Look
from aftercommit.cli.options import as_json, pass_settings
from aftercommit.cli.output import line, message, print_json, print_table, printable, rich_table
from aftercommit.errors import DatabaseUnavailable
from aftercommit.postgres.overview import Overview
from aftercommit.settings import Settings

UNHEALTHY = 3


@click.command()
@click.option("-w", "--watch", is_flag=True, help="Look again and again, until interrupted.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks of --watch.",
)
@click.option(
    "--max-age",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long an event may wait before that is a problem.",
)
@as_json
@pass_settings
@click.pass_context
def status(ctx: click.Context, settings: Settings, watch: bool, interval: float, max_age: float, as_json: bool) -> None:
    """Show what waits, where the log and its consumers are, who is at work, and what is wrong.

    Exits with 3 when events wait without a relay, wait too long, or a consumer has nobody to work for it.
    """
    database = load_database(settings, "status")
    with Look(database, lambda connection: find_shape(settings, connection)) as look:
        if watch:
            _watch(look, interval, max_age, as_json)
            return
        found = look.now()
    problems = found.problems(max_age)
    if as_json:
        print_json(_document(found, problems))
    else:
        for columns, rows in _sections(found):
            print_table(columns, rows)
            line("")
    for problem in problems:
        message(f"problem: {printable(problem)}")
    ctx.exit(UNHEALTHY if problems else 0)


def _watch(look: Look, interval: float, max_age: float, as_json: bool) -> None:
    """Until interrupted. The database may come and go meanwhile."""
    try:
        if sys.stdout.isatty() and not as_json:
            with Live(console=Console(highlight=False), auto_refresh=False, transient=True) as live:
                while True:
                    live.update(_screen(look, max_age), refresh=True)
                    time.sleep(interval)
        while True:
            _print_line(look, max_age, as_json)
            time.sleep(interval)
    except KeyboardInterrupt:
        return


def _screen(look: Look, max_age: float) -> RenderableType:
    try:
        found = look.now()
    except DatabaseUnavailable as problem:
        return Text(printable(str(problem)), style="red")
    problems = [Text(f"problem: {printable(problem)}", style="red") for problem in found.problems(max_age)]
    return Group(*(rich_table(columns, rows) for columns, rows in _sections(found)), *problems)


def _print_line(look: Look, max_age: float, as_json: bool) -> None:
    try:
        found = look.now()
    except DatabaseUnavailable as problem:
        message(f"problem: {printable(str(problem))}")
        return
    problems = found.problems(max_age)
    if as_json:
        print_json(_document(found, problems), compact=True)
        return
    lag = max((consumer.lag for consumer in found.consumers), default=0)
    line(
        f"pending={found.pending} oldest={found.oldest_seconds:.1f}s failed={found.failed} head={found.head} lag={lag} "
        f"retrying={found.dead('retrying')} parked={found.dead('parked')} problems={len(problems)}"
    )


def _document(found: Overview, problems: Sequence[str]) -> dict[str, Any]:
    relays = [{**asdict(relay), "alive": relay.is_alive} for relay in found.relays]
    return {**asdict(found), "relays": relays, "problems": list(problems)}


def _sections(found: Overview) -> Iterator[tuple[Sequence[str], list[tuple[Any, ...]]]]:
    yield (
        ("outbox", "pending", "oldest (s)", "retrying", "failed", "log head"),
        [(found.outbox, found.pending, found.oldest_seconds, found.retrying, found.failed, found.head)],
    )
    yield CONSUMER_COLUMNS, consumer_rows(found.consumers)
    yield (
        ("relay", "heard of (s)", "lanes", "alive"),
        [(relay.name, relay.silent_seconds, relay.lanes, relay.is_alive) for relay in found.relays],
    )
    yield (
        ("dead letters of", "status", "count"),
        [(each.owner, each.status, each.count) for each in found.dead_letters],
    )
