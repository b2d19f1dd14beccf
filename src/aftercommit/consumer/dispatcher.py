"""Behind the bus: gives each event to the consumers that take it, each with its own inbox and its own failures."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import psycopg

from aftercommit.consumer.dead_letters import tell_failed
from aftercommit.consumer.outcome import Failed, next_delay
from aftercommit.consumer.runner import Runner, SlicePolicy
from aftercommit.consumer.slices import Query, SliceItem, SliceResult, prepare, require_handlers
from aftercommit.consumer.waiting import VersionWaits, look_again_in, waits
from aftercommit.consumer.walk import by_aggregate
from aftercommit.errors import DeclarationError, TransportUnavailable
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.arrays import text_array, uuid_array
from aftercommit.postgres.database import Database, privilege
from aftercommit.postgres.handler_connections import ConsumerConnections
from aftercommit.postgres.records import FEW_BYTES, FEW_EVENTS, PAYLOAD, outbox_records
from aftercommit.postgres.resilience import LOST
from aftercommit.relay.transport import Failure, Untried
from aftercommit.service import finish_all

# The dispatcher itself waits for a retry that is due within this time; the relay keeps longer waits.
SHORT_WAIT: Final = 5.0
# How long the server waits beyond the handler's own time before it ends a silent transaction.
GRACE: Final = 5.0


class Dispatcher:
    """Gives each consumer that takes an event `retry_count + 1` attempts, and reports what still fails to the relay.

    It serves all consumers of the outbox, or those given.
    """

    def __init__(self, outbox: Outbox, database: Database, consumers: Sequence[Consumer] | None = None) -> None:
        chosen = list(consumers) if consumers is not None else list(outbox.consumers.values())
        for consumer in chosen:
            _require_fitting(consumer, outbox)
        outbox.registry.require_upcasters()
        # Each carrier of the relay has a batch at work; only the declared concurrency limits how many handlers run.
        limit = sum(consumer.concurrency for consumer in chosen)
        self._connections = ConsumerConnections(database, max(1, limit))
        self._runners = [Runner(outbox, consumer, self._connections) for consumer in chosen]
        self._waits = {consumer.name: VersionWaits(outbox, consumer) for consumer in chosen}
        self._first = next((runner for runner in self._runners if runner.consumer.is_async is not False), None)
        self._outbox = outbox

    async def open(self) -> None:
        """Do nothing: consumers connect when there is work."""

    async def close(self) -> None:
        """Close the connections of every consumer."""
        try:
            if self._first is not None:
                await self._first.early.cut_off()
        finally:
            await self._connections.close()

    async def read_few(self, untried: Untried) -> list[Record]:
        """Read a few untried events, and open the first slice for them by the same statement."""
        if self._first is None:
            return []
        consumer = self._first.consumer
        opening = {
            **untried._asdict(),
            "consumer": consumer.name,
            "types": None if consumer.types is None else text_array(consumer.types),
            # Side by side, each has a slice of its own.
            "few": FEW_EVENTS if consumer.concurrency == 1 else 1,
            "few_bytes": FEW_BYTES,
            "patience": self._first.idle_timeout_ms(GRACE),
        }
        query = Query("begin_due_slice", opening, prepared=True)
        rows = await self._first.early.read(query, replaces="begin_new_slice")
        return outbox_records(map(_with_payload, rows), self._outbox.shape, again=False)

    async def dispatch(self, records: Sequence[Record]) -> list[Failure]:
        """Run all consumers side by side; a failure of one does not stop the others."""
        try:
            results = await finish_all(self._consume(runner, records) for runner in self._runners)
        except LOST:
            await self.close()
            raise
        except psycopg.errors.InsufficientPrivilege as problem:
            raise privilege("the relay's user", self._outbox.shape, problem) from problem
        except psycopg.Error as problem:
            # A statement of our own failed, not a handler: no event is to blame, so no attempt is spent.
            raise TransportUnavailable(f"the inbox cannot be written: {str(problem).strip()}") from problem
        return [failure for failures in results for failure in failures]

    async def _consume(self, runner: Runner, records: Sequence[Record]) -> list[Failure]:
        consumer = runner.consumer
        records = await self._corrected(runner, records)
        items, put_back = await self._without_newer(runner, prepare(consumer, records, attempt=1))
        failures = await finish_all(
            self._attempts(runner, group) for group in by_aggregate(items, consumer.concurrency)
        )
        # If no handler takes one of its events after all.
        await runner.early.release(record.event_id for record in records)
        return [*put_back, *(failure for group in failures for failure in group)]

    async def _without_newer(self, runner: Runner, items: list[SliceItem]) -> tuple[list[SliceItem], list[Failure]]:
        """Split off events that only newer code can read: they go back to the relay and spend no attempt."""
        name = runner.consumer.name
        if not any(item.failure is not None and item.newer for item in items):
            self._waits[name].lapse()
            return items, []
        left = await self._waits[name].of(runner.ask, items)
        put_back = [
            Failure(item.record.event_id, item.newer, name, retry_after=look_again_in(left), attempts=0)
            for item in items
            if item.newer is not None and waits(item, left)
        ]
        return [item for item in items if not waits(item, left)], put_back

    async def _corrected(self, runner: Runner, records: Sequence[Record]) -> Sequence[Record]:
        """The records with the payloads that an operator has corrected for this consumer."""
        again = [record.event_id for record in records if record.again]
        if not again:
            return records
        parameters = {"consumer": runner.consumer.name, "ids": again}
        payloads = {event_id: text.encode() for event_id, text in await runner.ask("corrected_payloads", parameters)}
        return [
            msgspec.structs.replace(record, payload=payloads.get(record.event_id, record.payload)) for record in records
        ]

    async def _attempts(self, runner: Runner, items: Sequence[SliceItem]) -> list[Failure]:
        consumer, attempt = runner.consumer, 1
        final: list[Failure] = []
        while items:
            slices = _BusSlices(runner)
            await runner.run(items, slices)
            again: list[Record] = []
            wait = 0.0
            for item, failure in slices.failed:
                delay = next_delay(failure, attempt, consumer.retry_count, consumer.backoff)
                is_over = delay is None or (failure.retry_after or 0.0) > SHORT_WAIT
                retry_in = None if is_over else delay
                tell_failed(self._outbox, consumer.name, item.record, failure.error, attempt, retry_in)
                if retry_in is None:
                    said = (failure.error, consumer.name, failure.permanent, failure.retry_after, attempt)
                    final.append(Failure(item.record.event_id, *said))
                else:
                    again.append(item.record)
                    # Others of the batch wait with this one, so a long pause is left to the relay's own retries.
                    wait = max(wait, min(retry_in, SHORT_WAIT))
            if not again:
                break
            await asyncio.sleep(wait)
            attempt += 1
            items = prepare(consumer, again, attempt)
        return final


class _BusSlices(SlicePolicy):
    """Events behind the bus, where the inbox says what was handled. `failed` collects the events that failed."""

    survives = True

    def __init__(self, runner: Runner) -> None:
        self.failed: list[tuple[SliceItem, Failed]] = []
        self._runner = runner

    def begin(self, segment: Sequence[SliceItem]) -> Query:
        parameters = {
            "consumer": self._runner.consumer.name,
            "ids": uuid_array(item.record.event_id for item in segment),
            "patience": self._runner.idle_timeout_ms(GRACE),
        }
        return Query("begin_new_slice", parameters, prepared=True, if_repeated="begin_unfenced_slice")

    def finish(self, result: SliceResult) -> Iterable[Query]:
        if result.failures:
            ids = uuid_array(item.record.event_id for item, _ in result.failed)
            yield Query("forget_handling", {"consumer": self._runner.consumer.name, "ids": ids})

    async def committed(self, result: SliceResult) -> None:
        self.failed += result.failed

    async def fail(self, item: SliceItem, failure: Failed, behind: list[SliceItem]) -> None:
        self.failed.append((item, failure))


def _with_payload(row: Sequence[Any]) -> Sequence[Any]:
    """A row of `load_due` with the payload as bytes: on handlers' connections, JSON is read as their program wants."""
    return (*row[:PAYLOAD], row[PAYLOAD].encode(), *row[PAYLOAD + 1 :])


def _require_fitting(consumer: Consumer, outbox: Outbox) -> None:
    require_handlers(consumer)
    if not consumer.inbox:
        raise DeclarationError(
            f"consumer {consumer.name!r} is declared with inbox=False, but behind the bus only the inbox says what was "
            "handled: drop inbox=False, or let the consumer follow the log"
        )
    if consumer.ordering == "strict" and outbox.ordering != "strict":
        raise DeclarationError(
            f"consumer {consumer.name!r} is declared with ordering='strict', but the bus keeps the order that the "
            "outbox declares: declare Outbox(ordering='strict'), or let the consumer follow the log"
        )
