"""One carrier: reads due events of its lanes, has the transport deliver them, settles the outcome.

No transaction is open and no row is locked while the transport works; what makes this safe is the fence in `settle`.
"""

import dataclasses
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import psycopg

from aftercommit.errors import AftercommitError, DatabaseError, LeaseLost, TransportUnavailable
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.records import BYTES_AT_ONCE, outbox_record
from aftercommit.postgres.resilience import LOST
from aftercommit.postgres.statements import Statements
from aftercommit.relay import plan
from aftercommit.relay.plan import Due, Marks, Watermark
from aftercommit.relay.settle import Appended, Settlement
from aftercommit.relay.transport import Failure, Transport
from aftercommit.service import Probe
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.relay")

MAX_BATCH_BYTES = BYTES_AT_ONCE
RETRY_LOOK = 1.0
# Longer than the pause of an idle carrier, which looks again at its end.
IDLE_RETRY_LOOK = 1.5


class DeliveryNeverFinished(AftercommitError):
    """Delivery of this event was begun again and again, and each time the process died before it ended."""


class FailureOfAnotherEvent(AftercommitError):
    """A transport reported a failure of an event that is not in the batch."""


@dataclass(slots=True)
class Batch:
    """Events read together, and what is known about their outcome."""

    events: Sequence[Due | Record]
    fresh: Sequence[int] = ()
    resolved: int = 0
    counted: bool = False

    @property
    def lanes(self) -> set[int]:
        """The lanes whose leases this batch depends on."""
        return {event.lane for event in self.events}


@dataclass(slots=True)
class BatchOutcome:
    """What the transport said about a batch."""

    delivered: list[Due | Record]
    failures: list[Failure]


class Carrier:
    """The hands of a relay for some of its lanes, on a connection of its own."""

    def __init__(
        self,
        outbox: Outbox,
        transport: Transport,
        settlement: Settlement,
        marks: Marks,
        *,
        batch_size: int,
        probe: Probe | None = None,
    ) -> None:
        """Nothing read yet."""
        self._outbox = outbox
        self._transport = transport
        self._settlement = settlement
        self._marks = marks
        self._batch_size = batch_size
        self._probe = probe
        self._statements = Statements(outbox.shape)
        self._watermark = Watermark()
        self._look_for_retries_at = 0.0
        self._strict = outbox.ordering == "strict"
        # Of the last look: whether nothing was due but what it took, and whether its limits made it leave some.
        self.took_all = False
        self.left_some = False
        self._carries = transport.capabilities.carries
        self._loading = {
            name: self._statements.render("load_due", due=self._statements.part(name)).encode()
            for name in ("due_fresh", "due_fresh_strict", "due_retries", "due_retries_strict")
        }

    async def read(self, connection: psycopg.AsyncConnection[Any], lanes: Collection[int]) -> Batch:
        """Due events of these lanes by seq: those whose retry is due (at most half a batch), and untried ones."""
        limit = self._batch_size
        # Taken before the read: a transaction that ends between the two is resolved, but not in what was read.
        resolved = self._marks.resolved
        watermark = self._watermark.for_lanes(lanes)
        parameters = {"lanes": sorted(lanes), "watermark": watermark, "max_bytes": MAX_BATCH_BYTES}
        retries: list[Due | Record] = []
        if time.monotonic() >= self._look_for_retries_at:
            retries = await self._query(connection, "due_retries", {**parameters, "limit": max(1, limit // 2)})
            if len(retries) < max(1, limit // 2):
                self._look_for_retries_at = time.monotonic() + RETRY_LOOK
        fresh = await self._query(connection, "due_fresh", {**parameters, "limit": limit - len(retries)})
        if not fresh and not retries:
            # Somebody rang: if not for an event that was never tried, then for one that is to be tried again.
            retries = await self._query(connection, "due_retries", {**parameters, "limit": max(1, limit // 2)})
        if not fresh and not self._strict and len(retries) < limit:
            self._watermark.nothing_below(None, resolved)
        self.took_all = not retries and len(fresh) < limit and not self._carries
        self.left_some = len(retries) >= max(1, limit // 2) or len(retries) + len(fresh) >= limit
        await self._reach("relay.read", count=len(retries) + len(fresh))
        events = sorted([*retries, *fresh], key=lambda event: event.seq)
        return Batch(events, [event.seq for event in fresh], resolved)

    async def sweep(self, connection: psycopg.AsyncConnection[Any], lanes: Collection[int]) -> int:
        """Where there is nothing to carry: untried events go from the outbox to the log in one statement."""
        resolved = self._marks.resolved
        watermark = self._watermark.for_lanes(lanes)
        appended = await self._settlement.append_due(connection, lanes, watermark, self._batch_size)
        if appended.count:
            await self._tell_appended(appended)
        self.took_all = appended.count == appended.chosen < self._batch_size
        self.left_some = not self.took_all
        if self.took_all:
            self._watermark.nothing_below(None, resolved)
        elif appended.count == appended.chosen and appended.last_seq is not None:
            self._watermark.settled([appended.last_seq], (), resolved)
        return appended.count

    @property
    def can_sweep(self) -> bool:
        """Whether reading, delivering and appending may be one statement now: not when retries are to be looked for."""
        return not self._carries and not self._strict and time.monotonic() < self._look_for_retries_at

    async def carry(self, connection: psycopg.AsyncConnection[Any], batch: Batch) -> int:
        """Deliver and settle a batch; returns how many events were dealt with."""
        outcome = await self.deliver(batch)
        return await self.settle(connection, batch, outcome)

    async def carry_suspects(self, connection: psycopg.AsyncConnection[Any], batch: Batch) -> None:
        """One event at a time, each attempt counted before it is made: one of them may have killed our predecessor."""
        blocked: set[tuple[str, str]] = set()
        for event in batch.events:
            if isinstance(event, Record) and event.aggregate not in blocked:
                failed = await self._carry_suspect(connection, event)
                if failed and self._strict:
                    blocked.add(event.aggregate)

    async def _carry_suspect(self, connection: psycopg.AsyncConnection[Any], event: Record) -> bool:
        # Somebody may have sent it again by plain SQL after its last attempt: that is one more.
        if event.retry_count >= self._outbox.max_attempts + event.again:
            single, outcome = Batch([event], counted=True), BatchOutcome([], [_never_finished(event)])
        else:
            attempts = await self._settlement.count_attempt(connection, event.event_id, event.lane)
            if attempts is None:
                raise LeaseLost(f"lane {event.lane} was taken over, or event {event.event_id} is gone")
            await self._reach("relay.counted", attempts=attempts)
            single = Batch([msgspec.structs.replace(event, retry_count=attempts)], counted=True)
            try:
                outcome = await self.deliver(single)
            except TransportUnavailable:
                await self._settlement.give_back_attempt(connection, event.event_id, event.lane)
                raise
        await self.settle(connection, single, outcome)
        return bool(outcome.failures)

    async def deliver(self, batch: Batch) -> BatchOutcome:
        """Hand the batch to the transport, without any transaction open."""
        await self._reach("relay.deliver", count=len(batch.events))
        if not self._carries:
            return BatchOutcome(list(batch.events), [])
        records = [event for event in batch.events if isinstance(event, Record)]
        outcome = await (self._deliver_strictly(records) if self._strict else self._deliver_all(records))
        await self._reach("relay.delivered", count=len(outcome.delivered), failures=len(outcome.failures))
        return outcome

    async def settle(self, connection: psycopg.AsyncConnection[Any], batch: Batch, outcome: BatchOutcome) -> int:
        """Write the outcome, fenced. What is neither delivered nor failed stays in the outbox untouched."""
        done: set[UUID] = set()
        if outcome.delivered:
            await self._append(connection, outcome.delivered)
            done.update(_id(event) for event in outcome.delivered)
        if outcome.failures:
            await self._record_failures(connection, batch, outcome.failures)
            done.update(failure.event_id for failure in outcome.failures)
        await self._move_watermark(connection, batch, done)
        return len(done)

    async def seconds_to_next_retry(
        self, connection: psycopg.AsyncConnection[Any], lanes: Collection[int]
    ) -> float | None:
        """How long until a waiting event falls due."""
        name = "next_retry_strict" if self._strict else "next_retry"
        row = await (await connection.execute(self._statements[name], {"lanes": sorted(lanes)})).fetchone()
        seconds: float | None = row[0] if row else None
        if seconds is not None:
            self._look_for_retries_at = min(self._look_for_retries_at, time.monotonic() + max(0.0, seconds))
        else:
            # None waits, so whoever is woken by a new event need not look for one first.
            self._look_for_retries_at = time.monotonic() + IDLE_RETRY_LOOK
        return seconds

    @property
    def quiet_seconds(self) -> float:
        """For how long no retry has to be looked for."""
        return self._look_for_retries_at - time.monotonic()

    def look_back_to(self, seq: int) -> None:
        """An event of this seq was never tried: if the watermark is past it, it goes back."""
        self._watermark.look_back_to(seq)

    async def _query(
        self, connection: psycopg.AsyncConnection[Any], name: str, parameters: dict[str, Any]
    ) -> list[Any]:
        if parameters["limit"] <= 0:
            return []
        again = name == "due_retries"
        name = f"{name}_strict" if self._strict else name
        if not self._carries:
            rows = await (await connection.execute(self._statements[name], parameters, prepare=True)).fetchall()
            found = [Due(*row[:-1]) for row in rows]
            return [dataclasses.replace(due, again=True) for due in found] if again else found
        cursor = await connection.execute(self._loading[name], parameters, prepare=True)
        records = [outbox_record(row, self._outbox.shape) for row in await cursor.fetchall()]
        return [msgspec.structs.replace(record, again=True) for record in records] if again else records

    async def _deliver_all(self, records: list[Record]) -> BatchOutcome:
        try:
            failures = _of(records, await self._transport.deliver(records))
        except (TransportUnavailable, DatabaseError, *LOST):
            raise
        except Exception as error:  # noqa: BLE001 - a transport's bug must not stop the relay
            if len(records) > 1:
                return await self._deliver_singly(records)
            failures = [Failure(record.event_id, error) for record in records]
        failed = {failure.event_id for failure in failures}
        return BatchOutcome([record for record in records if record.event_id not in failed], failures)

    async def _deliver_singly(self, records: list[Record]) -> BatchOutcome:
        whole = BatchOutcome([], [])
        for record in records:
            one = await self._deliver_all([record])
            whole.delivered += one.delivered
            whole.failures += one.failures
        return whole

    async def _deliver_strictly(self, records: list[Record]) -> BatchOutcome:
        whole = BatchOutcome([], [])
        blocked: set[tuple[str, str]] = set()
        for batch in plan.rounds(records):
            going = [record for record in batch if record.aggregate not in blocked]
            if not going:
                continue
            one = await self._deliver_all(going)
            whole.delivered += one.delivered
            whole.failures += one.failures
            failed = {failure.event_id for failure in one.failures}
            blocked.update(record.aggregate for record in going if record.event_id in failed)
        return whole

    async def _append(self, connection: psycopg.AsyncConnection[Any], events: Sequence[Due | Record]) -> None:
        lanes = {event.lane for event in events}
        retried = [_id(event) for event in events if event.again]
        appended = await self._settlement.append(connection, [_id(event) for event in events], lanes, retried)
        await self._tell_appended(appended)

    async def _tell_appended(self, appended: Appended) -> None:
        await self._reach("relay.appended", count=appended.count, position=appended.position)
        self._outbox.meter.on_published(appended.latency)
        if appended.ids:
            log_event(
                logger,
                logging.INFO,
                "outbox_publish_succeeded",
                outbox=self._outbox.schema,
                transport=self._transport.name,
                count=appended.count,
                position=appended.position,
                event_id=str(appended.ids[0]),
                event_ids=[str(event_id) for event_id in appended.ids],
            )

    async def _record_failures(
        self, connection: psycopg.AsyncConnection[Any], batch: Batch, failures: Sequence[Failure]
    ) -> None:
        events = {_id(event): event for event in batch.events}
        verdicts = plan.agreed(
            [
                plan.judge(
                    failure,
                    events[failure.event_id].retry_count,
                    already_counted=batch.counted,
                    backoff=self._outbox.backoff,
                    max_attempts=self._outbox.max_attempts,
                )
                for failure in failures
            ]
        )
        lanes = {events[verdict.event_id].lane for verdict in verdicts}
        await self._settlement.record_failures(connection, verdicts, lanes)
        for verdict in verdicts:
            event = events[verdict.event_id]
            if verdict.attempts:
                self._tell_failure(verdict, event)
            if verdict.delay is not None:
                self._look_for_retries_at = min(self._look_for_retries_at, time.monotonic() + verdict.delay)
        await self._reach("relay.failed", count=len(verdicts))

    def _tell_failure(self, verdict: plan.Verdict, event: Due | Record) -> None:
        fields = {
            "outbox": self._outbox.schema,
            "transport": self._transport.name,
            "event_id": str(verdict.event_id),
            "event_type": event.event_type,
            "consumer": verdict.consumer,
            "attempt": event.retry_count + verdict.counted,
            "error": verdict.error,
            "error_class": verdict.error_class,
        }
        self._outbox.meter.on_failed(event.event_type, verdict.error_class)
        log_event(logger, logging.WARNING, "outbox_publish_failed", verdict.cause, retry_in=verdict.delay, **fields)
        if verdict.delay is None:
            self._outbox.meter.on_parked(verdict.consumer)
            log_event(logger, logging.ERROR, "outbox_dead_lettered", **fields)

    async def _move_watermark(self, connection: psycopg.AsyncConnection[Any], batch: Batch, done: set[UUID]) -> None:
        if batch.counted:
            return
        if self._strict:
            # Events blocked behind a failed one are not read, but they are still there: ask for the lowest of all.
            parameters = {"watermark": self._watermark.value, "lanes": sorted(self._watermark.lanes)}
            row = await (await connection.execute(self._statements["lowest_fresh"], parameters)).fetchone()
            self._watermark.nothing_below(row[0] if row else None, batch.resolved)
            return
        unsettled = [event.seq for event in batch.events if _id(event) not in done]
        self._watermark.settled(batch.fresh, unsettled, batch.resolved)

    async def _reach(self, point: str, **detail: Any) -> None:
        if self._probe is not None:
            await self._probe(point, detail)


def _id(event: Due | Record) -> UUID:
    return event.id if isinstance(event, Due) else event.event_id


def _of(records: Sequence[Record], failures: Sequence[Failure]) -> list[Failure]:
    strangers = {failure.event_id for failure in failures}.difference(record.event_id for record in records)
    if strangers:
        raise FailureOfAnotherEvent(
            f"the transport reports failures of events that were not given to it, {sorted(strangers)[0]} for one: "
            "a failure must carry the event_id of its record"
        )
    return list(failures)


def _never_finished(event: Record) -> Failure:
    error = DeliveryNeverFinished(
        f"delivery was begun {event.retry_count} times and the process died each time: fix the cause, then retry"
    )
    return Failure(event.event_id, error, permanent=True)
