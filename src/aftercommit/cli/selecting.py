"""The options by which commands choose events and dead letters: the grammar of `Selection` on the command line."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from aftercommit.cli.durations import parse_duration
from aftercommit.cli.loading import find_shape, load_database, load_outbox
from aftercommit.errors import SelectionError
from aftercommit.outbox import Outbox
from aftercommit.postgres.overview import overview
from aftercommit.postgres.shape import Shape
from aftercommit.repair import Repair, Selection
from aftercommit.repair.selection import STATUSES
from aftercommit.settings import Settings

Result = TypeVar("Result")


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """A moment in ISO 8601 (UTC where no zone is given), or so long ago, like 90s, 15m, 1.5h, 7d or 2w."""
    if value is None:
        return None
    try:
        if (ago := parse_duration(value)) is not None:
            return datetime.now(UTC) - ago
        moment = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is no time: write 2026-03-01T10:00:00Z, 2026-03-01, or how long ago, like 2h"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _scope(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.BadParameter(f"{name!r} should look like NAME=VALUE")
    return {name: value for name, _, value in pairs}


_EVENT_OPTIONS = (
    click.option("--type", "types", multiple=True, metavar="TYPE", help="Events of this type; may be repeated."),
    click.option("--aggregate", "aggregate_id", metavar="ID", help="Events of the aggregate with this id."),
    click.option("--aggregate-type", metavar="TYPE", help="Events of aggregates of this type."),
    click.option("--scope", multiple=True, callback=_scope, metavar="NAME=VALUE", help="Within this scope."),
    click.option("--correlation", "correlation_id", metavar="ID", help="Events of this correlation."),
    click.option(
        "--since", callback=_moment, metavar="TIME", help="Published then or later: ISO 8601, or 2h for two hours ago."
    ),
    click.option("--until", callback=_moment, metavar="TIME", help="Published before."),
    click.option(
        "--from-position", type=click.IntRange(min=0), metavar="N", help="At this position of the log or behind."
    ),
    click.option("--to-position", type=click.IntRange(min=0), metavar="N", help="Up to this position."),
)
_LETTER_OPTIONS = (
    click.option("--consumer", metavar="NAME", help="Dead letters of this consumer; @relay for the transport."),
    click.option("--error-class", metavar="CLASS", help="That failed with this class of error."),
    click.option("--error", metavar="TEXT", help="Whose error contains this text."),
    click.option(
        "--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="In this state; may be repeated."
    ),
)


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a selection, and the selection itself as `selection`."""

    @functools.wraps(command)
    def select(*arguments: Any, **options: Any) -> Any:
        names = "types aggregate_id aggregate_type scope correlation_id since until from_position to_position consumer"
        chosen = {name: options.pop(name) for name in [*names.split(), "error_class", "error", "statuses"]}
        event_ids = options.pop("event_ids", ())
        try:
            selection = Selection(event_ids=event_ids, **chosen)
        except SelectionError as problem:
            raise click.UsageError(str(problem)) from problem
        return command(*arguments, selection=selection, **options)

    for option in reversed((*_EVENT_OPTIONS, *_LETTER_OPTIONS)):
        select = option(select)
    return select


event_ids_argument = click.argument("event_ids", nargs=-1, type=click.UUID, metavar="[EVENT_ID]...")
dry_run_option = click.option("--dry-run", is_flag=True, help="Count, and change nothing.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
by_option = click.option("--by", metavar="NAME", help="Who does it, for the record; you on this machine, if not given.")


def repair_desk(settings: Settings, command: str, by: str | None = None) -> Repair:
    """The repair desk of the outbox that is meant; with --app it knows the declarations."""
    database = load_database(settings, command)
    declared: Outbox | Shape
    if settings.app is not None:
        declared = load_outbox(settings)
    else:
        with database.connect_sync() as connection:
            declared = find_shape(settings, connection)
            # Says what to do where there is no outbox, before anything is tried.
            overview(connection, declared)
    return Repair(declared, database, by=by)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end what the desk does in asyncio."""
    return asyncio.run(work)


def described(selection: Selection) -> str:
    """A selection in the words of its options."""
    parts = []
    for name, value in selection.as_json().items():
        shown = ",".join(value) if isinstance(value, list) else value
        if isinstance(value, dict):
            shown = ",".join(f"{key}={each}" for key, each in value.items())
        parts.append(f"{name}={shown}")
    return " ".join(parts) or "everything"
