"""Gives dead letters their further attempts: in slices like new events, taking turns with them, the order kept."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from uuid import UUID

import psycopg

from aftercommit.consumer.dead_letters import DeadLetters, WorkerStatus
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.runner import Runner, SlicePolicy
from aftercommit.consumer.slices import Query, SliceItem, SliceOutdated, prepare
from aftercommit.consumer.waiting import VersionWaits, look_again_in, waits
from aftercommit.consumer.walk import by_aggregate
from aftercommit.event.envelope import Record
from aftercommit.outbox.handlers import Consumer
from aftercommit.service import finish_all

# Dead letters take turns with new events: so many at most, and no more once they have taken so long.
LETTERS_PER_TURN: Final = 500
LETTERS_SECONDS: Final = 0.5

First = Callable[[SliceItem], Awaitable[Failed | None]]
Reach = Callable[..., Awaitable[None]]


class LetterRetries:
    """The letters of one consumer, tried again by its worker."""

    def __init__(
        self,
        consumer: Consumer,
        runner: Runner,
        letters: DeadLetters,
        version_waits: VersionWaits,
        lease_seconds: float,
        reach: Reach,
    ) -> None:
        """`lease_seconds` is how long a worker may be silent, in seconds."""
        self.any_open = True
        self._any_due = False
        self._consumer = consumer
        self._runner = runner
        self._letters = letters
        self._version_waits = version_waits
        self._idle_timeout_ms = runner.idle_timeout_ms(lease_seconds)
        self._reach = reach
        self._strict = consumer.ordering == "strict"
        self._look_for_waiting_at = 0.0

    def start(self) -> None:
        """Somebody else was at work until now: nothing is known about the letters."""
        self.any_open = True
        self._look_for_waiting_at = 0.0

    async def look(self, connection: psycopg.AsyncConnection[Any], free_every: float, position: int) -> WorkerStatus:
        """See whether there are letters to be tried, and along with it where the log is for a worker at `position`."""
        now = time.monotonic()
        if self._strict and now >= self._look_for_waiting_at:
            self._look_for_waiting_at = now + free_every
            await self._letters.free_waiting(connection)
        status = await self._letters.look(connection, position)
        self._any_due, self.any_open = status.any_due, status.any_open
        return status

    async def turn(
        self,
        connection: psycopg.AsyncConnection[Any],
        proceeds: Callable[[], bool],
        first: First | None,
    ) -> bool:
        """Give the letters that are due another attempt; whether there were any. `first` as in `SlicePolicy`."""
        started = time.monotonic()
        records = await self._letters.due(connection, LETTERS_PER_TURN) if self._any_due else []
        if not records:
            if self._any_due and self._strict:
                await self._letters.hold_back_blocked(connection)
            return False
        await self._reach("consumer.retrying", letters=len(records))

        def has_time() -> bool:
            return time.monotonic() - started <= LETTERS_SECONDS

        items, unwanted = self._prepare(records)
        items = await self._without_newer(connection, items)
        if unwanted:
            await self._resolve_unwanted(unwanted)
        # Starts are counted in one place, so suspects go one after the other.
        groups = by_aggregate(items, self._consumer.concurrency if first is None else 1)
        await finish_all(self._retry(connection, group, proceeds, has_time, first) for group in groups)
        return True

    async def _without_newer(self, connection: psycopg.AsyncConnection[Any], items: list[SliceItem]) -> list[SliceItem]:
        """Letters that newer code could read are put back, no attempt is spent; under strict ordering the row waits."""
        if not any(item.newer for item in items):
            return items
        left = await self._version_waits.of(self._version_waits.asking(connection), items)
        put_back = [item for item in items if waits(item, left)]
        await self._letters.put_back(connection, put_back, look_again_in(left))
        blocked: set[tuple[str, str]] = set()
        behind: list[SliceItem] = []
        going: list[SliceItem] = []
        for item in items:
            if waits(item, left):
                blocked.add(item.record.aggregate)
            else:
                (behind if self._strict and item.record.aggregate in blocked else going).append(item)
        if behind:
            await self._letters.hold_back(connection, [item.record for item in behind])
        await self._reach("consumer.put_back", letters=len(put_back))
        return going

    def _prepare(self, records: Sequence[Record]) -> tuple[list[SliceItem], list[Record]]:
        """The letters with their handlers, and those that no handler takes any more."""
        items: list[SliceItem] = []
        unwanted: list[Record] = []
        for record in records:
            prepared = prepare(self._consumer, [record], attempt=record.retry_count + 1)
            items.extend(prepared)
            if not prepared:
                unwanted.append(record)
        return items, unwanted

    async def _resolve_unwanted(self, records: Sequence[Record]) -> None:
        resolving = self._letters.resolving([record.event_id for record in records])
        try:
            await self._runner.slice(
                [], self._letters.begin(records, self._idle_timeout_ms, inbox=False), lambda: resolving
            )
        except SliceOutdated:
            return
        self._letters.tell_resolved([record.event_id for record in records], skipped=len(records))
        for record in records:
            await self._reach("consumer.retried", event_id=record.event_id, failed=False)

    async def _retry(
        self,
        connection: psycopg.AsyncConnection[Any],
        items: Sequence[SliceItem],
        proceed: Callable[[], bool],
        has_time: Callable[[], bool],
        first: First | None,
    ) -> None:
        failed: set[UUID] = set()
        slice_ids: list[UUID] = []

        async def fail(item: SliceItem, failure: Failed, behind: list[SliceItem]) -> None:
            failed.add(item.record.event_id)
            await self._letters.failed_again(connection, item.record, failure)
            if behind:
                failed.update(other.record.event_id for other in behind)
                await self._letters.hold_back(connection, [other.record for other in behind])
            await self._reach("consumer.retried", event_id=item.record.event_id, failed=True)

        def begin(segment: Sequence[SliceItem]) -> Query:
            # One group is gone through slice by slice, so what a slice began with is what it ends with.
            slice_ids[:] = [item.record.event_id for item in segment]
            records = [item.record for item in segment]
            return self._letters.begin(records, self._idle_timeout_ms, inbox=self._consumer.inbox)

        def end(seconds: float) -> Query:
            return self._letters.resolving(slice_ids)

        skipped = 0

        def count(events: int, handled: int) -> None:
            nonlocal skipped
            skipped += events - handled

        policy = SlicePolicy(
            begin,
            fail,
            end=end,
            first=first,
            proceed=proceed,
            has_time=has_time,
            strict=self._strict,
            on_slice=count,
        )
        left = {item.record.event_id for item in await self._runner.run(items, policy)}
        done = [item.record.event_id for item in items if item.record.event_id not in failed | left]
        self._letters.tell_resolved(done, skipped)
        for event_id in done:
            await self._reach("consumer.retried", event_id=event_id, failed=False)
