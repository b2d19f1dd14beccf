"""`aftercommit consumers`: look at checkpoints, pause, resume, move, rename and forget them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

import click
import psycopg

from aftercommit.cli.loading import find_shape, load_database
from aftercommit.cli.numbers import Count
from aftercommit.cli.options import as_json, global_options, pass_settings
from aftercommit.cli.output import line, message, print_json, print_table
from aftercommit.cli.prompts import confirm
from aftercommit.cli.repair_output import document
from aftercommit.cli.selecting import Moment, by_option, dry_run_option, open_repair, run, yes_option
from aftercommit.consumer import names
from aftercommit.operate.overview import ConsumerState, overview
from aftercommit.operate.repair import SeekResult, SeekTarget
from aftercommit.postgres.shape import Shape
from aftercommit.settings import Settings
from aftercommit.text import plural

CONSUMER_COLUMNS = ("consumer", "position", "lag", "lag (s)", "paused", "holder")

Change = Callable[[psycopg.AsyncConnection[Any], Shape], Awaitable[None]]


@click.group()
@global_options
def consumers() -> None:
    """Consumers of the log: where they are, and whether they may go on."""


@consumers.command("list")
@as_json
@pass_settings
def list_consumers(settings: Settings, as_json: bool) -> None:
    """Show every consumer with its checkpoint, its lag and who works for it."""
    with load_database(settings, "consumers").connect_sync() as connection:
        found = overview(connection, find_shape(settings, connection)).consumers
    if as_json:
        print_json(found)
    else:
        print_table(CONSUMER_COLUMNS, consumer_rows(found))


def consumer_rows(found: Iterable[ConsumerState]) -> list[tuple[Any, ...]]:
    """The rows of the table that `status` shows too."""
    return [(each.name, each.position, each.lag, each.lag_seconds, each.paused, each.holder) for each in found]


@consumers.command()
@click.argument("name")
@pass_settings
def pause(settings: Settings, name: str) -> None:
    """Let a consumer rest; its worker finishes what it has begun and then waits."""
    _change(settings, lambda connection, shape: names.set_paused(connection, shape, name, True))
    message(f"consumer {name!r} is paused")


@consumers.command()
@click.argument("name")
@pass_settings
def resume(settings: Settings, name: str) -> None:
    """Let a paused consumer go on from where it stopped."""
    _change(settings, lambda connection, shape: names.set_paused(connection, shape, name, False))
    message(f"consumer {name!r} goes on")


@consumers.command()
@click.argument("old")
@click.argument("new")
@yes_option
@pass_settings
def rename(settings: Settings, old: str, new: str, yes: bool) -> None:
    """Give a checkpoint, its inbox and its dead letters the name that the code uses now."""
    if not yes:
        confirm(f"Rename consumer {old!r} to {new!r}? Its checkpoint, inbox and dead letters go with it")
    _change(settings, lambda connection, shape: names.rename(connection, shape, old, new))
    message(f"consumer {old!r} is now {new!r}")


@consumers.command()
@click.argument("name")
@yes_option
@pass_settings
def forget(settings: Settings, name: str, yes: bool) -> None:
    """Remove the checkpoint and the inbox of a consumer that no program declares any more."""
    if not yes:
        confirm(
            f"Forget consumer {name!r}? Its checkpoint and inbox are removed; under this name everything would be "
            "consumed again"
        )
    _change(settings, lambda connection, shape: names.forget(connection, shape, name))
    message(f"consumer {name!r} is forgotten")


class Where(click.ParamType[SeekTarget]):
    """A place of the log: start, end, a position, or a moment."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> SeekTarget:
        """As `Repair.seek` takes it."""
        if value in ("start", "end"):
            return "start" if value == "start" else "end"
        if value.lstrip("+-").isdecimal():
            position: int = Count().convert(value, param, ctx)
            return position
        return Moment().convert(value, param, ctx)


@consumers.command(short_help="Move the checkpoint of a consumer.")
@click.argument("name")
@click.option(
    "--to",
    type=Where(),
    required=True,
    metavar="PLACE",
    help="start (the first event that is kept), end (the tip), a position (it goes on behind it), or a time (it goes "
    "on with what was published then or later): ISO 8601, or 2h for two hours ago.",
)
@click.option("--force", is_flag=True, help="Take the consumer away from the worker that holds it; it begins anew.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@by_option
@dry_run_option
@yes_option
@as_json
@pass_settings
def seek(settings: Settings, name: str, to: SeekTarget, **options: Any) -> None:
    """Move the checkpoint of a consumer of the log, back or ahead. Counts first and asks.

    What its inbox knows as handled is not handled again: to have that, `aftercommit replay start --to NAME --again`.
    """
    repair = open_repair(settings, "consumers", options["by"])
    found = replace(run(repair.seek(name, to, dry_run=True)), dry_run=options["dry_run"])
    is_there = found.before == found.after
    if not options["as_json"] and not is_there:
        _show_sought(found, options["force"])
    if not options["dry_run"] and not is_there:
        if not options["yes"]:
            confirm(f"Move consumer {name!r} from {found.before} to {found.after}?")
        found = run(repair.seek(name, to, reason=options["reason"], force=options["force"]))
    if options["as_json"]:
        print_json(document(found))
    elif is_there:
        message(f"consumer {name!r} is there already, behind position {found.before}: nothing was moved")
    elif not found.dry_run:
        message(f"consumer {name!r} goes on behind position {found.after}")


def _show_sought(found: SeekResult, force: bool) -> None:
    """What lies between the two places, and what becomes of it."""
    line(f"{found.consumer}: {found.before} -> {found.after}")
    message(between(found))
    if found.goes_back and found.keeps_inbox and found.unknown:
        verb, them = ("is", "it was") if found.unknown == 1 else ("are", "they were")
        message(f"{found.unknown:,} of these {verb} from before the inbox's horizon: if {them} handled, then now twice")
    if found.worker is not None:
        message(f"{found.worker} works for it" + (" and will begin anew" if force else ": stop that first, or --force"))


def between(found: SeekResult) -> str:
    """What becomes of the events between the two places of a checkpoint, in one sentence."""
    rest = found.events - found.handled - found.lettered
    letter = (found.lettered, "has an open dead letter and goes its way", "have an open dead letter and go its way")
    if not found.goes_back:
        handled = (found.handled, "was handled", "were handled")
        others = (rest, "was not handled and never will be", "were not handled and never will be")
    elif not found.keeps_inbox:
        handled = (0, "", "")
        rest += found.handled
        others = (rest, "will be handled again, without an inbox", "will be handled again, without an inbox")
    else:
        handled = (found.handled, "is in the inbox and will be skipped", "are in the inbox and will be skipped")
        others = (rest, "will be handled", "will be handled")
    parts = [_share(found.events, *part) for part in (handled, letter, others) if part[0]]
    return f"{plural(found.events, 'event')} in between" + (f": {', '.join(parts)}" if parts else "")


def _share(total: int, count: int, one: str, several: str) -> str:
    """A part of so many: `it is`, `all are`, `3 are`."""
    if count == total:
        return f"it {one}" if total == 1 else f"all {several}"
    return f"{count:,} {one if count == 1 else several}"


def _change(settings: Settings, change: Change) -> None:
    database = load_database(settings, "consumers")
    with database.connect_sync() as connection:
        shape = find_shape(settings, connection)
        # Says what to do where there is no outbox, before anything is tried.
        overview(connection, shape)

    async def run() -> None:
        async with await database.connect() as connection:
            await change(connection, shape)

    asyncio.run(run())
