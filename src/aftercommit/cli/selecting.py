"""The options that choose events and dead letters: `Selection` on the command line."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from aftercommit.cli.durations import parse_duration
from aftercommit.cli.loading import find_outbox, load_database, load_outbox
from aftercommit.cli.numbers import Count
from aftercommit.cli.options import together
from aftercommit.errors import SelectionError
from aftercommit.operate.repair.repair import Repair
from aftercommit.operate.repair.selection import STATUSES, Selection
from aftercommit.outbox import Outbox
from aftercommit.outbox.row_maker import EARLIEST, LATEST
from aftercommit.postgres.shape import Shape
from aftercommit.settings import Settings

Result = TypeVar("Result")


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601 (UTC unless it has a time zone), or how long ago, like 90s, 15m, 1.5h, 7d or 2w."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """A datetime in UTC."""
        try:
            ago = parse_duration(value)
            moment = datetime.fromisoformat(value) if ago is None else datetime.now(UTC) - ago
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r:.60} is not a time: write 2026-03-01T10:00:00Z, 2026-03-01, or how long ago, like 2h",
                param,
                ctx,
            )
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        if not EARLIEST <= moment < LATEST:
            self.fail(f"{value!r:.60} is out of range: write a time from year 2 to year 9998, in UTC", param, ctx)
        return moment.astimezone(UTC)


def _named_values(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for given in values:
        name, equals, value = given.partition("=")
        if not (name and equals and value):
            raise click.BadParameter(f"{given!r:.80} should look like {param.metavar}")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice: an event has only one value for it. Give one")
        found[name] = value
    return found


_WHERE = "Events with this value in the payload, like order.currency=EUR. Searches up to 100,000 events."
_EVENT_OPTIONS = (
    click.option("--type", "types", multiple=True, metavar="TYPE", help="Events of this type. Repeat it for more."),
    click.option("--aggregate", "aggregate_id", metavar="ID", help="Events of the aggregate with this id."),
    click.option("--aggregate-type", metavar="TYPE", help="Events of aggregates of this type."),
    click.option(
        "--scope", multiple=True, callback=_named_values, metavar="NAME=VALUE", help="Events with this scope value."
    ),
    click.option("--where", multiple=True, callback=_named_values, metavar="FIELD=VALUE", help=_WHERE),
    click.option("--correlation", "correlation_id", metavar="ID", help="Events with this correlation id."),
    click.option(
        "--since", type=Moment(), metavar="TIME", help="Published from then on: ISO 8601, or 2h for two hours ago."
    ),
    click.option("--until", type=Moment(), metavar="TIME", help="Published before then."),
    click.option("--from-position", type=Count(), metavar="N", help="From this position in the log on."),
    click.option("--to-position", type=Count(), metavar="N", help="Up to and including this position."),
)
_LETTER_OPTIONS = (
    click.option("--consumer", metavar="NAME", help="Dead letters of this consumer; @relay for the transport."),
    click.option("--error-class", metavar="CLASS", help="Dead letters whose error has this class."),
    click.option("--error", metavar="TEXT", help="Dead letters whose error contains this text."),
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice(STATUSES),
        help="Dead letters with this status. Repeat it for more.",
    ),
)


def _refuse_empty(chosen: dict[str, Any]) -> None:
    for parameter in click.get_current_context().command.params:
        value = chosen.get(parameter.name or "")
        if value == "" or (isinstance(value, tuple) and "" in value):
            raise click.UsageError(f"{parameter.opts[0]} is empty: give a value, or leave it out")


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a selection to a command, and pass it the result as `selection`."""

    @functools.wraps(command)
    def select(*arguments: Any, **options: Any) -> Any:
        names = "types aggregate_id aggregate_type scope correlation_id since until from_position to_position where"
        chosen = {name: options.pop(name) for name in [*names.split(), "consumer", "error_class", "error", "statuses"]}
        event_ids = options.pop("event_ids", ())
        _refuse_empty(chosen)
        try:
            selection = Selection(event_ids=event_ids, **chosen)
        except SelectionError as problem:
            raise click.UsageError(str(problem)) from problem
        return command(*arguments, selection=selection, **options)

    return together(*_EVENT_OPTIONS, *_LETTER_OPTIONS)(select)


event_ids_argument = click.argument("event_ids", nargs=-1, type=click.UUID, metavar="[EVENT_ID]...")
exact_option = click.option("--exact", is_flag=True, help="Count and search everything, however long it takes.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
by_option = click.option("--by", metavar="NAME", help="Your name for the record. Default: user@machine.")
reason_option = click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")


def open_repair(settings: Settings, command: str, by: str | None = None) -> Repair:
    """Repair for the outbox that the options name; with --app it knows the declarations."""
    database = load_database(settings, command)
    declared: Outbox | Shape
    if settings.app is not None:
        declared = load_outbox(settings)
    else:
        with database.connect_sync() as connection:
            declared = find_outbox(settings, connection)
    return Repair(declared, database, by=by)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end."""
    return asyncio.run(work)


def described(selection: Selection) -> str:
    """A selection as one line of text."""
    parts = []
    for name, value in selection.as_json().items():
        shown = ",".join(value) if isinstance(value, list) else value
        if isinstance(value, dict):
            shown = ",".join(f"{key}={each}" for key, each in value.items())
        parts.append(f"{name}={shown}")
    return " ".join(parts) or "everything"
