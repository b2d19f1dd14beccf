"""Dead letters of a consumer: recorded with the checkpoint, retried when due, parked when the attempts are used up."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from aftercommit.consumer.outcome import Failed, next_delay
from aftercommit.errors import LeaseLost
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.records import log_record
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import say
from aftercommit.text import storable_error

logger = logging.getLogger("aftercommit.consumer")


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter to write: an event of the log, its state, and the attempt that failed (0: it waits behind another)."""

    record: Record
    status: str
    error: str
    error_class: str
    delay: float | None
    attempt: int


class DeadLetters:
    """The dead letters of one consumer under one lease."""

    def __init__(self, outbox: Outbox, consumer: Consumer, token: UUID, lease: float) -> None:
        """Nothing written yet."""
        self._outbox = outbox
        self._consumer = consumer
        self._statements = Statements(outbox.shape)
        self._lease = {"consumer": consumer.name, "token": token, "lease": lease}

    def letter(self, record: Record, failure: Failed, attempts: int) -> Letter:
        """The letter for a failed attempt: to be tried again, or parked."""
        delay = next_delay(failure, attempts, self._consumer.retry_count, self._consumer.backoff)
        error_class = type(failure.error).__name__
        return Letter(record, "parked" if delay is None else "retrying", storable_error(failure.error), error_class, delay, 1)

    def waiting(self, record: Record) -> Letter:
        """The letter for an event that must wait behind another of its aggregate."""
        reason = f"waits behind an earlier event of {record.aggregate_type} {record.aggregate_id} that has not been handled"
        return Letter(record, "waiting", reason, "WaitsBehind", None, 0)

    async def record(self, connection: psycopg.AsyncConnection[Any], letters: Sequence[Letter], position: int) -> None:
        """Write letters and move the checkpoint past them, in one fenced statement."""
        parameters = {
            **self._lease,
            "position": position,
            "positions": [letter.record.position for letter in letters],
            "statuses": [letter.status for letter in letters],
            "errors": [letter.error for letter in letters],
            "classes": [letter.error_class for letter in letters],
            "delays": [letter.delay for letter in letters],
            "attempts": [letter.attempt for letter in letters],
        }
        row = await (await connection.execute(self._statements["record_failures"], parameters)).fetchone()
        if not row or not row[0]:
            raise LeaseLost(f"consumer {self._consumer.name!r} was taken over by another worker")
        for letter in letters:
            if letter.attempt:
                self.tell(letter.record, letter.error, letter.error_class, letter.delay, letter.attempt)

    async def due(self, connection: psycopg.AsyncConnection[Any], limit: int) -> list[Record]:
        """Events whose next attempt is due; `retry_count` of each says how many have been made."""
        parameters = {"consumer": self._consumer.name, "limit": limit}
        rows = await (await connection.execute(self._statements["due_letters"], parameters)).fetchall()
        return [log_record(row, self._outbox.shape) for row in rows]

    async def failed_again(self, connection: psycopg.AsyncConnection[Any], record: Record, failure: Failed) -> None:
        """Another attempt failed."""
        attempts = record.retry_count + 1
        letter = self.letter(record, failure, attempts)
        parameters = {
            **self._lease,
            "event_id": record.event_id,
            "delay": letter.delay,
            "error": letter.error,
            "error_class": letter.error_class,
        }
        row = await (await connection.execute(self._statements["fail_letter"], parameters)).fetchone()
        if row is None:
            raise LeaseLost(f"consumer {self._consumer.name!r} was taken over, or the dead letter was dealt with by hand")
        self.tell(record, letter.error, letter.error_class, letter.delay, attempts)

    async def seconds_to_next(self, connection: psycopg.AsyncConnection[Any]) -> float | None:
        """How long until the next letter falls due."""
        cursor = await connection.execute(self._statements["next_letter"], {"consumer": self._consumer.name})
        row = await cursor.fetchone()
        return row[0] if row else None

    async def blocked(
        self, connection: psycopg.AsyncConnection[Any], records: Sequence[Record]
    ) -> set[tuple[str, str]]:
        """Strict ordering: which aggregates of these records have an event that was not handled."""
        aggregates = sorted({record.aggregate for record in records})
        parameters = {
            "consumer": self._consumer.name,
            "types": [aggregate_type for aggregate_type, _ in aggregates],
            "ids": [aggregate_id for _, aggregate_id in aggregates],
        }
        rows = await (await connection.execute(self._statements["blocked_aggregates"], parameters)).fetchall()
        return {(row[0], row[1]) for row in rows}

    def tell(self, record: Record, error: str, error_class: str, delay: float | None, attempt: int) -> None:
        """Log and count a failed attempt."""
        name = self._consumer.name
        self._outbox.meter.on_consumed(name, "failed")
        fields = {
            "outbox": self._outbox.schema,
            "consumer": name,
            "event_id": str(record.event_id),
            "event_type": record.event_type,
            "attempt": attempt,
            "error": error,
            "error_class": error_class,
        }
        say(logger, logging.WARNING, "event_handling_failed", retry_in=delay, **fields)
        if delay is None:
            self._outbox.meter.on_parked(name)
            say(logger, logging.ERROR, "outbox_dead_lettered", **fields)
