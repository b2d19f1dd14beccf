"""Output of `dead` and `replay`: a few lines per entry on a terminal, plain columns in a pipe."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from aftercommit.cli.durations import rough_duration
from aftercommit.cli.output import line, message, print_fields, print_json, print_table, printable
from aftercommit.cli.selecting import described
from aftercommit.clock import utc_now
from aftercommit.event.envelope import rfc3339
from aftercommit.operate.repair.actions import RepairResult
from aftercommit.operate.repair.letters import DeadLetter, FailedAttempt, LetterDetail, LetterGroup
from aftercommit.operate.repair.operations import TO_OWNER, TO_TRANSPORT, ItemProblem, Operation
from aftercommit.operate.repair.replay import Preview
from aftercommit.operate.repair.selection import Selection
from aftercommit.text import plural

Found = TypeVar("Found")

_MOST_REASONS = 5
_MOST_READERS = 20
_WIDTH = 13


def document(value: Any) -> Any:
    """Any object of `operate.repair` as JSON-compatible data."""
    if isinstance(value, Selection):
        return value.as_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: document(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): document(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [document(each) for each in value]
    return value


@dataclass(frozen=True, slots=True)
class Absent:
    """A named event without a letter to act on."""

    event_id: UUID
    note: str


def tell(found: Found, as_json: bool, show: Callable[[Found], None], **more: Any) -> None:
    """Print a result as one JSON document, with `more` beside an object's own fields, or by calling `show`."""
    if as_json:
        print_json({**document(found), **document(more)} if more else document(found))
    else:
        show(found)


def show_letters(letters: Sequence[DeadLetter]) -> None:
    """Print a list of letters."""
    if not sys.stdout.isatty():
        columns = "event_id consumer status attempts failures last_seen_at event_type aggregate error".split()
        print_table(columns, [_letter_row(letter) for letter in letters])
        return
    for letter in letters:
        _entry(
            f"{letter.event_id}  {letter.status:<9}  {_times(letter)}, {ago(letter.last_seen_at)} ago",
            f"{letter.consumer} · {letter.event_type} · {letter.aggregate_type} {letter.aggregate_id}",
            _one_line(letter),
        )


def _entry(first: str, *others: str) -> None:
    """Print an entry of a list on a terminal: a heading and indented lines, cut off at the window's width."""
    console = Console(highlight=False)
    for indent, style, text in ((0, "bold", first), *((2, "", other) for other in others)):
        console.print(Padding(Text(printable(text), style, no_wrap=True, overflow="ellipsis"), (0, 0, 0, indent)))


def _letter_row(letter: DeadLetter) -> tuple[Any, ...]:
    return (
        letter.event_id,
        letter.consumer,
        letter.status,
        letter.attempts,
        letter.failures,
        rfc3339(letter.last_seen_at),
        letter.event_type,
        f"{letter.aggregate_type} {letter.aggregate_id}",
        _one_line(letter),
    )


def show_groups(groups: Sequence[LetterGroup]) -> None:
    """Print groups of letters."""
    if sys.stdout.isatty():
        for group in groups:
            _entry(
                f"{_group_size(group):>7}  {_one_line(group)}",
                f"       {group.consumer} · {', '.join(group.event_types)} · {group.parked:,} parked",
                f"       last seen {ago(group.last_seen_at)} ago, for example {group.example}",
            )
        return
    columns = ("letters", "parked", "consumer", "last_seen_at", "example", "error")
    rows = [
        (
            each.count if each.is_exact else f"{each.count}+",
            each.parked,
            each.consumer,
            rfc3339(each.last_seen_at),
            each.example,
            _one_line(each),
        )
        for each in groups
    ]
    print_table(columns, rows)


def _group_size(group: LetterGroup) -> str:
    return f"{group.count:,}" if group.is_exact else f"{group.count:,}+"


def show_details(letters: Sequence[LetterDetail]) -> None:
    """Print letters in full."""
    for index, letter in enumerate(letters):
        if index:
            line("")
        _show_detail(letter)


def _show_detail(letter: LetterDetail) -> None:
    about = {
        "event": letter.event_id,
        "type": f"{letter.event_type} (schema version {letter.schema_version})",
        "aggregate": f"{letter.aggregate_type} {letter.aggregate_id}",
        "scope": " ".join(f"{name}={value}" for name, value in letter.scope.items()) or "-",
        **({"audience": _readers(letter.audience)} if letter.audience else {}),
        "occurred at": rfc3339(letter.occurred_at),
        "correlation": letter.correlation_id,
        "place": _place(letter),
        "consumer": letter.consumer,
        "status": letter.status + (f", next at {rfc3339(letter.next_retry_at)}" if letter.next_retry_at else ""),
        "seen": f"{rfc3339(letter.first_seen_at)} to {rfc3339(letter.last_seen_at)}, {_times(letter)}",
        "error": f"{letter.error_class}: {letter.error}",
    }
    print_fields(about, _WIDTH)
    line("payload")
    line(printable(letter.payload))
    if letter.history:
        line("attempts")
        for attempt in letter.history:
            times = f" ({attempt.attempts} times)" if attempt.attempts > 1 else ""
            line(printable(f"  {rfc3339(attempt.at)}  {_one_line(attempt)}{times}"))
    if letter.deeds:
        line("operators")
        for deed in letter.deeds:
            why = f": {deed.reason}" if deed.reason else ""
            note = f" ({deed.note})" if deed.note else ""
            line(printable(f"  {rfc3339(deed.at)}  {deed.kind} by {deed.by}{why}, {deed.state}{note}"))
            if deed.former_payload is not None:
                line(printable(f"    payload before: {deed.former_payload}"))


def _readers(audience: Sequence[str]) -> str:
    more = len(audience) - _MOST_READERS
    return " ".join(audience[:_MOST_READERS]) + (f" and {more:,} more" if more > 0 else "")


def _place(letter: LetterDetail) -> str:
    places = [f"outbox ({letter.outbox_status})"] if letter.outbox_status else []
    places += [f"log at {position}" for position in letter.positions]
    return ", ".join(places) or "only in this letter"


def show_repaired(done: RepairResult, was: str, would: str) -> None:
    """Print what an action did."""
    message(f"{found_so_far(done.done, 'letter', done.is_exact)} {would if done.dry_run else was}")
    for text in done.missing:
        message(printable(text))
    _show_unchanged([f"{each.event_id} of {each.consumer}: {each.note}" for each in done.left_alone])


def found_so_far(count: int, noun: str, is_exact: bool) -> str:
    """A number that was found, or the least that it can be."""
    return plural(count, noun) if is_exact else f"at least {plural(count, noun)}"


def show_look(looked_at: int | None) -> None:
    """Say that a question did not look at everything."""
    if looked_at is not None:
        message(f"looked at the {looked_at:,} letters that were last seen: use --exact to look at all")


def show_absent(absent: Sequence[Absent]) -> None:
    """Print the named events that have no letter to act on."""
    _show_unchanged([f"{each.event_id}: {each.note}" for each in absent])


def _show_unchanged(texts: Sequence[str]) -> None:
    for text in texts[:_MOST_REASONS]:
        message(printable(f"unchanged: {text}"))
    if (more := len(texts) - _MOST_REASONS) > 0:
        message(f"unchanged: {more:,} more, use --json to list them")


def show_preview(found: Preview, selection: Selection, *, again: bool, past_horizon: bool) -> None:
    """Print what a replay would do."""
    total = found_so_far(found.total, "item", found.is_exact)
    message(printable(f"{total} to {_target(found.target)}: {described(selection)}"))
    if not found.is_exact:
        message("  counted up to a limit, and so are the numbers below: use --exact to count all")
    if found.first_position is not None:
        message(f"  positions {found.first_position} to {found.last_position}")
    for name, count in found.types:
        message(printable(f"  {count:>8,}  {name}"))
    if found.handled:
        fate = "will be handled again" if again else "will be skipped, unless you give --again"
        message(f"  {found.handled:>8,}  of them were handled already and {fate}")
    if found.past_horizon and found.horizon is not None:
        fate = "may be handled twice" if past_horizon else "are refused, unless you give --past-horizon"
        message(f"  {found.past_horizon:>8,}  of them are older than the inbox ({rfc3339(found.horizon)}) and {fate}")


def show_operations(operations: Sequence[Operation]) -> None:
    """Print a list of operations."""
    if not operations:
        return
    if sys.stdout.isatty():
        for each in operations:
            _entry(
                f"{each.id}  {each.kind}, {state(each)}",
                f"{each.total:,} to {_target(each.target)}: {counts(each)}",
                f"by {each.requested_by} {ago(each.created_at)} ago: {each.reason or described(each.selection)}",
            )
        return
    columns = ("id", "kind", "status", "items", "done", "skipped", "failed", "started_at", "by", "reason")
    print_table(columns, [_operation_row(each) for each in operations])


def _operation_row(each: Operation) -> tuple[Any, ...]:
    numbers = (each.total, each.done, each.skipped, each.failed)
    return (each.id, each.kind, each.status, *numbers, rfc3339(each.created_at), each.requested_by, each.reason or None)


def counts(operation: Operation) -> str:
    """How many items are done, skipped and failed."""
    return f"{operation.done:,} done, {operation.skipped:,} skipped, {operation.failed:,} failed"


def _target(target: str) -> str:
    return {TO_OWNER: "their owners", TO_TRANSPORT: "the transport"}.get(target, f"consumer {target!r}")


def show_operation(operation: Operation) -> None:
    """Print one operation."""
    about = {
        "operation": operation.id,
        "kind": operation.kind,
        "status": state(operation),
        "target": operation.target,
        "selection": described(operation.selection),
        "by": operation.requested_by,
        "reason": operation.reason or "-",
        "started": rfc3339(operation.created_at),
        "finished": rfc3339(operation.finished_at) if operation.finished_at else "-",
        "items": operation.total,
        "done": operation.done,
        "skipped": operation.skipped,
        "failed": operation.failed,
    }
    print_fields(about, _WIDTH)


def show_problems(problems: Sequence[ItemProblem]) -> None:
    """Print the items of an operation that failed or were skipped."""
    for each in problems:
        whose = f" of {each.consumer}" if each.consumer else ""
        line(printable(f"{each.state:<12}  {each.event_id}{whose}: {' '.join(each.note.split())}"))


def state(operation: Operation) -> str:
    """The status, and whether a process is working on it."""
    return operation.status if operation.is_finished or operation.is_driven else f"{operation.status}, not driven"


def _one_line(failed: DeadLetter | LetterGroup | FailedAttempt) -> str:
    return f"{failed.error_class}: {' '.join(failed.error.split())}"


def ago(moment: datetime) -> str:
    """How long ago, roughly."""
    return rough_duration((utc_now() - moment).total_seconds())


def _times(letter: DeadLetter) -> str:
    """All failed attempts, including those before it was last retried by hand."""
    return plural(letter.attempts, "attempt")
