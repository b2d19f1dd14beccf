"""Gives dead letters their further attempts: in slices like new events, taking turns with them, in order."""

import time
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slices import Query, SliceItem, SliceOutdated, SliceResult, prepare
from aftercommit.consumer.waiting import VersionWaits, look_again_in, waits
from aftercommit.consumer.walk import by_aggregate
from aftercommit.consumer.worker_slices import FencedSlices, WorkerParts
from aftercommit.event.envelope import Record
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.service import finish_all

# Dead letters take turns with new events: at most so many, and no more once they have taken so long.
LETTERS_PER_TURN: Final = 500
LETTERS_SECONDS: Final = 0.5


class _LetterSlices(FencedSlices):
    """Letters that get another attempt. `done` are resolved, `skipped` of them without a call of a handler."""

    def __init__(self, parts: WorkerParts, connection: AsyncConnection, max_seconds: float) -> None:
        super().__init__(parts, connection, max_seconds)
        self.done: list[UUID] = []
        self.skipped = 0

    def begin(self, segment: Sequence[SliceItem]) -> Query:
        inbox = self._parts.consumer.inbox
        records = [item.record for item in segment]
        return self._parts.letters.begin(records, self._parts.idle_timeout_ms, inbox=inbox)

    def finish(self, result: SliceResult) -> Iterable[Query]:
        return [self._parts.letters.resolving([item.record.event_id for item in result.done])]

    async def committed(self, result: SliceResult) -> None:
        self.done += [item.record.event_id for item in result.done]
        self.skipped += len(result.done) - len(result.handled)

    async def fail(self, item: SliceItem, failure: Failed, behind: list[SliceItem]) -> None:
        await self._parts.letters.failed_again(self._connection, item.record, failure)
        if behind:
            await self._parts.letters.hold_back(self._connection, [other.record for other in behind])
        await self._parts.host.reach("consumer.retried", event_id=item.record.event_id, failed=True)


class LetterRetries:
    """The letters of one consumer, tried again by its worker. `any_open` and `any_due`: as last seen."""

    def __init__(self, parts: WorkerParts, version_waits: VersionWaits) -> None:
        self.any_open = True
        self.any_due = False
        self._parts = parts
        self._letters = parts.letters
        self._version_waits = version_waits
        self._free_at = 0.0

    def start(self) -> None:
        """Another worker was at work until now: nothing is known about the letters."""
        self.any_open = True
        self._free_at = 0.0

    async def free_waiting(self, connection: AsyncConnection, every: float) -> None:
        """Strict ordering: make letters due that wait for nothing any more, at most so often."""
        if self._parts.strict and self.any_open and time.monotonic() >= self._free_at:
            self._free_at = time.monotonic() + every
            self.any_due = bool(await self._letters.free_waiting(connection)) or self.any_due

    async def turn(self, connection: AsyncConnection) -> bool:
        """Give due letters another attempt; returns whether there were any."""
        items = await self.due(connection) if self.any_due else []
        self.any_due = False
        return await self.run(connection, items)

    async def due(self, connection: AsyncConnection) -> list[SliceItem]:
        """The letters that are due, with their handlers. Those that no handler takes any more are resolved."""
        records = await self._letters.due(connection, LETTERS_PER_TURN)
        if not records:
            if self._parts.strict:
                await self._letters.hold_back_blocked(connection)
            return []
        await self._parts.host.reach("consumer.retrying", letters=len(records))
        items, unwanted = self._prepare(records)
        items = await self._without_newer(connection, items)
        if unwanted:
            await self._resolve_unwanted(unwanted)
        self._letters.written += len(items) < len(records)
        return items

    async def run(self, connection: AsyncConnection, items: Sequence[SliceItem]) -> bool:
        """Try these letters again; returns whether there were any."""
        # Starts are counted in one place, so suspects go one after the other.
        groups = by_aggregate(items, 1 if self._parts.suspects.left > 0 else self._parts.consumer.concurrency)
        await finish_all(
            self._retry(group, _LetterSlices(self._parts, connection, LETTERS_SECONDS)) for group in groups
        )
        self._letters.written += bool(items)
        return bool(items)

    async def _retry(self, items: Sequence[SliceItem], slices: _LetterSlices) -> None:
        await self._parts.runner.run(items, slices)
        await self._tell_resolved(slices.done, slices.skipped)

    async def _tell_resolved(self, ids: Sequence[UUID], skipped: int) -> None:
        self._letters.tell_resolved(ids, skipped)
        for event_id in ids:
            await self._parts.host.reach("consumer.retried", event_id=event_id, failed=False)

    def _prepare(self, records: Sequence[Record]) -> tuple[list[SliceItem], list[Record]]:
        """The letters with their handlers, and those that no handler takes any more."""
        items: list[SliceItem] = []
        unwanted: list[Record] = []
        for record in records:
            prepared = prepare(self._parts.consumer, [record], attempt=record.retry_count + 1)
            items.extend(prepared)
            if not prepared:
                unwanted.append(record)
        return items, unwanted

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
        await self._parts.host.reach("consumer.put_back", letters=len(put_back))
        return going

    async def _resolve_unwanted(self, records: Sequence[Record]) -> None:
        ids = [record.event_id for record in records]
        begin = self._letters.begin(records, self._parts.idle_timeout_ms, inbox=False)
        try:
            await self._parts.runner.slice([], begin, lambda _: [self._letters.resolving(ids)])
        except SliceOutdated:
            return
        await self._tell_resolved(ids, skipped=len(ids))
