"""`aftercommit replay`: let events be delivered or handled once more, at a pace, with progress, on record."""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import click

from aftercommit.cli.exits import INTERRUPTED, PARTIAL
from aftercommit.cli.numbers import Amount, Count
from aftercommit.cli.options import as_json, global_options, pass_settings
from aftercommit.cli.output import message, printable
from aftercommit.cli.progress import ProgressBar
from aftercommit.cli.prompts import confirm
from aftercommit.cli.repair_output import (
    counts,
    show_operation,
    show_operations,
    show_preview,
    show_problems,
    tell,
)
from aftercommit.cli.running import Stopper
from aftercommit.cli.selecting import (
    by_option,
    described,
    dry_run_option,
    event_ids_argument,
    open_repair,
    run,
    selection_options,
    yes_option,
)
from aftercommit.errors import SetChanged
from aftercommit.operate.repair import TO_TRANSPORT, Operation, Preview, Repair, ReplayProgress, Selection
from aftercommit.settings import Settings
from aftercommit.text import plural

_OTHERS = ("retrying", "waiting", "discarded")
_operation = click.argument("operation_id", type=click.UUID, metavar="ID")


@click.group(short_help="Let events be delivered or handled once more.")
@global_options
def replay() -> None:
    """Replays: a frozen set of events goes to a consumer or through the transport once more."""


@replay.command(short_help="Replay dead letters, or events of the log.")
@event_ids_argument
@selection_options
@click.option("--to", metavar="NAME", help="To this consumer alone. Letters go to their owners, if not given.")
@click.option("--through-transport", is_flag=True, help="Out through the transport again; who had handled it skips it.")
@click.option("--rate", type=Amount(0.0001, 1_000_000), metavar="N", help="So many a second at most.")
@click.option("--again", is_flag=True, help="Also what the consumer has handled: its effects happen once more.")
@click.option("--past-horizon", is_flag=True, help="Also what the inbox has forgotten: it may be handled twice.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@by_option
@dry_run_option
@yes_option
@as_json
@pass_settings
@click.pass_context
def start(ctx: click.Context, /, settings: Settings, selection: Selection, **options: Any) -> None:
    """Replay dead letters (chosen by consumer, error or status) or events of the log (by what they are about).

    Counts first and asks. Ctrl-C stops feeding, and `replay resume` goes on. Exits with 4 when something failed, or
    when there is nothing to replay.
    """
    if options["to"] and options["through_transport"]:
        raise click.UsageError("--to and --through-transport exclude each other")
    if selection.is_everything:
        raise click.UsageError(
            "nothing is chosen: say which events, by their ids or by what they have in common; --from-position 1 means "
            "the whole log"
        )
    target = TO_TRANSPORT if options["through_transport"] else options["to"]
    repair = open_repair(settings, "replay", options["by"])
    found = run(repair.preview(selection, to=target, again=options["again"]))
    if options["dry_run"] or not found.total or not options["as_json"]:
        tell(found, options["as_json"], lambda found: _show_preview(repair, found, selection, options))
    _tell_unknown(found, selection)
    if options["dry_run"] or not found.total:
        ctx.exit(0 if found.total else PARTIAL)
    if not options["yes"]:
        _ask(found.total, options["again"])
    chosen = {name: options[name] for name in ("again", "past_horizon", "reason")}
    operation = _start(repair, selection, found.total, options, to=target, per_second=options["rate"], **chosen)
    _drive(ctx, repair, operation, options["as_json"])


@replay.command("list", short_help="Show replays, newest first.")
@click.option("--all", "everything", is_flag=True, help="Retries, edits and discards too.")
@click.option("--limit", type=Count(1), default=50, show_default=True, metavar="COUNT", help="Show so many at most.")
@as_json
@pass_settings
def list_operations(settings: Settings, everything: bool, limit: int, as_json: bool) -> None:
    """Show replays, newest first, with who started them and how they went."""
    found = run(open_repair(settings, "replay").operations(None if everything else ["replay"], limit=limit))
    tell(found, as_json, show_operations)
    if not found and not as_json:
        message("no operations" if everything else "no replays")


@replay.command(short_help="Show one operation, and what did not go through.")
@_operation
@click.option(
    "--limit", type=Count(1), default=20, show_default=True, metavar="COUNT", help="Show so many problems at most."
)
@as_json
@pass_settings
def show(settings: Settings, operation_id: UUID, limit: int, as_json: bool) -> None:
    """Show one replay (or any operation), and what failed or was skipped, with the reason."""
    repair = open_repair(settings, "replay")
    operation = run(repair.operation(operation_id))
    problems = run(repair.problems(operation_id, limit=limit))
    hidden = max(0, operation.failed + operation.skipped - len(problems)) if len(problems) == limit else 0

    def show(operation: Operation) -> None:
        show_operation(operation)
        show_problems(problems)

    tell(operation, as_json, show, problems=problems, problems_not_shown=hidden)
    if hidden:
        message(f"{plural(hidden, 'more problem')} not shown: --limit {limit + hidden} shows all")


@replay.command()
@_operation
@as_json
@pass_settings
@click.pass_context
def watch(ctx: click.Context, /, settings: Settings, operation_id: UUID, as_json: bool) -> None:
    """Look on while another process drives a replay, until it ends."""
    repair = open_repair(settings, "replay")
    with ProgressBar() as bar:
        operation = run(_watch(repair, operation_id, bar))
    _tell(ctx, operation, as_json)


@replay.command()
@_operation
@as_json
@pass_settings
@click.pass_context
def resume(ctx: click.Context, /, settings: Settings, operation_id: UUID, as_json: bool) -> None:
    """Go on with a replay that nobody drives any more."""
    repair = open_repair(settings, "replay")
    _drive(ctx, repair, run(repair.operation(operation_id)), as_json)


@replay.command(short_help="End a replay; what was not tried is as before.")
@_operation
@as_json
@pass_settings
@click.pass_context
def abort(ctx: click.Context, /, settings: Settings, operation_id: UUID, as_json: bool) -> None:
    """End a replay: nothing further is fed, and what was not tried yet is as it was before."""
    _tell(ctx, run(open_repair(settings, "replay").abort(operation_id)), as_json)


def _start(repair: Repair, selection: Selection, expected: int, options: dict[str, Any], **chosen: Any) -> Operation:
    """Begin with as many items as the operator has agreed to; when it has become another number, ask again."""
    while True:
        try:
            return run(repair.start(selection, expected=expected, **chosen))
        except SetChanged as problem:
            message(f"{plural(expected, 'item')} when they were counted, {problem.found:,} now")
            expected = problem.found
        if not options["yes"]:
            _ask(expected, options["again"])


def _ask(total: int, again: bool) -> None:
    if again:
        message("--again: what was handled is handled once more, with all its effects")
    confirm(f"Replay {plural(total, 'item')}?")


def _drive(ctx: click.Context, repair: Repair, operation: Operation, as_json: bool) -> None:
    message(f"replay {operation.id}")
    ended: list[Operation] = []
    with ProgressBar() as bar, Stopper() as stopper:

        async def drive() -> None:
            driver = repair.driver(operation.id, bar.show)
            stopper.calls(driver.stopping.set)
            ended.append(await driver.run())

        stopper.run(drive())
    if not ended[0].is_finished:
        goes_on = f"`aftercommit replay resume {operation.id}` goes on, `abort` takes back what was not tried"
        tell(ended[0], as_json, lambda ended: message(f"stopped at {counts(ended)}: {goes_on}"))
        ctx.exit(INTERRUPTED)
    _tell(ctx, ended[0], as_json)


async def _watch(repair: Repair, operation_id: UUID, bar: ProgressBar) -> Operation:
    while True:
        operation = await repair.operation(operation_id)
        bar.show(
            ReplayProgress(
                operation.id, operation.status, operation.total, operation.done, operation.skipped, operation.failed
            )
        )
        if operation.is_finished:
            return operation
        await asyncio.sleep(0.5)


def _show_preview(repair: Repair, found: Preview, selection: Selection, options: dict[str, Any]) -> None:
    if found.total:
        show_preview(found, selection, again=options["again"], past_horizon=options["past_horizon"])
        return
    which = f"matches ({described(selection)})"
    if selection.is_of_letters and not selection.statuses:
        others = _in_other_states(repair, selection, options["to"])
        message(printable(f"there is nothing to replay: no parked letter {which}{others}"))
    else:
        message(printable(f"there is nothing to replay: no event or dead letter {which}"))


def _in_other_states(repair: Repair, selection: Selection, to: str | None) -> str:
    """Letters that would match if they were asked for: without --status, parked ones are meant."""
    chosen = replace(selection, consumer=to or selection.consumer)
    counts = {status: run(repair.letters(replace(chosen, statuses=(status,)), limit=1)).total for status in _OTHERS}
    found = [f"{count:,} {status}" for status, count in counts.items() if count]
    return f", but {' and '.join(found)}: --status chooses them" if found else ""


def _tell_unknown(found: Preview, selection: Selection) -> None:
    """Events that were named and are not among those that would be replayed."""
    unknown = len(set(selection.event_ids)) - found.events
    if unknown > 0:
        verb = "is" if unknown == 1 else "are"
        message(
            f"{plural(unknown, 'named event')} {verb} left out: not in the log, without a dead letter that matches, or "
            "not for this consumer or not read by it yet"
        )


def _tell(ctx: click.Context, operation: Operation, as_json: bool) -> None:
    def show(operation: Operation) -> None:
        message(f"{operation.status}: {counts(operation)} of {plural(operation.total, 'item')}")
        if operation.failed or operation.skipped:
            message(f"`aftercommit replay show {operation.id}` says why")

    tell(operation, as_json, show)
    ctx.exit(0 if operation.is_whole else PARTIAL)
