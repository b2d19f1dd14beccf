"""One carrier: reads due events of its lanes, has the transport deliver them, and settles the outcome.

It holds no transaction and no row lock while the transport works. The fence in `settle` makes that safe.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from aftercommit.errors import AftercommitError, DatabaseError, LeaseLost, TransportUnavailable
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.resilience import LOST
from aftercommit.relay import plan
from aftercommit.relay.due_reader import Batch, DueReader
from aftercommit.relay.plan import Due, Marks
from aftercommit.relay.settle import Appended, Settlement
from aftercommit.relay.transport import Failure, ReadingTransport, Transport
from aftercommit.service import Probe
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.relay")


class DeliveryNeverFinished(AftercommitError):
    """The process died in every delivery of this event."""


class FailureOfAnotherEvent(AftercommitError):
    """A transport reported a failure of an event that is not in the batch."""


@dataclass(slots=True)
class BatchOutcome:
    """What the transport said about a batch."""

    delivered: list[Due | Record]
    failures: list[Failure]


@dataclass(frozen=True, slots=True)
class Carried:
    """What a carrier did in one turn.

    `more`: it reached a limit, so due events may be left. `rest_seconds`: for so long only a new event can be due;
    0 when others may be.
    """

    count: int
    more: bool
    rest_seconds: float


class Carrier:
    """Does the work of a relay on some of its lanes."""

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
        self._outbox = outbox
        self._transport = transport
        self._settlement = settlement
        self._batch_size = batch_size
        self._probe = probe
        # Found once: to ask an object for a protocol takes as long as a small query.
        self._reading = transport if isinstance(transport, ReadingTransport) else None
        self._strict = outbox.ordering == "strict"
        self.carries = transport.capabilities.carries
        self.reader = DueReader(outbox, marks, batch_size, loads=self.carries)

    async def carry_due(self, connection: AsyncConnection, lanes: Collection[int], *, rung: bool = False) -> Carried:
        """Read, deliver and settle due events of these lanes; in one statement if there is nothing to carry.

        `rung`: a publisher has woken the carrier, so that there are probably few.
        """
        if not self.carries and not self._strict and not await self.reader.is_retry_due(connection, lanes):
            swept = await self.sweep(connection, lanes)
            if swept.count:
                return swept
        batch = await self.read(connection, lanes, rung=rung)
        if batch.events:
            await self.carry(connection, batch)
        return self._carried(len(batch.events), drained=batch.drained, more=batch.more)

    async def sweep(self, connection: AsyncConnection, lanes: Collection[int]) -> Carried:
        """Move untried events from the outbox to the log in one statement."""
        watermark, resolved = self.reader.start(lanes)
        appended = await self._settlement.append_due(connection, lanes, watermark, self._batch_size)
        if appended.count:
            await self._tell_appended(appended)
        drained = self.reader.swept(appended, resolved)
        return self._carried(appended.count, drained=drained, more=not drained)

    def _carried(self, count: int, *, drained: bool, more: bool) -> Carried:
        return Carried(count, more, self.reader.quiet_seconds if drained else 0.0)

    async def read(self, connection: AsyncConnection, lanes: Collection[int], *, rung: bool = False) -> Batch:
        """The due events of these lanes."""
        batch = await self.reader.read_few(self._reading, lanes) if rung and self._reading is not None else None
        if batch is None:
            batch = await self.reader.read(connection, lanes)
        await self._reach("relay.read", count=len(batch.events))
        return batch

    async def carry(self, connection: AsyncConnection, batch: Batch) -> None:
        """Deliver a batch, then settle it."""
        outcome = await self.deliver(batch)
        await self.settle(connection, batch, outcome)

    async def carry_suspects(self, connection: AsyncConnection, lanes: Collection[int]) -> None:
        """Deliver events one at a time and count each attempt first: one of them may have killed our predecessor."""
        blocked: set[tuple[str, str]] = set()
        for event in (await self.read(connection, lanes)).events:
            if isinstance(event, Record) and event.aggregate not in blocked:
                failed = await self._carry_suspect(connection, event)
                if failed and self._strict:
                    blocked.add(event.aggregate)

    async def _carry_suspect(self, connection: AsyncConnection, event: Record) -> bool:
        # An operator may have sent it again by plain SQL after its last attempt: that is one more.
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
        if not self.carries:
            return BatchOutcome(list(batch.events), [])
        records = [event for event in batch.events if isinstance(event, Record)]
        outcome = await (self._deliver_strictly(records) if self._strict else self._deliver_all(records))
        await self._reach("relay.delivered", count=len(outcome.delivered), failures=len(outcome.failures))
        return outcome

    async def settle(self, connection: AsyncConnection, batch: Batch, outcome: BatchOutcome) -> None:
        """Write the outcome, fenced. An event that neither was delivered nor failed stays in the outbox untouched."""
        if outcome.delivered:
            ids = [event.event_id for event in outcome.delivered]
            lanes = {event.lane for event in outcome.delivered}
            retried = [event.event_id for event in outcome.delivered if event.again]
            await self._tell_appended(await self._settlement.append(connection, ids, lanes, retried))
        if outcome.failures:
            await self._record_failures(connection, batch, outcome.failures)
        await self.reader.settled(connection, batch, _unsettled(batch, outcome))

    async def _deliver_all(self, records: list[Record]) -> BatchOutcome:
        try:
            failures = _of(records, await self._transport.deliver(records))
        except (TransportUnavailable, DatabaseError, *LOST):
            raise
        except Exception as error:  # noqa: BLE001 - a transport's bug must not stop the relay
            if len(records) > 1:
                return _joined([await self._deliver_all([record]) for record in records])
            failures = [Failure(record.event_id, error) for record in records]
        if not failures:
            return BatchOutcome([*records], [])
        failed = {failure.event_id for failure in failures}
        return BatchOutcome([record for record in records if record.event_id not in failed], failures)

    async def _deliver_strictly(self, records: list[Record]) -> BatchOutcome:
        """Deliver so that an event behind a failed one of its aggregate waits."""
        outcomes: list[BatchOutcome] = []
        blocked: set[tuple[str, str]] = set()
        for batch in plan.rounds(records):
            going = [record for record in batch if record.aggregate not in blocked]
            if going:
                outcome = await self._deliver_all(going)
                outcomes.append(outcome)
                failed = {failure.event_id for failure in outcome.failures}
                blocked.update(record.aggregate for record in going if record.event_id in failed)
        return _joined(outcomes)

    async def _tell_appended(self, appended: Appended) -> None:
        await self._reach("relay.appended", count=appended.count, position=appended.position)
        self._outbox.meter.on_published(appended.latency)
        if appended.ids:
            fields = {
                "outbox": self._outbox.schema,
                "transport": self._transport.name,
                "count": appended.count,
                "position": appended.position,
                "event_id": str(appended.ids[0]),
                "event_ids": [str(event_id) for event_id in appended.ids],
            }
            log_event(logger, logging.INFO, "outbox_publish_succeeded", **fields)

    async def _record_failures(self, connection: AsyncConnection, batch: Batch, failures: Sequence[Failure]) -> None:
        events = {event.event_id: event for event in batch.events}
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
            if verdict.attempts:
                self._tell_failure(verdict, events[verdict.event_id])
            if verdict.delay is not None:
                self.reader.expect_retry(verdict.delay)
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

    async def _reach(self, point: str, **detail: Any) -> None:
        if self._probe is not None:
            await self._probe(point, detail)


def _unsettled(batch: Batch, outcome: BatchOutcome) -> list[int]:
    """The seqs of the events that stay in the outbox untouched."""
    if len(outcome.delivered) == len(batch.events):
        return []
    done = {event.event_id for event in outcome.delivered}.union(failure.event_id for failure in outcome.failures)
    return [event.seq for event in batch.events if event.event_id not in done]


def _joined(outcomes: Sequence[BatchOutcome]) -> BatchOutcome:
    delivered = [event for outcome in outcomes for event in outcome.delivered]
    return BatchOutcome(delivered, [failure for outcome in outcomes for failure in outcome.failures])


def _of(records: Sequence[Record], failures: Sequence[Failure]) -> list[Failure]:
    if not failures:
        return []
    strangers = {failure.event_id for failure in failures}.difference(record.event_id for record in records)
    if strangers:
        raise FailureOfAnotherEvent(
            f"the transport reported a failure of event {min(strangers)}, which is not in the batch: "
            "a failure must carry the event_id of its record"
        )
    return list(failures)


def _never_finished(event: Record) -> Failure:
    error = DeliveryNeverFinished(
        f"delivery began {event.retry_count} times and the process died each time: fix the cause, then retry"
    )
    return Failure(event.event_id, error, permanent=True)
