"""Dead letters to look at: a list, groups by error, and one with all that is known about it. Changes nothing.

Payloads are in the answer about one event alone: lists are read over shoulders and pasted into tickets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from aftercommit.errors import LetterNotFound
from aftercommit.operate.repair.selection import RELAY, Selection
from aftercommit.operate.repair.session import RepairSession
from aftercommit.postgres.records import declared_values


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter: an event that one consumer (or, as `@relay`, a transport) could not take.

    `attempts` are all that failed, over all retries; `failures` are those on record with their error, the last fifty at
    most. Behind the bus it is one for each delivery, in which a handler may be called several times.
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
        """Whether the event is still to be delivered: it waits in the outbox and not before a consumer of the log."""
        return self.position is None


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that failed; behind the bus one delivery, with how many `attempts` the handler was given in it."""

    at: datetime
    error: str
    error_class: str
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """What an operator did to an event; `former_payload` where it was edited."""

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
    """A letter with its payload, its attempts, and what was done about it."""

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
    """Some of the chosen letters, last seen first, and how many there are."""

    letters: Sequence[DeadLetter]
    total: int


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Letters of one owner that fail in the same way; numbers and ids in the text are shown as #."""

    consumer: str
    error_class: str
    error: str
    count: int
    parked: int
    first_seen_at: datetime
    last_seen_at: datetime
    event_types: Sequence[str]
    example: UUID


_SUMMARY = (
    "event_id consumer status event_type aggregate_type aggregate_id position error error_class attempts "
    "first_seen_at last_seen_at next_retry_at failures".split()
)
_DETAIL = (
    "schema_version occurred_at created_at correlation_id causation_id payload history outbox_status positions".split()
)


async def list_letters(session: RepairSession, selection: Selection, limit: int, offset: int) -> LetterPage:
    """A page of the chosen letters."""
    parameters = {**session.parameters(selection), "limit": limit, "offset": offset}
    rows = await session.rows("list_letters", parameters, which=session.which_letters(selection))
    letters = [DeadLetter(**dict(zip(_SUMMARY, row, strict=False))) for row in rows]
    if not rows and offset:
        # Behind the last one there is no row to carry the count.
        return LetterPage([], (await list_letters(session, selection, 1, 0)).total)
    return LetterPage(letters, rows[0][-1] if rows else 0)


async def group_letters(session: RepairSession, selection: Selection, limit: int) -> list[LetterGroup]:
    """The chosen letters by owner and error, the largest group first."""
    parameters = {**session.parameters(selection), "limit": limit}
    rows = await session.rows("group_letters", parameters, which=session.which_letters(selection))
    return [LetterGroup(*row) for row in rows]


async def show_letters(session: RepairSession, event_id: UUID, consumer: str | None) -> list[LetterDetail]:
    """The letters of one event, of all owners or of one; LetterNotFound when there are none."""
    rows = await session.rows("show_letters", {"event_id": event_id, "consumer": consumer})
    if not rows:
        whose = f" with {consumer!r}" if consumer is not None else ""
        raise LetterNotFound(
            f"event {event_id} has no dead letter{whose}: `aftercommit dead list` shows those there are"
        )
    deeds = await _deeds(session, event_id)
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


async def _deeds(session: RepairSession, event_id: UUID) -> list[OperatorAction]:
    rows = await session.rows("operations_on_event", {"event_id": event_id})
    return [OperatorAction(*row) for row in rows]


async def owners(session: RepairSession) -> list[str]:
    """Everybody who can have letters: the relay, and consumers that the database or the declaration knows."""
    known = {row[0] for row in await session.rows("known_owners", {})}
    declared = session.outbox.consumers if session.outbox is not None else ()
    return [RELAY, *sorted(known.union(declared))]


def owner(consumer: str) -> str:
    """Whose letter it is, in words."""
    return "the transport" if consumer == RELAY else f"consumer {consumer!r}"
