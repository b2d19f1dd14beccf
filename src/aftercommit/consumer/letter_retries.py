"""Gives dead letters their further attempts: in slices like new events, taking turns with them, in order."""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from aftercommit.consumer.dead_letters import WorkerStatus
from aftercommit.consumer.slice import Slice
from aftercommit.consumer.slices import Query, SliceItem, prepare
from aftercommit.consumer.waiting import VersionWaits, look_again_in, waits
from aftercommit.consumer.worker_slices import FencedSlices, WorkerParts
from aftercommit.postgres.arrays import uuid_array
from aftercommit.postgres.commits import AsyncConnection

# Dead letters take turns with new events: at most so many, and no more once they have taken so long.
LETTERS_PER_TURN: Final = 500
LETTERS_SECONDS: Final = 0.5


class LetterSlices(FencedSlices):
    """Letters that get another attempt."""

    def begin(self, segment: Sequence[SliceItem]) -> Query:
        """Lock the letters, unless they have changed."""
        return self._parts.letters.begin(segment, self._parts.idle_timeout_ms, inbox=self._parts.consumer.inbox)

    def finish(self, work: Slice, seconds: float) -> Iterable[Query]:
        """Resolve what was handled; count the attempts that failed."""
        if work.failures:
            self._drafts = self._parts.letters.drafts(work)
            yield self._parts.letters.failing_again(work, self._drafts)
        unwanted = [item.record.event_id for item in work.items if not item.calls and item.failure is None]
        if unwanted and self._parts.consumer.inbox:
            yield Query("forget_handling", {"consumer": self._parts.consumer.name, "ids": uuid_array(unwanted)})
        done = [item.record.event_id for item in work.done]
        if done:
            yield self._parts.letters.resolving(done)

    async def committed(self, work: Slice) -> None:
        """Say what became of the letters."""
        if work.behind:
            await self._parts.letters.hold_back(self._connection, [item.record for item in work.behind])
        await super().committed(work)
        for item, _ in work.failed:
            await self._parts.reach("consumer.retried", event_id=item.record.event_id, failed=True)
        done = [item.record.event_id for item in work.done]
        self._parts.letters.tell_resolved(done, len(done) - len(work.handled))
        for event_id in done:
            await self._parts.reach("consumer.retried", event_id=event_id, failed=False)


class LetterRetries:
    """The letters of one consumer, tried again by its worker."""

    def __init__(self, parts: WorkerParts, version_waits: VersionWaits) -> None:
        self.any_open = True
        self.any_due = False
        self._parts = parts
        self._letters = parts.letters
        self._version_waits = version_waits
        self._look_for_waiting_at = 0.0

    def start(self) -> None:
        """Another worker was at work until now: nothing is known about the letters."""
        self.any_open = True
        self._look_for_waiting_at = 0.0

    async def look(self, connection: AsyncConnection, free_every: float, position: int) -> WorkerStatus:
        """See whether letters are due, and how far the log is for a worker at `position`."""
        now = time.monotonic()
        if self._parts.strict and now >= self._look_for_waiting_at:
            self._look_for_waiting_at = now + free_every
            await self._letters.free_waiting(connection)
        status = await self._letters.look(connection, position)
        self.any_due, self.any_open = status.any_due, status.any_open
        return status

    async def turn(self, connection: AsyncConnection) -> bool:
        """Give due letters another attempt, in order; returns whether there were any."""
        items = await self.due(connection)
        if items is None:
            return False
        until = time.monotonic() + LETTERS_SECONDS
        await self._parts.runner.run(items, LetterSlices(self._parts, connection, until))
        return True

    async def due(self, connection: AsyncConnection) -> list[SliceItem] | None:
        """The letters that are due, with their handlers; None if there are none."""
        records = await self._letters.due(connection, LETTERS_PER_TURN) if self.any_due else []
        if not records:
            if self.any_due and self._parts.strict:
                await self._letters.hold_back_blocked(connection)
            return None
        await self._parts.reach("consumer.retrying", letters=len(records))
        items: list[SliceItem] = []
        for record, due_at in records:
            prepared = prepare(self._parts.consumer, [record], attempt=record.retry_count + 1)
            # No handler takes it any more: without calls it is resolved.
            item = prepared[0] if prepared else SliceItem(record, (), None, None)
            item.due_at = due_at
            items.append(item)
        return await self._without_newer(connection, items)

    async def _without_newer(self, connection: AsyncConnection, items: list[SliceItem]) -> list[SliceItem]:
        """Put letters back that only newer code can read, and spend no attempt; strict: also those behind them."""
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
                (behind if self._parts.strict and item.record.aggregate in blocked else going).append(item)
        if behind:
            await self._letters.hold_back(connection, [item.record for item in behind])
        await self._parts.reach("consumer.put_back", letters=len(put_back))
        return going
