"""`aftercommit dead`: show dead letters, retry, edit or discard them."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import click

from aftercommit.cli.editing import edit_payload, read_payload
from aftercommit.cli.exits import PARTIAL
from aftercommit.cli.numbers import LARGEST, Count, limit_option
from aftercommit.cli.options import as_json, global_options, pass_settings
from aftercommit.cli.output import message
from aftercommit.cli.prompts import confirm, nothing_changed
from aftercommit.cli.repair_output import (
    Absent,
    found_so_far,
    show_absent,
    show_details,
    show_groups,
    show_letters,
    show_look,
    show_repaired,
    tell,
)
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
from aftercommit.errors import RepairError
from aftercommit.operate.repair.actions import DISCARDED, REASON_MISSING, RETRIED, RepairResult, the_only
from aftercommit.operate.repair.letters import LetterGroup, LetterPage, unknown_consumer
from aftercommit.operate.repair.repair import Repair
from aftercommit.operate.repair.selection import FAILING, OPEN, STATUSES, Selection
from aftercommit.settings import Settings
from aftercommit.text import plural

_limit = limit_option(50)
_consumer = click.option("--consumer", metavar="NAME", help="The letter of this consumer, if the event has several.")
# What an action did to letters, and what it would do.
_WORDS = {
    "retry": ("will be retried", "would be retried"),
    "edit": ("edited, will be retried", "would be edited and retried"),
    "discard": ("discarded", "would be discarded"),
}
# The statuses that an action reports on when events are named.
_LOOKED_AT = {"retry": (*OPEN, *RETRIED), "discard": (*OPEN, *DISCARDED)}


@click.group(short_help="Show dead letters, retry, edit or discard them.")
@global_options
def dead() -> None:
    """Dead letters: events that a consumer could not handle or the transport did not accept."""


@dead.command("list")
@selection_options
@_limit
@click.option("--offset", type=Count(), default=0, show_default=True, metavar="COUNT", help="Skip the first COUNT.")
@exact_option
@as_json
@pass_settings
def list_letters(settings: Settings, selection: Selection, as_json: bool, **options: Any) -> None:
    """List dead letters without their payloads, last seen first. Only open ones, unless --status is given."""
    chosen = selection if selection.statuses else replace(selection, statuses=OPEN)
    page = run(_open_repair(settings, selection).letters(chosen, **options))

    def show(page: LetterPage) -> None:
        show_letters(page.letters)
        if not page.total:
            message(_nothing(selection))
        elif len(page.letters) < page.total:
            total = found_so_far(page.total, "letter", page.is_exact)
            message(f"{len(page.letters):,} of {total}: use --limit and --offset to see others")
        show_look(page.looked_at)

    tell(page, as_json, show)


@dead.command()
@selection_options
@_limit
@exact_option
@as_json
@pass_settings
def groups(settings: Settings, selection: Selection, limit: int, exact: bool, as_json: bool) -> None:
    """Group dead letters by consumer and error, most frequent first. Letters that wait for others are only counted."""
    repair = _open_repair(settings, selection)
    failing = selection if selection.statuses else replace(selection, statuses=FAILING)

    def show(found: list[LetterGroup]) -> None:
        if found:
            show_groups(found)
        else:
            message(_nothing(selection))
        if not all(group.is_exact for group in found):
            message("groups with a + have at least so many letters: use --exact to count all")
        if not selection.statuses:
            _tell_waiting(run(repair.letters(replace(selection, statuses=("waiting",)), limit=1)))

    tell(run(repair.groups(failing, limit=limit, exact=exact)), as_json, show)


def _tell_waiting(page: LetterPage) -> None:
    if page.total:
        verb = "waits" if page.total == 1 else "wait"
        count = found_so_far(page.total, "letter", page.is_exact)
        message(f"{count} {verb} behind these in strict order: list with --status waiting")


@dead.command(short_help="Show the dead letters of one event in full.")
@click.argument("event_id", type=click.UUID)
@_consumer
@as_json
@pass_settings
def show(settings: Settings, event_id: UUID, consumer: str | None, as_json: bool) -> None:
    """Show the dead letters of one event in full: payload, attempts, and operators' actions."""
    tell(run(open_repair(settings, "dead").letter(event_id, consumer)), as_json, show_details)


@dead.command()
@event_ids_argument
@selection_options
@reason_option
@by_option
@dry_run_option
@exact_option
@yes_option
@as_json
@pass_settings
@click.pass_context
def retry(ctx: click.Context, /, settings: Settings, selection: Selection, **options: Any) -> None:
    """Retry dead letters now, with a fresh set of attempts. Only parked ones, unless you give event ids or --status.

    To retry many letters at a limited rate and watch the progress, use `replay start`.
    """
    repair = _open_repair(settings, selection, options["by"])
    absent = _absent(repair, selection, "retry")
    _ask(repair, selection, "retry", options)
    chosen = {name: options[name] for name in ("reason", "dry_run", "exact")}
    done = run(repair.retry(selection, **chosen))
    _tell(ctx, done, selection, "retry", options["as_json"], absent)


@dead.command()
@event_ids_argument
@selection_options
@click.option("--reason", metavar="TEXT", help="Why. Required, and kept on record.")
@by_option
@dry_run_option
@exact_option
@yes_option
@as_json
@pass_settings
@click.pass_context
def discard(ctx: click.Context, /, settings: Settings, selection: Selection, **options: Any) -> None:
    """Discard dead letters. They stay on record with their event until retention removes them, and can be retried."""
    repair = _open_repair(settings, selection, options["by"])
    absent = _absent(repair, selection, "discard")
    _ask(repair, selection, "discard", options)
    reason = options["reason"] or (None if options["dry_run"] else _asked_reason())
    chosen = {name: options[name] for name in ("dry_run", "exact")}
    done = run(repair.discard(selection, reason=reason or "dry run", **chosen))
    _tell(ctx, done, selection, "discard", options["as_json"], absent)


@dead.command(short_help="Edit the payload of a letter and retry it.")
@click.argument("event_id", type=click.UUID)
@_consumer
@click.option(
    "--payload",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="The new payload: a file, or - for stdin.",
)
@reason_option
@by_option
@dry_run_option
@yes_option
@as_json
@pass_settings
@click.pass_context
def edit(ctx: click.Context, /, settings: Settings, event_id: UUID, payload: str | None, **options: Any) -> None:
    """Edit the payload of a parked or discarded letter and retry it. Opens $EDITOR unless --payload is given.

    The event in the log stays as it is. With --app the new payload is checked against its event type. The old payload
    is kept on record.
    """
    asks = not (options["yes"] or options["dry_run"])
    if payload == "-" and asks:
        raise click.UsageError("--payload - reads stdin, so you cannot be asked to confirm: give --yes as well")
    selection = Selection(event_ids=(event_id,), consumer=options["consumer"])
    repair = _open_repair(settings, selection, options["by"])
    new = read_payload(payload) if payload is not None else _edited(repair, event_id, options["consumer"])
    if new is None:
        nothing_changed()
    _check(repair, event_id, options["consumer"], new)
    if asks:
        confirm(f"Edit the payload of event {event_id} and retry it?")
    chosen = {name: options[name] for name in ("consumer", "reason", "dry_run")}
    done = run(repair.edit(event_id, new, **chosen))
    _tell(ctx, done, selection, "edit", options["as_json"])


def _open_repair(settings: Settings, selection: Selection, by: str | None = None) -> Repair:
    """Open Repair. An unknown consumer is an error: probably its name is misspelled."""
    repair = open_repair(settings, "dead", by)
    if selection.consumer is not None:
        known = run(repair.owners())
        if selection.consumer not in known:
            raise RepairError(unknown_consumer(selection.consumer, known))
    return repair


def _absent(repair: Repair, selection: Selection, verb: str) -> list[Absent]:
    """The named events that have no letter to act on, each with the reason."""
    if not selection.event_ids:
        return []
    asked = selection.statuses or _LOOKED_AT[verb]
    known: dict[UUID, list[str]] = {}
    for letter in run(repair.letters(replace(selection, statuses=STATUSES), limit=LARGEST)).letters:
        known.setdefault(letter.event_id, []).append(letter.status)
    matching = "" if replace(selection, event_ids=(), statuses=()).is_everything else " that matches"
    found = []
    for event_id in dict.fromkeys(selection.event_ids):
        statuses = known.get(event_id, [])
        if not statuses:
            found.append(Absent(event_id, f"no dead letter{matching}: see `aftercommit dead list`"))
        elif not set(statuses) & set(asked):
            found.append(Absent(event_id, f"its dead letter is already {' and '.join(dict.fromkeys(statuses))}"))
    return found


def _ask(repair: Repair, selection: Selection, verb: str, options: dict[str, Any]) -> None:
    """Show how many letters the action is for, and ask the operator to confirm."""
    if options["yes"] or options["dry_run"]:
        return
    count = run(getattr(repair, verb)(selection, reason="counting", dry_run=True, exact=True)).done
    if count:
        confirm(f"{verb.capitalize()} {plural(count, 'letter')} ({described(selection)})?")


def _asked_reason() -> str:
    if not sys.stdin.isatty():
        raise RepairError(REASON_MISSING)
    return str(click.prompt("Why", err=True))


def _edited(repair: Repair, event_id: UUID, consumer: str | None) -> bytes | None:
    letter = the_only(run(repair.letter(event_id, consumer)))
    return edit_payload(letter.payload, lambda new: _check(repair, event_id, consumer, new))


def _check(repair: Repair, event_id: UUID, consumer: str | None, payload: bytes) -> None:
    """Refuse an invalid payload before asking for confirmation."""
    run(repair.edit(event_id, payload, consumer=consumer, dry_run=True))


def _nothing(selection: Selection) -> str:
    return "no dead letters" if selection.is_everything else f"no dead letters match ({described(selection)})"


def _tell(
    ctx: click.Context,
    done: RepairResult,
    selection: Selection,
    verb: str,
    as_json: bool,
    absent: Sequence[Absent] = (),
) -> None:
    nothing = not done.done and not done.left_alone

    def show(done: RepairResult) -> None:
        if not nothing:
            show_repaired(done, *_WORDS[verb])
        elif not absent and done.is_exact:
            said = selection.statuses or selection.event_ids
            which, others = ("", "") if said else ("parked ", ": use --status to choose others")
            message(f"no {which}letters match ({described(selection)}){others}")
        show_absent(absent)
        show_look(done.looked_at)

    tell(done, as_json, show, not_found=absent)
    ctx.exit(PARTIAL if done.left_alone or absent or nothing else 0)
