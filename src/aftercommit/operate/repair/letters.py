"""Reads dead letters: lists, groups by error, and single letters in full. Changes nothing.

Only single letters come with their payload: lists are pasted into tickets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from aftercommit.errors import LetterNotFound
from aftercommit.operate.repair.looking import COUNTED, LOOKED, letters_of_each, search_letters
from aftercommit.operate.repair.selection import FAILING, LARGEST, RELAY, Selection
from aftercommit.operate.repair.session import RepairSession
from aftercommit.postgres.records import declared_values


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter: an event that one consumer could not handle, or that the transport did not accept (`@relay`).

    `attempts` counts all failed attempts, over all retries. `failures` counts those recorded with their error, at most
    the last fifty; behind the bus it is one per delivery, in which a handler may be called several times.
    """

    event_id: UUID
    consumer: str
    status: str
    event_type: str
    aggregate_type: str
    aggregate_id: str
    position: int | None
    error: str
    error_class: str
    attempts: int
    first_seen_at: datetime
    last_seen_at: datetime
    next_retry_at: datetime | None
    failures: int

    @property
    def is_of_relay(self) -> bool:
        """Whether its event waits in the outbox to be delivered; otherwise a consumer of the log handles the letter."""
        return self.position is None


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One failed attempt; behind the bus one delivery, with the number of `attempts` that the handler had in it."""

    at: datetime
    error: str
    error_class: str
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """An operator's action on an event; `former_payload` is set if it was edited."""

    operation_id: UUID
    kind: str
    by: str
    reason: str
    at: datetime
    state: str
    note: str | None
    former_payload: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterDetail(DeadLetter):
    """A letter with its payload, its attempts, and the operators' actions (`deeds`)."""

    schema_version: int
    occurred_at: datetime
    created_at: datetime
    correlation_id: str
    causation_id: UUID | None
    scope: Mapping[str, Any]
    audience: Sequence[str]
    payload: str
    history: Sequence[FailedAttempt]
    outbox_status: str | None
    positions: Sequence[int]
    deeds: Sequence[OperatorAction]


@dataclass(frozen=True, slots=True)
class LetterPage:
    """One page of the selected letters, last seen first, and their total number.

    If not `is_exact`, there are at least `total`. `looked_at` is None if every letter that might match was looked at;
    otherwise it is how many were, those that were last seen.
    """

    letters: Sequence[DeadLetter]
    total: int
    is_exact: bool = True
    looked_at: int | None = None


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Letters of one owner with the same error; numbers and ids in its text are replaced by #.

    If not `is_exact`, it has at least `count` letters, and what is said of it is true of those.
    """

    consumer: str
    error_class: str
    error: str
    count: int
    parked: int
    first_seen_at: datetime
    last_seen_at: datetime
    event_types: Sequence[str]
    example: UUID
    is_exact: bool = True


# A question that is not exact knows no more groups than this.
MOST_GROUPS = 1_000
# To find the group of a letter without its index takes time.
_GROUPED = 25_000
_SUMMARY = [each.name for each in fields(DeadLetter)]
_COUNT = [each.name for each in fields(LetterGroup)].index("count")
_DETAIL = (
    "schema_version occurred_at created_at correlation_id causation_id payload history outbox_status positions".split()
)


async def list_letters(
    session: RepairSession, selection: Selection, limit: int, offset: int, *, exact: bool
) -> LetterPage:
    """One page of the selected letters."""
    wanted = min(max(offset + limit, COUNTED), LARGEST)
    search = await search_letters(session, selection, wanted=wanted, exact=exact)
    parts = search.parts(session, selection)
    rows = await session.rows("list_letters", {**search.parameters, "limit": limit, "offset": offset}, **parts)
    most = None if exact else wanted
    (total,) = await session.row("count_letters", {**search.parameters, "most": most}, **parts)
    missed = await search.missed_some(session)
    letters = [DeadLetter(**dict(zip(_SUMMARY, row, strict=True))) for row in rows]
    is_exact = not missed and (most is None or total < most)
    return LetterPage(letters, total, is_exact, LOOKED if missed else None)


async def group_letters(session: RepairSession, selection: Selection, limit: int, *, exact: bool) -> list[LetterGroup]:
    """The selected letters by owner and error, the largest group first."""
    simple = replace(selection, consumer=None, statuses=()).is_everything and set(selection.statuses) == set(FAILING)
    if exact or not simple:
        search = await search_letters(session, selection, wanted=LOOKED, looked=_GROUPED, exact=exact)
        rows = await session.rows(
            "group_letters", {**search.parameters, "limit": limit}, **search.parts(session, selection)
        )
        missed = await search.missed_some(session)
        return [LetterGroup(*(*row, not missed)) for row in rows]
    known = await session.rows("letter_groups", {"consumer": selection.consumer, "most": MOST_GROUPS})
    look = letters_of_each(known)
    parameters = {
        "owners": [owner for owner, _ in known],
        "keys": [key for _, key in known],
        "look": look,
        "limit": limit,
    }
    rows = await session.rows("count_groups", parameters)
    return [LetterGroup(*(*row, len(known) < MOST_GROUPS and row[_COUNT] < look)) for row in rows]


async def show_letters(session: RepairSession, event_id: UUID, consumer: str | None) -> list[LetterDetail]:
    """The letters of one event, of all owners or of one; LetterNotFound if there are none."""
    rows = await session.rows("show_letters", {"event_id": event_id, "consumer": consumer})
    if not rows:
        whose = f" for {consumer!r}" if consumer is not None else ""
        raise LetterNotFound(f"event {event_id} has no dead letter{whose}: see `aftercommit dead list`")
    deeds = [OperatorAction(*row) for row in await session.rows("operations_on_event", {"event_id": event_id})]
    return [_detail(session, row, deeds) for row in rows]


def _detail(session: RepairSession, row: Sequence[Any], deeds: Sequence[OperatorAction]) -> LetterDetail:
    names = [*_SUMMARY, *_DETAIL]
    known = dict(zip(names, row, strict=False))
    known["history"] = [
        FailedAttempt(datetime.fromisoformat(each["at"]), each["error"], each["error_class"], each.get("attempts", 1))
        for each in known["history"]
    ]
    scope, audience = declared_values(session.shape, row[len(names) :])
    return LetterDetail(**known, scope=scope, audience=audience, deeds=deeds)


async def owners(session: RepairSession) -> list[str]:
    """All possible owners of letters: the relay, and the consumers in the database or in the declarations."""
    known = {row[0] for row in await session.rows("known_owners", {})}
    declared = session.outbox.consumers if session.outbox is not None else ()
    return [RELAY, *sorted(known.union(declared))]


def owner(consumer: str) -> str:
    """The owner of a letter, for messages."""
    return "the transport" if consumer == RELAY else f"consumer {consumer!r}"


def unknown_consumer(name: str, known: Sequence[str]) -> str:
    """The message about a consumer that is not among the known ones."""
    return (
        f"unknown consumer {name!r}. Known consumers: {', '.join(known) or 'none'}. If it is behind the bus and has no "
        "dead letters yet, give --app"
    )
