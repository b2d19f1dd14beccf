"""Dead letters of a consumer: written with the checkpoint, retried when due, parked when no attempt is left."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from aftercommit.consumer.lease import Lease
from aftercommit.consumer.outcome import Failed, next_delay
from aftercommit.consumer.slice import Slice
from aftercommit.consumer.slices import Query, SliceItem
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.arrays import uuid_array
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.records import BYTES_AT_ONCE, letter_record
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event
from aftercommit.text import storable_error

logger = logging.getLogger("aftercommit.consumer")

# Under strict ordering, so many letters of one aggregate at most in one turn.
IN_A_ROW: Final = 200
MAX_BYTES: Final = BYTES_AT_ONCE
# For a letter that waits behind another one and goes with it.
NOT_DUE: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LetterDraft:
    """A dead letter to write: an event, its state, and its failed attempts (0: it waits behind another event)."""

    record: Record
    status: str
    error: str
    error_class: str
    delay: float | None
    attempts: int
    cause: BaseException | None = None


class WorkerStatus(NamedTuple):
    """What a worker finds each turn: whether a letter is due, whether any is open, and where the log ends.

    `events` were ever in the log, and the worker still has to handle `lag` of them; unused positions do not count.
    `checkpoint`: as stored; None when the consumer is not registered.
    """

    any_due: bool
    any_open: bool
    head: int
    events: int
    lag: int
    checkpoint: int | None


class DeadLetters:
    """The dead letters of one consumer under one lease."""

    def __init__(self, outbox: Outbox, consumer: Consumer, lease: Lease) -> None:
        self._outbox = outbox
        self._consumer = consumer
        self._lease = lease
        self._statements = Statements(outbox.shape)
        self._mine = {"consumer": consumer.name, "strict": consumer.ordering == "strict"}
        due = self._statements.part("due_letters_strict" if self._mine["strict"] else "due_letters")
        self._due = self._statements.render("within_bytes", due=due).encode()

    def drafts(self, work: Slice) -> list[LetterDraft]:
        """Letters for the events of a slice that failed."""
        return [
            self._letter(item.record, failure, item.record.retry_count + 1 if item.due_at is not None else 1)
            for item, failure in work.failed
        ]

    def failing(self, work: Slice, drafts: Sequence[LetterDraft]) -> Query:
        """Write these letters, and letters for the events that wait behind them, in the slice's transaction."""
        letters = [*drafts, *(_waiting(item.record) for item in work.behind)]
        parameters = {**_columns(letters), "consumer": self._consumer.name, "unhandled": uuid_array(work.unhandled)}
        return Query("fail_in_slice", parameters)

    def tell(self, drafts: Sequence[LetterDraft]) -> None:
        """Count and log failures, once they are committed."""
        for draft in drafts:
            if draft.cause is not None:
                self._tell(draft, draft.cause)

    async def wait_behind(self, connection: AsyncConnection, items: Sequence[SliceItem], position: int) -> None:
        """Strict ordering: make events wait behind an unhandled one; the checkpoint stays, or moves to `position`."""
        if not items:
            return
        parameters = {
            **self._lease.parameters,
            **_columns([_waiting(item.record) for item in items]),
            "position": position,
        }
        row = await (await connection.execute(self._statements["record_failures"], parameters)).fetchone()
        self._lease.require(bool(row and row[0]))

    async def set_aside(self, connection: AsyncConnection, items: list[SliceItem], position: int) -> list[SliceItem]:
        """Strict ordering: make events wait behind an unhandled one of their aggregate; returns the others."""
        blocked = await self._blocked(connection, items)
        await self.wait_behind(connection, [item for item in items if item.record.aggregate in blocked], position)
        return [item for item in items if item.record.aggregate not in blocked]

    async def look(self, connection: AsyncConnection, position: int) -> WorkerStatus:
        """Look what there is to do for a worker at this position."""
        asked = {**self._mine, "position": position}
        row = await (await connection.execute(self._statements["look_around"], asked)).fetchone()
        return WorkerStatus(*row) if row else WorkerStatus(False, False, 0, 0, 0, None)

    async def due(self, connection: AsyncConnection, limit: int) -> list[tuple[Record, datetime]]:
        """Events whose next attempt is due, in order, and since when; `retry_count` counts the attempts so far."""
        parameters = {**self._mine, "limit": limit, "in_a_row": IN_A_ROW, "max_bytes": MAX_BYTES}
        rows = await (await connection.execute(self._due, parameters)).fetchall()
        return [(letter_record(row[1:], self._outbox.shape), row[0] or NOT_DUE) for row in rows]

    def begin(self, items: Sequence[SliceItem], idle_timeout_ms: str, *, inbox: bool) -> Query:
        """Open a slice of letters, if they have not changed since `due` read them."""
        parameters = {
            **self._lease.parameters,
            "ids": uuid_array(item.record.event_id for item in items),
            "seen": [item.record.ts for item in items],
            "turns": [item.due_at if item.due_at is not NOT_DUE else None for item in items],
            "inbox": inbox,
            "patience": idle_timeout_ms,
        }
        return Query("begin_letters", parameters)

    def resolving(self, ids: Sequence[UUID]) -> Query:
        """Resolve these letters at the end of their slice."""
        return Query("resolve_handled", {"ids": list(ids), "consumer": self._consumer.name})

    def tell_resolved(self, ids: Sequence[UUID], skipped: int = 0) -> None:
        """Log all letters of a turn in one line: a replay resolves many thousands.

        `skipped` of them were in the inbox already, or no handler takes them any more.
        """
        if ids:
            fields = {"outbox": self._outbox.schema, "consumer": self._consumer.name, "letters": len(ids)}
            named = [str(each) for each in ids]
            log_event(logger, logging.INFO, "dead_letters_resolved", **fields, skipped=skipped, event_ids=named)

    async def without_open_letters(self, connection: AsyncConnection, items: list[SliceItem]) -> list[SliceItem]:
        """The events without an open letter; the others are handled as letters."""
        parameters = {
            "consumer": self._consumer.name,
            "ids": [item.record.event_id for item in items],
            "positions": [item.record.position for item in items],
        }
        rows = await (await connection.execute(self._statements["open_letters_of_page"], parameters)).fetchall()
        open_letters = {row[0] for row in rows}
        return [item for item in items if item.record.event_id not in open_letters]

    async def hold_back(self, connection: AsyncConnection, records: Sequence[Record]) -> None:
        """Strict ordering: make letters wait behind one that failed."""
        parameters = {"consumer": self._consumer.name, "ids": [record.event_id for record in records]}
        await connection.execute(self._statements["hold_back"], parameters)

    async def put_back(self, connection: AsyncConnection, items: Sequence[SliceItem], seconds: float) -> None:
        """Let letters wait for newer code: they are due again in so many seconds, and no attempt is spent."""
        parameters = {
            **self._lease.parameters,
            "ids": uuid_array(item.record.event_id for item in items),
            "seen": [item.record.ts for item in items],
            "errors": [storable_error(item.newer) for item in items if item.newer is not None],
            "delay": seconds,
        }
        await connection.execute(self._statements["put_back_letters"], parameters)

    def failing_again(self, work: Slice, drafts: Sequence[LetterDraft]) -> Query:
        """Record, in the transaction of a slice of letters, that another attempt of some has failed."""
        parameters = {
            "consumer": self._consumer.name,
            "unhandled": uuid_array(work.unhandled),
            "ids": uuid_array(draft.record.event_id for draft in drafts),
            "errors": [draft.error for draft in drafts],
            "classes": [draft.error_class for draft in drafts],
            "delays": [draft.delay for draft in drafts],
        }
        return Query("fail_letters", parameters)

    async def hold_back_blocked(self, connection: AsyncConnection) -> None:
        """Strict ordering: make due letters behind a parked one wait until it is resolved."""
        await connection.execute(self._statements["hold_back_blocked"], self._mine)

    async def free_waiting(self, connection: AsyncConnection) -> int:
        """Strict ordering: make letters due that no longer wait behind another; returns how many."""
        cursor = await connection.execute(self._statements["free_waiting"], self._mine)
        return cursor.rowcount

    async def seconds_to_next(self, connection: AsyncConnection) -> float | None:
        """How long until the next letter falls due."""
        row = await (await connection.execute(self._statements["next_letter"], self._mine)).fetchone()
        return row[0] if row else None

    async def _blocked(self, connection: AsyncConnection, items: Sequence[SliceItem]) -> set[tuple[str, str]]:
        aggregates = sorted({item.record.aggregate for item in items})
        parameters = {
            "consumer": self._consumer.name,
            "types": [aggregate_type for aggregate_type, _ in aggregates],
            "ids": [aggregate_id for _, aggregate_id in aggregates],
        }
        rows = await (await connection.execute(self._statements["blocked_aggregates"], parameters)).fetchall()
        return {(row[0], row[1]) for row in rows}

    async def take_up_newer(self, connection: AsyncConnection) -> None:
        """Try events again that older code parked because it did not know their version."""
        known = list(self._outbox.registry)
        parameters = {
            "consumer": self._consumer.name,
            "types": [event_type.name for event_type in known],
            "versions": [event_type.version for event_type in known],
        }
        await connection.execute(self._statements["take_up_newer"], parameters)

    def _letter(self, record: Record, failure: Failed, attempts: int) -> LetterDraft:
        delay = next_delay(failure, attempts, self._consumer.retry_count, self._consumer.backoff)
        status = "parked" if delay is None else "retrying"
        error = failure.error
        return LetterDraft(record, status, storable_error(error), type(error).__name__, delay, attempts, error)

    def _tell(self, letter: LetterDraft, error: BaseException) -> None:
        name = self._consumer.name
        fields = tell_failed(self._outbox, name, letter.record, error, letter.attempts, letter.delay)
        if letter.delay is None:
            self._outbox.meter.on_parked(name)
            log_event(logger, logging.ERROR, "outbox_dead_lettered", **fields)


def tell_failed(
    outbox: Outbox, consumer: str, record: Record, error: BaseException, attempt: int, retry_in: float | None
) -> dict[str, Any]:
    """Count and log a failed call of a handler; returns the fields of the log line."""
    outbox.meter.on_consumed(consumer, "failed")
    fields = {
        "outbox": outbox.schema,
        "consumer": consumer,
        "event_id": str(record.event_id),
        "event_type": record.event_type,
        "attempt": attempt,
        "error": storable_error(error),
        "error_class": type(error).__name__,
    }
    log_event(logger, logging.WARNING, "event_handling_failed", error, retry_in=retry_in, **fields)
    return fields


def _columns(letters: Sequence[LetterDraft]) -> dict[str, Any]:
    """Parameters for these letters, one for each event."""
    first = {letter.record.event_id: letter for letter in reversed(letters)}
    letters = [first[event_id] for event_id in dict.fromkeys(letter.record.event_id for letter in letters)]
    return {
        "positions": [letter.record.position for letter in letters],
        "statuses": [letter.status for letter in letters],
        "errors": [letter.error for letter in letters],
        "classes": [letter.error_class for letter in letters],
        "delays": [letter.delay for letter in letters],
        "attempts": [letter.attempts for letter in letters],
    }


def _waiting(record: Record) -> LetterDraft:
    aggregate = f"{record.aggregate_type} {record.aggregate_id}"
    reason = f"waits behind an earlier event of {aggregate} that is not handled yet"
    return LetterDraft(record, "waiting", reason, "WaitsBehind", None, 0)
