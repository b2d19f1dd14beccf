"""Retries, edits and discards dead letters. Each action is one transaction, recorded with operator and reason.

A letter of a consumer that follows the log has a position: its worker picks the letter up. A letter without a position
belongs to a relay: its event is a row of the outbox, and the relay delivers that row again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from aftercommit.errors import LetterNotFound, RepairError
from aftercommit.operate.repair.letters import LetterDetail, owner, show_letters
from aftercommit.operate.repair.looking import COUNTED, LOOKED, search_letters
from aftercommit.operate.repair.operations import ItemOutcome, record, record_dealt, who_is_missing
from aftercommit.operate.repair.payloads import checked_payload
from aftercommit.operate.repair.selection import OPEN, RELAY, Selection
from aftercommit.operate.repair.session import RepairSession

# The statuses that each action accepts. A letter that is being retried may be in use, with its present payload.
RETRIED: Final = ("parked", "discarded")
EDITED: Final = ("parked", "discarded")
DISCARDED: Final = ("parked", "waiting")
BUSY: Final = "a relay is settling its event at the moment: try again"
ON_ITS_WAY: Final = "its event is pending and may be in delivery: wait until it is parked or delivered"
PUBLISHED: Final = "its event is in the log, which cannot be changed: publish a correcting event instead"
UNDER_WAY: Final = "it is being retried: wait until it is parked or resolved"
WAITS: Final = "it waits behind another letter of its aggregate: handle that one first"
IN_HAND: Final = "a worker is handling it at the moment: try again later"
CHANGED: Final = "another process has just changed it: try again"
OTHERS_WAIT: Final = "consumers still wait for its event: discard their letters first, or together with it"
NOTHING_TO_SEND: Final = "its event has been delivered in the meantime"
GONE: Final = "its event was published, and retention has removed it from the log: it cannot be delivered again"
PERHAPS_PUBLISHED: Final = (
    "its event may have been published and then removed from the log, and published events cannot be changed: retry "
    "the letter as it is, or publish a correcting event"
)
REASON_MISSING: Final = "discarding needs a reason, which is kept on record: give reason=… (--reason)"


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The result of an action: how many letters it changed, and which it left alone (`left_alone`), with the reason.

    If not `is_exact`, a dry run has found at least `done` letters; if it has `looked_at` some letters only, those that
    were last seen. `missing` has messages about relays and workers that are not running, for which retried letters
    have to wait.
    """

    operation_id: UUID | None
    done: int
    left_alone: Sequence[ItemOutcome]
    dry_run: bool = False
    missing: Sequence[str] = ()
    is_exact: bool = True
    looked_at: int | None = None


@dataclass(frozen=True, slots=True)
class _Chosen:
    event_id: UUID
    consumer: str
    seq: int
    position: int | None
    status: str

    def left(self, note: str) -> ItemOutcome:
        return ItemOutcome(self.event_id, self.consumer, self.position, note)

    def done(self) -> ItemOutcome:
        return ItemOutcome(self.event_id, self.consumer, self.position)


async def retry(
    session: RepairSession, selection: Selection, *, by: str, reason: str, dry_run: bool = False, exact: bool = True
) -> RepairResult:
    """Retry the selected letters now and in order, with a fresh set of attempts."""
    locked = await _lock(session, selection, RETRIED, exact=exact or not dry_run)
    if dry_run:
        return locked.as_dry_run()
    dealt = await _retry(session, locked) + locked.left
    return await _finish(session, "retry", selection, dealt, by, reason)


async def discard(
    session: RepairSession, selection: Selection, *, by: str, reason: str, dry_run: bool = False, exact: bool = True
) -> RepairResult:
    """Discard the selected letters. A discarded letter keeps its event and can be retried later."""
    if not reason.strip():
        raise RepairError(REASON_MISSING)
    locked = await _lock(session, selection, DISCARDED, exact=exact or not dry_run)
    if dry_run:
        return locked.as_dry_run()
    dealt = await _discard(session, locked.of_log)
    dealt += await _discard_behind_bus(session, locked)
    dealt += await _discard_deliveries(session, locked)
    dealt += locked.left
    return await _finish(session, "discard", selection, dealt, by, reason)


async def edit(
    session: RepairSession,
    event_id: UUID,
    consumer: str | None,
    payload: bytes,
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
) -> RepairResult:
    """Replace the payload of a letter and retry it. The log does not change; the old payload is recorded."""
    letter = the_only(await show_letters(session, event_id, consumer))
    if letter.status not in EDITED:
        raise LetterNotFound(
            f"the letter of event {event_id} for {owner(letter.consumer)} is {letter.status}: only "
            f"{' and '.join(EDITED)} letters can be edited"
        )
    text = checked_payload(session, letter, payload)
    selection = Selection(event_ids=(event_id,), consumer=letter.consumer)
    locked = await _lock(session, selection, EDITED)
    published = await _was_published(session, letter)
    obstacle = _obstacle(letter, locked, published)
    if obstacle is not None:
        whose = owner(letter.consumer)
        raise LetterNotFound(f"the letter of event {event_id} for {whose} cannot be edited: {obstacle}")
    if dry_run:
        return RepairResult(None, 1, (), dry_run=True)
    before_publishing = letter.is_of_relay and not published
    parameters = {"event_id": event_id, "consumer": letter.consumer, "payload": text}
    await session.rows("edit_letter", {**parameters, "before_publishing": before_publishing})
    if before_publishing:
        await session.rows("edit_row", parameters)
    dealt = await _retry(session, locked)
    former = {"former_payload": letter.payload}
    return await _finish(session, "edit", selection, dealt, by, reason, former)


async def _was_published(session: RepairSession, letter: LetterDetail) -> bool | None:
    """Whether the event was ever in the log; None if unknown."""
    row = await session.row("was_published", {"event_id": letter.event_id, "consumer": letter.consumer})
    return row[0] if row is not None else None


def _obstacle(letter: LetterDetail, locked: "_Locked", published: bool | None) -> str | None:
    """Why the payload cannot be replaced: the old one may be in use or published."""
    if not locked.letters:
        return locked.left[0].note if locked.left else CHANGED
    if not letter.is_of_relay:
        return None
    if published is None:
        return PERHAPS_PUBLISHED
    if published and letter.consumer == RELAY:
        return PUBLISHED
    return GONE if published and not letter.positions else None


def the_only(found: Sequence[LetterDetail]) -> LetterDetail:
    """The letter of an event that has only one; RepairError if it has several."""
    if len(found) > 1:
        names = ", ".join(letter.consumer for letter in found)
        raise RepairError(f"event {found[0].event_id} has several dead letters ({names}): choose one with --consumer")
    return found[0]


@dataclass(frozen=True, slots=True)
class _Locked:
    """The letters to act on, in the order of their events, and those to leave alone, each with the reason."""

    letters: list[_Chosen]
    left: list[ItemOutcome]
    is_exact: bool = True
    looked_at: int | None = None

    def as_dry_run(self) -> RepairResult:
        """What an action would do."""
        extent = {"is_exact": self.is_exact, "looked_at": self.looked_at}
        return RepairResult(None, len(self.letters), self.left, dry_run=True, **extent)  # type: ignore[arg-type]

    @property
    def of_log(self) -> list[_Chosen]:
        """Letters of consumers that follow the log."""
        return [each for each in self.letters if each.position is not None]

    @property
    def of_relay(self) -> list[_Chosen]:
        """Letters of the relay, and of consumers behind the bus."""
        return [each for each in self.letters if each.position is None]


async def _lock(session: RepairSession, selection: Selection, allowed: Sequence[str], *, exact: bool = True) -> _Locked:
    """Lock the selected letters: parked ones, unless statuses or events are given. If not `exact`, only some."""
    asked = selection.statuses or ((*OPEN, *allowed) if selection.event_ids else ("parked",))
    if not set(asked) & {*OPEN, *allowed}:
        raise RepairError(
            f"this action does not accept letters that are {', '.join(asked)}: choose {', '.join(allowed)} ones"
        )
    wanted = tuple(status for status in dict.fromkeys(asked) if status in OPEN or status in allowed)
    selection = replace(selection, statuses=wanted)
    search = await search_letters(session, selection, wanted=COUNTED, exact=exact)
    limited = {**search.parameters, "most": None if exact else COUNTED}
    rows = await session.rows("find_letters", limited, **search.parts(session, selection))
    found = {_key(row): _Chosen(*row) for row in rows}
    missed = await search.missed_some(session)
    is_exact = exact or not (missed or len(found) == COUNTED)
    if not is_exact:
        selection = replace(selection, event_ids=tuple({letter.event_id for letter in found.values()}))
        if not found:
            return _Locked([], [], is_exact=False, looked_at=LOOKED)
    which, parameters = session.which_letters(selection), session.parameters(selection)
    events = {"ids": list({letter.event_id for letter in found.values() if letter.position is None})}
    there = {row[0] for row in await session.rows("find_rows", events)}
    # Lock rows before letters, like the relay, or the two would deadlock.
    queued = dict(await session.rows("lock_rows", events))
    held = {_key(row): _Chosen(*row) for row in await session.rows("lock_letters", parameters, which=which)}
    letters, left = [], []
    for key, letter in sorted({**found, **held}.items(), key=lambda each: (each[1].seq, each[1].consumer)):
        if key not in held:
            note: str | None = IN_HAND
        elif letter.position is None and (letter.event_id in there) != (letter.event_id in queued):
            note = BUSY
        else:
            note = _why_not(letter, allowed, queued.get(letter.event_id) if letter.position is None else None)
        if note is None:
            letters.append(letter)
        else:
            left.append(letter.left(note))
    return _Locked(letters, left, is_exact, LOOKED if missed else None)


def _why_not(letter: _Chosen, allowed: Sequence[str], row_status: str | None) -> str | None:
    """Why the action cannot change a letter; None if it can."""
    if row_status == "pending":
        return ON_ITS_WAY
    if letter.status not in allowed:
        return WAITS if letter.status == "waiting" else UNDER_WAY
    return None


def _key(row: Sequence[Any]) -> tuple[UUID, str]:
    return row[0], row[1]


async def _retry(session: RepairSession, locked: _Locked) -> list[ItemOutcome]:
    mine = locked.of_log
    if mine:
        await session.rows("reopen_letters", _keys([each for each in mine if each.status == "discarded"]))
        await session.rows("retry_letters", _keys(mine))
    return [each.done() for each in mine] + await _redeliver(session, locked.of_relay)


async def _redeliver(session: RepairSession, letters: Sequence[_Chosen]) -> list[ItemOutcome]:
    """Deliver their events again, to the consumers that have not handled them."""
    if not letters:
        return []
    gone = {row[0] for row in await session.rows("gone_events", _keys(letters))}
    left = [each.left(GONE) for each in letters if each.event_id in gone]
    letters = [each for each in letters if each.event_id not in gone]
    discarded = [each for each in letters if each.status == "discarded"]
    delivered: set[UUID] = set()
    if discarded:
        delivered = {row[0] for row in await session.rows("resolve_delivered", _keys(discarded))}
        await session.rows("reopen_letters", _keys(discarded))
    dealt, going = [], []
    for each in letters:
        done_already = each.consumer == RELAY and each.event_id in delivered
        dealt.append(each.left(NOTHING_TO_SEND) if done_already else each.done())
        if not done_already:
            going.append(each.event_id)
    await session.rows("redeliver", {"ids": list(dict.fromkeys(going))})
    return dealt + left


async def _discard(session: RepairSession, letters: Sequence[_Chosen]) -> list[ItemOutcome]:
    if letters:
        await session.rows("discard_letters", _keys(letters))
    return [each.done() for each in letters]


async def _discard_behind_bus(session: RepairSession, locked: _Locked) -> list[ItemOutcome]:
    """The consumer skips the event as if it had handled it. If no open letter is left, the event is delivered."""
    letters = [each for each in locked.of_relay if each.consumer != RELAY]
    if not letters:
        return []
    dealt = await _discard(session, letters)
    rows = await session.rows("without_open_letters", _keys(letters))
    await session.rows("redeliver", {"ids": [row[0] for row in rows]})
    return dealt


async def _discard_deliveries(session: RepairSession, locked: _Locked) -> list[ItemOutcome]:
    """Remove the event from the outbox; it stays in its letter."""
    letters = [each for each in locked.of_relay if each.consumer == RELAY]
    if not letters:
        return []
    await session.rows("remove_rows", _keys(letters))
    kept = {row[0] for row in await session.rows("find_rows", _keys(letters))}
    dealt = await _discard(session, [each for each in letters if each.event_id not in kept])
    return dealt + [each.left(OTHERS_WAIT) for each in letters if each.event_id in kept]


def _keys(letters: Sequence[_Chosen]) -> dict[str, object]:
    return {"ids": [each.event_id for each in letters], "consumers": [each.consumer for each in letters]}


async def _finish(
    session: RepairSession,
    kind: str,
    selection: Selection,
    dealt: Sequence[ItemOutcome],
    by: str,
    reason: str,
    detail: Mapping[str, str] | None = None,
) -> RepairResult:
    if not dealt:
        return RepairResult(None, 0, ())
    operation_id = await record(session, kind, "@owner", selection, by=by, reason=reason, detail=detail)
    await record_dealt(session, operation_id, dealt)
    await session.wake_everybody()
    left_alone = [each for each in dealt if each.note is not None]
    missing = await who_is_missing(session, operation_id, "done") if kind != "discard" else []
    return RepairResult(operation_id, len(dealt) - len(left_alone), left_alone, missing=missing)
