"""`aftercommit replay`: replays events to a consumer or through the transport, at a limited rate and on record."""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import click

from aftercommit.cli.exits import INTERRUPTED, PARTIAL
from aftercommit.cli.numbers import Amount, limit_option
from aftercommit.cli.options import as_json, global_options, pass_settings
from aftercommit.cli.output import message, printable
from aftercommit.cli.progress import ProgressBar
from aftercommit.cli.prompts import confirm
from aftercommit.cli.repair_output import counts, show_operation, show_operations, show_preview, show_problems, tell
from aftercommit.cli.running import Stopper
from aftercommit.cli.selecting import (
    by_option,
    described,
    dry_run_option,
    event_ids_argument,
    exact_option,
    open_repair,
    reason_option,
    run,
    selection_options,
    yes_option,
)
from aftercommit.errors import SetChanged
from aftercommit.operate.repair.driver import ReplayProgress
from aftercommit.operate.repair.operations import TO_TRANSPORT, Operation
from aftercommit.operate.repair.repair import Repair
from aftercommit.operate.repair.replay import Preview
from aftercommit.operate.repair.selection import Selection
from aftercommit.settings import Settings
from aftercommit.text import plural

_OTHERS = ("retrying", "waiting", "discarded")
_operation = click.argument("operation_id", type=click.UUID, metavar="ID")


@click.group(short_help="Replay events to a consumer or through the transport.")
@global_options
def replay() -> None:
    """Replays: a fixed set of events goes to a consumer, or through the transport, once more."""


@replay.command(short_help="Replay dead letters, or events of the log.")
@event_ids_argument
@selection_options
@click.option("--to", metavar="NAME", help="Replay to this consumer. Default: each dead letter to its owner.")
@click.option("--through-transport", is_flag=True, help="Deliver through the transport again; inboxes skip duplicates.")
@click.option("--rate", type=Amount(0.0001, 1_000_000), metavar="N", help="At most N events per second.")
@click.option("--again", is_flag=True, help="Also events that the consumer has handled: their effects happen again.")
@click.option("--past-horizon", is_flag=True, help="Also events older than the inbox: they may be handled twice.")
@reason_option
@by_option
@dry_run_option
@exact_option
@yes_option
@as_json
@pass_settings
@click.pass_context
def start(ctx: click.Context, /, settings: Settings, selection: Selection, **options: Any) -> None:
    """Replay dead letters (chosen by consumer, error or status) or events of the log (chosen by type, time and so on).

    Counts the events and asks first. Ctrl-C stops the replay, and `replay resume` continues it. Exits with 4 if an
    event failed, or if there is nothing to replay.
    """
    if options["to"] and options["through_transport"]:
        raise click.UsageError("--to and --through-transport exclude each other: give one of them")
    if selection.is_everything:
        raise click.UsageError(
            "no events chosen: give event ids or selection options. --from-position 1 chooses the whole log"
        )
    target = TO_TRANSPORT if options["through_transport"] else options["to"]
    repair = open_repair(settings, "replay", options["by"])
    found = run(repair.preview(selection, to=target, again=options["again"], exact=options["exact"]))
    if not (found.is_exact or options["dry_run"] or options["yes"]):
        # The operator confirms a number, and the replay starts only with that many.
        recount = run(repair.preview(found.selection, to=target, again=options["again"], exact=True))
        found = replace(recount, looked_at_all=found.looked_at_all)
    selection = found.selection
    if options["dry_run"] or not found.total or not options["as_json"]:
        tell(found, options["as_json"], lambda found: _show_preview(repair, found, selection, options))
    _tell_unknown(found, selection)
    _tell_look(found)
    if options["dry_run"] or not found.total:
        ctx.exit(0 if found.total else PARTIAL)
    if not options["yes"]:
        _ask(found.total, options["again"])
    chosen = {name: options[name] for name in ("again", "past_horizon", "reason")}
    expected = found.total if found.is_exact else None
    operation = _start(repair, selection, expected, options, to=target, per_second=options["rate"], **chosen)
    _drive(ctx, repair, operation, options["as_json"])


@replay.command("list", short_help="Show replays, newest first.")
@click.option("--all", "everything", is_flag=True, help="All operations: also retries, edits, discards and seeks.")
@limit_option(50)
@as_json
@pass_settings
def list_operations(settings: Settings, everything: bool, limit: int, as_json: bool) -> None:
    """Show replays, newest first, with their operator and their outcome."""
    found = run(open_repair(settings, "replay").operations(None if everything else ["replay"], limit=limit))
    tell(found, as_json, show_operations)
    if not found and not as_json:
        message("no operations" if everything else "no replays")


@replay.command(short_help="Show one operation and its problems.")
@_operation
@limit_option(20)
@as_json
@pass_settings
def show(settings: Settings, operation_id: UUID, limit: int, as_json: bool) -> None:
    """Show one replay, or any other operation, with the events that failed or were skipped and the reasons."""
    repair = open_repair(settings, "replay")
    operation = run(repair.operation(operation_id))
    problems = run(repair.problems(operation_id, limit=limit))
    hidden = max(0, operation.failed + operation.skipped - len(problems)) if len(problems) == limit else 0

    def show(operation: Operation) -> None:
        show_operation(operation)
        show_problems(problems)

    tell(operation, as_json, show, problems=problems, problems_not_shown=hidden)
    if hidden:
        message(f"{plural(hidden, 'more problem')} not shown: use --limit {limit + hidden} to see all")


@replay.command()
@_operation
@as_json
@pass_settings
@click.pass_context
def watch(ctx: click.Context, /, settings: Settings, operation_id: UUID, as_json: bool) -> None:
    """Show the progress of a replay that another process drives, until it ends."""
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
    """Continue a replay whose process was stopped or has died."""
    repair = open_repair(settings, "replay")
    _drive(ctx, repair, run(repair.operation(operation_id)), as_json)


@replay.command(short_help="End a replay and restore what was not tried.")
@_operation
@as_json
@pass_settings
@click.pass_context
def abort(ctx: click.Context, /, settings: Settings, operation_id: UUID, as_json: bool) -> None:
    """End a replay. Events that were not tried yet return to their previous state."""
    _tell(ctx, run(open_repair(settings, "replay").abort(operation_id)), as_json)


def _start(
    repair: Repair, selection: Selection, expected: int | None, options: dict[str, Any], **chosen: Any
) -> Operation:
    """Start with the number of items that the operator has confirmed; if it has changed, ask again."""
    while True:
        try:
            return run(repair.start(selection, expected=expected, **chosen))
        except SetChanged as problem:
            before = plural(problem.expected, "item")
            message(f"the selection had {before} when it was counted, and has {problem.found:,} now")
            expected = problem.found
        if not options["yes"]:
            _ask(expected, options["again"])


def _ask(total: int, again: bool) -> None:
    if again:
        message("--again: events that were handled will be handled again, with all their effects")
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
        remedy = f"continue with `aftercommit replay resume {operation.id}`, or undo what was not tried with `abort`"
        tell(ended[0], as_json, lambda ended: message(f"stopped at {counts(ended)}: {remedy}"))
        ctx.exit(INTERRUPTED)
    _tell(ctx, ended[0], as_json)


async def _watch(repair: Repair, operation_id: UUID, bar: ProgressBar) -> Operation:
    while True:
        operation = await repair.operation(operation_id)
        bar.show(ReplayProgress.of(operation))
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
        message(printable(f"nothing to replay: no parked letter {which}{others}"))
    else:
        message(printable(f"nothing to replay: no event or dead letter {which}"))


def _in_other_states(repair: Repair, selection: Selection, to: str | None) -> str:
    """How many letters would match with another --status; the default is parked."""
    chosen = replace(selection, consumer=to or selection.consumer)
    counts = {status: run(repair.letters(replace(chosen, statuses=(status,)), limit=1)).total for status in _OTHERS}
    found = [f"{count:,} {status}" for status, count in counts.items() if count]
    return f", but {' and '.join(found)}: choose them with --status" if found else ""


def _tell_unknown(found: Preview, selection: Selection) -> None:
    """Say how many of the named events would not be replayed."""
    unknown = len(set(selection.event_ids)) - found.events
    if unknown > 0:
        verb = "is" if unknown == 1 else "are"
        message(
            f"{plural(unknown, 'named event')} {verb} left out: not in the log, without a matching dead letter, not "
            "for this consumer, or not reached by it yet"
        )


def _tell_look(found: Preview) -> None:
    """Say where the search ended, and how to go on."""
    if not found.looked_at_all:
        first, last = found.selection.from_position, found.selection.to_position
        message(
            f"looked at positions {first} to {last}, and only these are chosen: use --from-position {(last or 0) + 1} "
            "to go on, or --exact to look at all"
        )


def _tell(ctx: click.Context, operation: Operation, as_json: bool) -> None:
    def show(operation: Operation) -> None:
        message(f"{operation.status}: {counts(operation)} of {plural(operation.total, 'item')}")
        if operation.failed or operation.skipped:
            message(f"for the reasons, see `aftercommit replay show {operation.id}`")

    tell(operation, as_json, show)
    ctx.exit(0 if operation.is_whole else PARTIAL)
