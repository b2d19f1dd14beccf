"""What must never happen, as pure functions from evidence to violations, in the manner of Jepsen's checkers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.faults import workload
from tests.faults.evidence import Effect, Entry, Evidence, Letter, Logged, Operation, Part

OPEN_LETTERS = frozenset({"retrying", "waiting", "parked"})


@dataclass(frozen=True)
class Violation:
    """A promise that was broken, by the name of the checker that saw it."""

    checker: str
    what: str


def lost(evidence: Evidence) -> Iterator[str]:
    """Acknowledged and not there; or committed with its business row and neither in the log nor set aside."""
    entered = _parts(evidence.entries)
    for operation in evidence.operations:
        if operation.outcome == "ok" and not _was_undone(operation, evidence):
            there = {part for _, part in entered.get(operation.op, ())}
            for part in set(operation.parts) - there:
                yield f"{operation.op} part {part} ({operation.kind}) was acknowledged, and its row is gone"
    published = {Part(row.outbox, row.op, row.part) for row in evidence.log}
    kept = {Part(row.outbox, row.op, row.part): row.status for row in evidence.waiting}
    for entry in evidence.entries:
        key = Part(entry.outbox, entry.op, entry.part)
        excused = key in kept and (_is_poison(entry.account) or (evidence.unfinished and kept[key] == "pending"))
        if key not in published and not excused:
            state = f"is still {kept[key]} in the outbox" if key in kept else "is nowhere"
            yield f"{entry.op} part {entry.part} ({entry.outbox}, {entry.account} {entry.number}) {state}"


def unexpected(evidence: Evidence) -> Iterator[str]:
    """Published without the business row that was written with it, or by a transaction known to be undone."""
    committed = {Part(row.outbox, row.op, row.part) for row in evidence.entries}
    undone = {operation.op: operation for operation in evidence.operations if operation.outcome == "fail"}
    for row in [*evidence.log, *evidence.waiting]:
        if Part(row.outbox, row.op, row.part) not in committed:
            operation = undone.get(row.op)
            why = f"a {operation.kind} known to have failed" if operation else "no such row was committed"
            yield f"{row.op} part {row.part} is in {row.outbox}: {why}"
    for entry in evidence.entries:
        if entry.op in undone:
            yield f"{entry.op} part {entry.part} was committed, and its writer knows that it failed"


def duplicated(evidence: Evidence) -> Iterator[str]:
    """Published twice: also by a retry after an unknown outcome, under the same idempotency key."""
    counts = Counter(Part(row.outbox, row.op, row.part) for row in [*evidence.log, *evidence.waiting])
    for part, count in counts.items():
        if count > 1:
            yield f"{part.op} part {part.part} is {count} times in {part.outbox}"


def duplicated_effect(evidence: Evidence) -> Iterator[str]:
    """A handler's writes happened more than once."""
    counts = Counter((effect.consumer, effect.op, effect.part, effect.account) for effect in evidence.effects)
    for (consumer, op, part, account), count in counts.items():
        if count > 1:
            yield f"{consumer} handled {op} part {part} of {account} {count} times"


def lost_effect(evidence: Evidence) -> Iterator[str]:
    """An event that a consumer neither handled nor set aside for a reason that the harness gave."""
    done = {(effect.consumer, effect.op, effect.part, effect.account) for effect in evidence.effects}
    held = {(letter.consumer, letter.op, letter.part) for letter in evidence.letters if letter.status in OPEN_LETTERS}
    kept = {Part(row.outbox, row.op, row.part) for row in evidence.waiting}
    positions = {Part(row.outbox, row.op, row.part): row.position for row in evidence.log}
    for entry in evidence.entries:
        key = Part(entry.outbox, entry.op, entry.part)
        for consumer in evidence.consumers[entry.outbox]:
            if (consumer, entry.op, entry.part, entry.account) in done:
                continue
            is_held = (consumer, entry.op, entry.part) in held or key in kept
            is_ahead = positions.get(key, 0) > evidence.checkpoints.get(consumer, positions.get(key, 0))
            excused = (is_held and _is_poison(entry.account)) or (evidence.unfinished and (is_held or is_ahead))
            if not excused:
                how = "set it aside" if is_held else "never handled it"
                yield f"{consumer}: {entry.op} part {entry.part} ({entry.account} {entry.number}): {how}"


def poll_skip(evidence: Evidence) -> Iterator[str]:
    """A poller went on from its last position and passed an event by: it was not visible yet, and then it was."""
    for poller, outbox, pages in _walks(evidence):
        there = sorted(row.position for row in evidence.log if row.outbox == outbox)
        seen = [position for page in pages for position, _ in page]
        if seen:
            missed = {position for position in there if position <= seen[-1]} - set(seen)
            for position in sorted(missed)[:5]:
                yield f"{poller} never saw position {position} of {outbox}, and is past it"


def nonmonotonic_poll(evidence: Evidence) -> Iterator[str]:
    """A poller saw positions go backwards, or one twice."""
    for poller, outbox, pages in _walks(evidence):
        last = 0
        for page in pages:
            for position, _ in page:
                if position <= last:
                    yield f"{poller} saw position {position} of {outbox} after {last}"
                last = position


def gap(evidence: Evidence) -> Iterator[str]:
    """The positions of a log are not 1, 2, 3 and so on, but for those between two of its lives."""
    for outbox in evidence.consumers:
        expected = 1
        for position in sorted(row.position for row in evidence.log if row.outbox == outbox):
            for low, high in evidence.gaps.get(outbox, ()):
                expected = high + 1 if low <= expected <= high else expected
            if position != expected:
                yield f"{outbox}: position {position} stands where {expected} should be"
                break
            expected += 1


def changed(evidence: Evidence) -> Iterator[str]:
    """What a poller read at a position is not what is there now."""
    there = {(row.outbox, row.position): row.digest for row in evidence.log}
    for poll in evidence.polls:
        for position, digest in poll.rows:
            # What a restore has taken back is gone, and nothing else stands there.
            was_undone = any(low <= position <= high for low, high in evidence.gaps.get(poll.outbox, ()))
            if there.get((poll.outbox, position)) != (None if was_undone else digest):
                yield f"{poll.poller} read another event at position {position} of {poll.outbox} than is there now"


def reordered(evidence: Evidence) -> Iterator[str]:
    """Events of an aggregate are in the log in another order than their writers committed them."""
    last: dict[tuple[str, str], int] = {}
    for row in sorted(evidence.log, key=lambda row: (row.outbox, row.position)):
        before = last.get((row.outbox, row.account), 0)
        if row.number <= before:
            yield f"{row.outbox}: {row.account} {row.number} at position {row.position} comes after {before}"
        last[row.outbox, row.account] = max(before, row.number)


def reordered_effect(evidence: Evidence) -> Iterator[str]:
    """A consumer handled an aggregate's events out of order, and its ordering does not excuse it.

    Without strict ordering an event that failed is overtaken; its dead letter tells.
    """
    failed = {(letter.consumer, letter.op, letter.part) for letter in evidence.letters}
    last: dict[tuple[str, str], int] = {}
    for effect in evidence.effects:
        strict = effect.consumer in workload.STRICT
        if not strict and (effect.consumer, effect.op, effect.part) in failed:
            continue
        before = last.get((effect.consumer, effect.account), 0)
        if effect.number < before:
            yield f"{effect.consumer}: {effect.account} {effect.number} was handled after {before}"
        last[effect.consumer, effect.account] = max(before, effect.number)


def foreign_scope(evidence: Evidence) -> Iterator[str]:
    """An event under another scope than it was published with, in the log or in a handler's hands."""
    for row in [*evidence.log, *evidence.waiting]:
        if row.is_foreign:
            yield f"{row.op} part {row.part} is in {row.outbox} under a foreign scope"
    for effect in evidence.effects:
        if effect.is_foreign:
            yield f"{effect.consumer} was given {effect.op} part {effect.part} under a foreign scope"


def intrusion(evidence: Evidence) -> Iterator[str]:
    """Written under a lease that somebody else holds, or taken before it had run out: the database's own notes."""
    yield from evidence.intrusions


def ended(evidence: Evidence) -> Iterator[str]:
    """A process gave up that should have survived."""
    yield from evidence.ended


def stuck(evidence: Evidence) -> Iterator[str]:
    """When the faults were over, the work did not come to its end."""
    yield from evidence.stuck


CHECKERS: dict[str, Callable[[Evidence], Iterator[str]]] = {
    checker.__name__: checker
    for checker in (
        lost,
        unexpected,
        duplicated,
        duplicated_effect,
        lost_effect,
        poll_skip,
        nonmonotonic_poll,
        gap,
        changed,
        reordered,
        reordered_effect,
        foreign_scope,
        intrusion,
        ended,
        stuck,
    )
}


def check(evidence: Evidence) -> list[Violation]:
    """All violations of all checkers."""
    return [Violation(name, what) for name, checker in CHECKERS.items() for what in checker(evidence)]


def _parts(entries: Iterable[Entry]) -> dict[str, set[tuple[str, int]]]:
    found: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for entry in entries:
        found[entry.op].add((entry.outbox, entry.part))
    return found


def _walks(evidence: Evidence) -> Iterator[tuple[str, str, list[tuple[tuple[int, str], ...]]]]:
    walks: dict[tuple[str, str], list[tuple[tuple[int, str], ...]]] = defaultdict(list)
    for poll in evidence.polls:
        walks[poll.poller, poll.outbox].append(poll.rows)
    for (poller, outbox), pages in walks.items():
        yield poller, outbox, pages


def _was_undone(operation: Operation, evidence: Evidence) -> bool:
    """Whether it may have been committed when a backup had been taken that was restored later."""
    return any(operation.began <= end and operation.ended >= begin for begin, end in evidence.undone)


def _is_poison(account: str) -> bool:
    return account.startswith(f"{workload.POISON}-")


__all__ = ["CHECKERS", "Effect", "Letter", "Logged", "Operation", "Violation", "check"]
