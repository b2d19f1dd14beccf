"""`aftercommit dead`: what could not be delivered or handled; look at it, retry it, edit it, give it up."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import click

from aftercommit.cli.editing import edit_payload, read_payload
from aftercommit.cli.exits import PARTIAL
from aftercommit.cli.numbers import LARGEST, Count
from aftercommit.cli.options import as_json, global_options, pass_settings
from aftercommit.cli.output import message
from aftercommit.cli.prompts import confirm, nothing_changed
from aftercommit.cli.repair_output import (
    Absent,
    show_absent,
    show_details,
    show_groups,
    show_letters,
    show_repaired,
    tell,
)
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
from aftercommit.errors import RepairError
from aftercommit.operate.repair import LetterGroup, LetterPage, Repair, RepairResult, Selection
from aftercommit.operate.repair.actions import DISCARDED, RETRIED
from aftercommit.operate.repair.selection import FAILING, OPEN, STATUSES
from aftercommit.settings import Settings
from aftercommit.text import plural

_limit = click.option(
    "--limit", type=Count(1), default=50, show_default=True, metavar="COUNT", help="Show so many at most."
)
_reason = click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
_consumer = click.option("--consumer", metavar="NAME", help="Whose letter, where an event has several.")
# What was done to letters, and what would be.
_WORDS = {
    "retry": ("will be tried again", "would be tried again"),
    "edit": ("edited, will be tried again", "would be edited and tried again"),
    "discard": ("discarded", "would be discarded"),
}
# Letters that an action has something to say about, when their events are named.
_LOOKED_AT = {"retry": (*OPEN, *RETRIED), "discard": (*OPEN, *DISCARDED)}


@click.group(short_help="Dead letters: look at them, retry, correct, give up.")
@global_options
def dead() -> None:
    """Dead letters: events that a consumer or the transport could not take."""


@dead.command("list")
@selection_options
@_limit
@click.option(
    "--offset", type=Count(), default=0, show_default=True, metavar="COUNT", help="Leave out so many of the first."
)
@as_json
@pass_settings
def list_letters(settings: Settings, selection: Selection, limit: int, offset: int, as_json: bool) -> None:
    """Show letters, last seen first. Open ones, unless --status says otherwise. Payloads are shown by `show` alone."""
    page = run(_open_repair(settings, selection).letters(_open(selection), limit=limit, offset=offset))

    def show(page: LetterPage) -> None:
        show_letters(page.letters)
        if not page.total:
            message(_nothing(selection))
        elif len(page.letters) < page.total:
            message(f"{len(page.letters):,} of {plural(page.total, 'letter')}: --limit and --offset show others")

    tell(page, as_json, show)


@dead.command()
@selection_options
@_limit
@as_json
@pass_settings
def groups(settings: Settings, selection: Selection, limit: int, as_json: bool) -> None:
    """Show letters by consumer and error, the most frequent first. Those that only wait behind another are counted."""
    repair = _open_repair(settings, selection)
    failing = selection if selection.statuses else replace(selection, statuses=FAILING)

    def show(found: list[LetterGroup]) -> None:
        if found:
            show_groups(found)
        else:
            message(_nothing(selection))
        waiting = replace(selection, statuses=("waiting",))
        if count := 0 if selection.statuses else run(repair.letters(waiting, limit=1)).total:
            verb = "waits" if count == 1 else "wait"
            message(f"{plural(count, 'letter')} {verb} behind these in strict order: --status waiting shows them")

    tell(run(repair.groups(failing, limit=limit)), as_json, show)


@dead.command(short_help="Show all about the letters of one event.")
@click.argument("event_id", type=click.UUID)
@_consumer
@as_json
@pass_settings
def show(settings: Settings, event_id: UUID, consumer: str | None, as_json: bool) -> None:
    """Show all about the letters of one event: payload, attempts, and what operators did."""
    tell(run(open_repair(settings, "dead").letter(event_id, consumer)), as_json, show_details)


@dead.command()
@event_ids_argument
@selection_options
@_reason
@by_option
@dry_run_option
@yes_option
@as_json
@pass_settings
@click.pass_context
def retry(ctx: click.Context, /, settings: Settings, selection: Selection, **options: Any) -> None:
    """Give letters all their attempts again, at once. Parked ones, unless event ids or --status say otherwise.

    For many letters at a pace, with progress, see `replay start`.
    """
    repair = _open_repair(settings, selection, options["by"])
    absent = _absent(repair, selection, "retry")
    _ask(repair, selection, "retry", options)
    done = run(repair.retry(selection, reason=options["reason"], dry_run=options["dry_run"]))
    _tell(ctx, done, selection, "retry", options["as_json"], absent)


@dead.command()
@event_ids_argument
@selection_options
@click.option("--reason", metavar="TEXT", help="Why: it is asked for, and kept.")
@by_option
@dry_run_option
@yes_option
@as_json
@pass_settings
@click.pass_context
def discard(ctx: click.Context, /, settings: Settings, selection: Selection, **options: Any) -> None:
    """Give letters up. Nothing is lost: they stay on record with their event, and can be retried."""
    repair = _open_repair(settings, selection, options["by"])
    absent = _absent(repair, selection, "discard")
    _ask(repair, selection, "discard", options)
    reason = options["reason"] or (None if options["dry_run"] else _asked_reason())
    done = run(repair.discard(selection, reason=reason or "dry run", dry_run=options["dry_run"]))
    _tell(ctx, done, selection, "discard", options["as_json"], absent)


@dead.command(short_help="Correct the payload of a letter and retry it.")
@click.argument("event_id", type=click.UUID)
@_consumer
@click.option(
    "--payload",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="The new payload: a file, or - for stdin.",
)
@_reason
@by_option
@dry_run_option
@yes_option
@as_json
@pass_settings
@click.pass_context
def edit(ctx: click.Context, /, settings: Settings, event_id: UUID, payload: str | None, **options: Any) -> None:
    """Correct the payload of a parked or discarded letter and retry it; opens $EDITOR unless --payload is given.

    The log never changes. With --app the payload is checked against its event type. The former one is kept on record.
    """
    asks = not (options["yes"] or options["dry_run"])
    if payload == "-" and asks:
        raise click.UsageError("--payload - reads stdin, so that nobody can be asked: say --yes as well")
    selection = Selection(event_ids=(event_id,), consumer=options["consumer"])
    repair = _open_repair(settings, selection, options["by"])
    new = read_payload(payload) if payload is not None else _edited(repair, event_id, options["consumer"])
    if new is None:
        nothing_changed()
    _check(repair, event_id, options["consumer"], new)
    if asks:
        confirm(f"edit the payload of event {event_id} and retry it?")
    chosen = {name: options[name] for name in ("consumer", "reason", "dry_run")}
    done = run(repair.edit(event_id, new, **chosen))
    _tell(ctx, done, selection, "edit", options["as_json"])


def _open_repair(settings: Settings, selection: Selection, by: str | None = None) -> Repair:
    """Repair; a consumer that nobody knows is a slip of the pen, and not one without letters."""
    repair = open_repair(settings, "dead", by)
    if selection.consumer is not None:
        known = run(repair.owners())
        if selection.consumer not in known:
            raise RepairError(
                f"consumer {selection.consumer!r} is not known: there are {', '.join(known)}. One behind the bus that "
                "has no dead letters yet is found in your declarations, with --app"
            )
    return repair


def _absent(repair: Repair, selection: Selection, verb: str) -> list[Absent]:
    """Events that were named and have no letter to act on, each with the reason; nobody else would say a word."""
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
            found.append(
                Absent(event_id, f"has no dead letter{matching}: `aftercommit dead list` shows those there are")
            )
        elif not set(statuses) & set(asked):
            found.append(Absent(event_id, f"its dead letter is {' and '.join(dict.fromkeys(statuses))} already"))
    return found


def _open(selection: Selection) -> Selection:
    return selection if selection.statuses else replace(selection, statuses=OPEN)


def _ask(repair: Repair, selection: Selection, verb: str, options: dict[str, Any]) -> None:
    """Say how many it will be, and let the operator think again."""
    if options["yes"] or options["dry_run"]:
        return
    count = run(getattr(repair, verb)(selection, reason="counting", dry_run=True)).done
    if count == 0:
        return
    confirm(f"{verb} {plural(count, 'letter')} ({described(selection)})?")


def _asked_reason() -> str:
    if not sys.stdin.isatty():
        raise RepairError("a letter is discarded for a reason, which is kept: say it with --reason")
    return str(click.prompt("Why", err=True))


def _edited(repair: Repair, event_id: UUID, consumer: str | None) -> bytes | None:
    (letter, *others) = run(repair.letter(event_id, consumer))
    if others:
        names = ", ".join(each.consumer for each in (letter, *others))
        raise RepairError(f"event {event_id} has several dead letters ({names}): say whose with --consumer")
    return edit_payload(letter.payload, lambda new: _check(repair, event_id, consumer, new))


def _check(repair: Repair, event_id: UUID, consumer: str | None, payload: bytes) -> None:
    """Refused is refused before anybody is asked."""
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
        elif not absent:
            said = selection.statuses or selection.event_ids
            which, others = ("", "") if said else ("parked ", ": --status chooses others")
            message(f"no {which}letters match ({described(selection)}){others}")
        show_absent(absent)

    tell(done, as_json, show, not_found=absent)
    ctx.exit(PARTIAL if done.left_alone or absent or nothing else 0)
