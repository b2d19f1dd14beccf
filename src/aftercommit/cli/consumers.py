"""`aftercommit consumers`: list consumers, pause, resume, move, rename and forget them."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

import click
import psycopg

from aftercommit.cli.loading import find_outbox, find_shape, load_database
from aftercommit.cli.numbers import Count
from aftercommit.cli.options import as_json, global_options, pass_settings
from aftercommit.cli.output import line, message, print_json, print_table
from aftercommit.cli.prompts import confirm
from aftercommit.cli.repair_output import document
from aftercommit.cli.selecting import Moment, by_option, dry_run_option, open_repair, reason_option, run, yes_option
from aftercommit.consumer import names
from aftercommit.operate.overview import ConsumerState, overview
from aftercommit.operate.repair.seeking import SeekResult, SeekTarget
from aftercommit.postgres.shape import Shape
from aftercommit.settings import Settings
from aftercommit.text import plural

CONSUMER_COLUMNS = ("consumer", "position", "lag", "lag (s)", "paused", "holder")

Change = Callable[[psycopg.AsyncConnection[Any], Shape], Awaitable[None]]


@click.group()
@global_options
def consumers() -> None:
    """List the consumers of the log, pause and resume them, or move their checkpoints."""


@consumers.command("list")
@as_json
@pass_settings
def list_consumers(settings: Settings, as_json: bool) -> None:
    """Show every consumer with its checkpoint, its lag and its worker."""
    with load_database(settings, "consumers").connect_sync() as connection:
        found = overview(connection, find_shape(settings, connection)).consumers
    if as_json:
        print_json(found)
    else:
        print_table(CONSUMER_COLUMNS, consumer_rows(found))


def consumer_rows(found: Iterable[ConsumerState]) -> list[tuple[Any, ...]]:
    """The rows of the consumer table, which `status` shows as well."""
    return [(each.name, each.position, each.lag, each.lag_seconds, each.paused, each.holder) for each in found]


@consumers.command()
@click.argument("name")
@pass_settings
def pause(settings: Settings, name: str) -> None:
    """Pause a consumer. Its worker finishes the events in progress and then waits."""
    _change(settings, lambda connection, shape: names.set_paused(connection, shape, name, True))
    message(f"consumer {name!r} is paused")


@consumers.command()
@click.argument("name")
@pass_settings
def resume(settings: Settings, name: str) -> None:
    """Resume a paused consumer from where it stopped."""
    _change(settings, lambda connection, shape: names.set_paused(connection, shape, name, False))
    message(f"consumer {name!r} is resumed")


@consumers.command()
@click.argument("old")
@click.argument("new")
@yes_option
@pass_settings
def rename(settings: Settings, old: str, new: str, yes: bool) -> None:
    """Rename a consumer after you have renamed it in your code. Its checkpoint, inbox and dead letters move along."""
    if not yes:
        confirm(f"Rename consumer {old!r} to {new!r}? Its checkpoint, inbox and dead letters move along")
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
            f"Forget consumer {name!r}? This removes its checkpoint and inbox. A new consumer with this name would "
            "handle everything again"
        )
    _change(settings, lambda connection, shape: names.forget(connection, shape, name))
    message(f"consumer {name!r} is forgotten")


class Where(click.ParamType[SeekTarget]):
    """A place in the log: start, end, a position, or a time."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> SeekTarget:
        """Convert to what `Repair.seek` takes."""
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
    help="start (the oldest event in the log), end (only new events), a position (continue after it), or a time "
    "(continue with events published from then on): ISO 8601, or 2h for two hours ago.",
)
@click.option("--force", is_flag=True, help="Move it even if a worker holds the consumer; the worker starts over.")
@reason_option
@by_option
@dry_run_option
@yes_option
@as_json
@pass_settings
def seek(settings: Settings, name: str, to: SeekTarget, **options: Any) -> None:
    """Move the checkpoint of a consumer back or ahead. Counts the events in between and asks first.

    Events that are in the consumer's inbox are not handled again. To handle those again, use
    `aftercommit replay start --to NAME --again`.
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
        message(f"consumer {name!r} is already at position {found.before}: nothing was moved")
    elif not found.dry_run:
        message(f"consumer {name!r} continues after position {found.after}")


def _show_sought(found: SeekResult, force: bool) -> None:
    """Show the events between the old and the new checkpoint, and what happens to them."""
    line(f"{found.consumer}: {found.before} -> {found.after}")
    message(between(found))
    if found.goes_back and found.keeps_inbox and found.unknown:
        verb, them = ("is", "it") if found.unknown == 1 else ("are", "them")
        message(f"{found.unknown:,} of these {verb} older than the inbox: the consumer may handle {them} twice")
    if found.worker is not None:
        remedy = " and will start over" if force else ": stop that worker first, or give --force"
        message(f"{found.worker} is running this consumer{remedy}")


def between(found: SeekResult) -> str:
    """One sentence about the events between the old and the new checkpoint."""
    rest = found.events - found.handled - found.lettered
    letter = (found.lettered, "has an open dead letter, which stays", "have an open dead letter, which stays")
    if not found.goes_back:
        handled = (found.handled, "was handled", "were handled")
        others = (rest, "was not handled and will be skipped", "were not handled and will be skipped")
    elif not found.keeps_inbox:
        handled = (0, "", "")
        rest += found.handled
        others = (rest, "will be handled again (no inbox)", "will be handled again (no inbox)")
    else:
        handled = (found.handled, "is in the inbox and will be skipped", "are in the inbox and will be skipped")
        others = (rest, "will be handled", "will be handled")
    parts = [_share(found.events, *part) for part in (handled, letter, others) if part[0]]
    return f"{plural(found.events, 'event')} in between" + (f": {', '.join(parts)}" if parts else "")


def _share(total: int, count: int, one: str, several: str) -> str:
    """A part of the total with its verb: `it is`, `all are`, `3 are`."""
    if count == total:
        return f"it {one}" if total == 1 else f"all {several}"
    return f"{count:,} {one if count == 1 else several}"


def _change(settings: Settings, change: Change) -> None:
    database = load_database(settings, "consumers")
    with database.connect_sync() as connection:
        shape = find_outbox(settings, connection)

    async def apply() -> None:
        async with await database.connect() as connection:
            await change(connection, shape)

    run(apply())
