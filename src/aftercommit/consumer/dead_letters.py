"""Dead letters of a consumer: written with the checkpoint, retried when due, parked when no attempt is left."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from aftercommit.consumer.lease import Lease
from aftercommit.consumer.outcome import Failed, next_delay
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


class DeadLetters:
    """The dead letters of one consumer under one lease."""

    def __init__(self, outbox: Outbox, consumer: Consumer, lease: Lease) -> None:
        self._outbox = outbox
        self._consumer = consumer
        self._lease = lease
        self._statements = Statements(outbox.shape)
        self._mine = {**lease.parameters, "strict": consumer.ordering == "strict"}
        due = self._statements.part("due_letters_strict" if self._mine["strict"] else "due_letters")
        self._due = self._statements.render("within_bytes", due=due).encode()
        self._turns: dict[UUID, datetime | None] = {}
        # How often letters were written or tried: afterwards one may be due sooner than known.
        self.written = 0

    def letters(self, item: SliceItem, failure: Failed, behind: Sequence[SliceItem]) -> list[LetterDraft]:
        """Letters for an event whose first attempt failed, and for the events that must wait behind it."""
        return [self.draft(item.record, failure, 1), *(_waiting(other.record) for other in behind)]

    async def record(self, connection: AsyncConnection, letters: Sequence[LetterDraft], position: int) -> None:
        """Write letters and move the checkpoint past them, in one fenced statement."""
        parameters = {**self._lease.parameters, "position": position, **_columns(letters)}
        row = await (await connection.execute(self._statements["record_failures"], parameters)).fetchone()
        self._lease.require(bool(row and row[0]))
        self.tell(letters)

    def failing(self, letters: Sequence[LetterDraft]) -> Query:
        """Write letters in the slice in which their events have failed."""
        ids = uuid_array(letter.record.event_id for letter in letters)
        return Query("fail_in_slice", {"consumer": self._consumer.name, "ids": ids, **_columns(letters)})

    def tell(self, letters: Sequence[LetterDraft]) -> None:
        """Count and log the failures of letters that are committed."""
        self.written += bool(letters)
        for letter in letters:
            if letter.cause is not None:
                self._tell(letter, letter.cause)

    async def set_aside(self, connection: AsyncConnection, items: list[SliceItem], position: int) -> list[SliceItem]:
        """Strict ordering: make events wait behind an unhandled one of their aggregate; returns the others."""
        blocked = await self._blocked(connection, items)
        waiting = [item for item in items if item.record.aggregate in blocked]
        if waiting:
            await self.wait_behind(connection, waiting, position)
        return [item for item in items if item.record.aggregate not in blocked]

    async def wait_behind(self, connection: AsyncConnection, items: Sequence[SliceItem], position: int) -> None:
        """Strict ordering: make events wait behind the letters of their aggregate, as letters."""
        await self.record(connection, [_waiting(item.record) for item in items], position)

    async def due(self, connection: AsyncConnection, limit: int) -> list[Record]:
        """Events whose next attempt is due, in order; `retry_count` is the number of attempts so far."""
        parameters = {**self._mine, "limit": limit, "in_a_row": IN_A_ROW, "max_bytes": MAX_BYTES}
        rows = await (await connection.execute(self._due, parameters)).fetchall()
        records = [letter_record(row[1:], self._outbox.shape) for row in rows]
        self._turns = {record.event_id: row[0] for record, row in zip(records, rows, strict=True)}
        return records

    def begin(self, records: Sequence[Record], idle_timeout_ms: str, *, inbox: bool) -> Query:
        """Open a slice of letters, if they have not changed since `due` read them."""
        parameters = {
            **self._lease.parameters,
            "ids": uuid_array(record.event_id for record in records),
            "seen": [record.ts for record in records],
            "turns": [self._turns[record.event_id] for record in records],
            "inbox": inbox,
            "patience": idle_timeout_ms,
        }
        return Query("begin_letters", parameters)

    def resolving(self, ids: Sequence[UUID]) -> Query:
        """Resolve these letters at the end of their slice."""
        return Query("resolve_handled", {**self._lease.parameters, "ids": list(ids)})

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

    async def failed_again(self, connection: AsyncConnection, record: Record, failure: Failed) -> None:
        """Record that another attempt failed."""
        letter = self.draft(record, failure, record.retry_count + 1)
        parameters = {
            **self._lease.parameters,
            "event_id": record.event_id,
            "seen": record.ts,
            "turn": self._turns[record.event_id],
            "delay": letter.delay,
            "error": letter.error,
            "error_class": letter.error_class,
        }
        row = await (await connection.execute(self._statements["fail_letter"], parameters)).fetchone()
        held, updated = row if row else (0, 0)
        self._lease.require(bool(held))
        # A letter that an operator has changed meanwhile stays as the operator left it.
        if updated:
            self._tell(letter, failure.error)

    async def hold_back_blocked(self, connection: AsyncConnection) -> None:
        """Strict ordering: make due letters behind a parked one wait until it is resolved."""
        await connection.execute(self._statements["hold_back_blocked"], self._mine)

    async def free_waiting(self, connection: AsyncConnection) -> int:
        """Strict ordering: make letters due that no longer wait behind another; returns how many."""
        cursor = await connection.execute(self._statements["free_waiting"], self._mine)
        return cursor.rowcount

    async def _blocked(self, connection: AsyncConnection, items: Sequence[SliceItem]) -> set[tuple[str, str]]:
        aggregates = sorted({item.record.aggregate for item in items})
        parameters = {
            "consumer": self._consumer.name,
            "types": [aggregate_type for aggregate_type, _ in aggregates],
            "ids": [aggregate_id for _, aggregate_id in aggregates],
        }
        rows = await (await connection.execute(self._statements["blocked_aggregates"], parameters)).fetchall()
        return {(row[0], row[1]) for row in rows}

    def draft(self, record: Record, failure: Failed, attempts: int) -> LetterDraft:
        """A letter for an event whose attempt failed."""
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
    """Parameters for these letters, one for each event: the log may have an event twice."""
    letters = list({letter.record.event_id: letter for letter in reversed(letters)}.values())
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
