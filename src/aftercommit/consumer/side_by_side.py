"""Handles several aggregates at a time: queues per aggregate, a bounded read-ahead, and slices that go side by side.

A slow aggregate delays only itself. The checkpoint is before the first event that is not handled; the inbox tells which
events behind it are. Everything read ahead is in memory only, so a stop or a crash loses nothing.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final

from aftercommit.consumer.letter_retries import LetterRetries
from aftercommit.consumer.log_reader import LogReader
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.queues import Aggregate, AggregateQueues
from aftercommit.consumer.slices import Query, SliceItem, SliceResult
from aftercommit.consumer.worker_slices import FencedSlices, WorkerParts
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.records import BYTES_AT_ONCE
from aftercommit.service import Waker, finish_all

# A turn that took so long gives its other events back, so that they need not wait for a slow one.
TURN_SECONDS: Final = 0.05
# While work goes on, the checkpoint moves this often at most.
SETTLE_SECONDS: Final = 0.05
# Pages, and bytes of payloads, that are read and not handled at most.
MOST_PAGES: Final = 8
MOST_BYTES: Final = 4 * BYTES_AT_ONCE


class SideBySide:
    """The work of a consumer that handles `concurrency` aggregates at a time. `ended` is set when a slice has ended."""

    def __init__(self, parts: WorkerParts, reader: LogReader, retries: LetterRetries, page_size: int) -> None:
        self.position = 0
        self.ended = Waker()
        self.queues = AggregateQueues()
        # Held while a page enters the queues and while a failure is recorded. Strict ordering: an event either is in
        # its queue when an earlier one fails, and waits with the others, or finds the letter of that failure.
        self.order = asyncio.Lock()
        self._parts = parts
        self._reader = reader
        self._retries = retries
        self._page_size = page_size
        self._slices: dict[asyncio.Task[None], bool] = {}
        self._letters: asyncio.Task[None] | None = None
        self._handled = 0
        self._settle_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether slices are at work, or events wait for one."""
        return bool(self._slices) or self._letters is not None or self.queues.events > 0

    @property
    def has_room(self) -> bool:
        """Whether more may be read: slices could soon use it, and it fits into memory."""
        queues = self.queues
        fits = queues.events < MOST_PAGES * self._page_size and queues.payload_bytes < MOST_BYTES
        return fits and queues.ready < self._page_size

    def start(self, position: int) -> None:
        """Begin at this checkpoint."""
        self.position = position
        self._forget()

    async def advance(self, connection: AsyncConnection, head: int) -> bool:
        """Collect what has ended, read what there is room for, begin slices, and move the checkpoint.

        Returns whether a page was read.
        """
        self.ended.clear()
        self._collect()
        has_read = False
        if self._parts.host.proceeds():
            self._begin_letters(connection)
            has_read = self.has_room and await self._read(connection, head)
            self._begin_slices(connection)
        await self._settle(connection)
        return has_read

    async def finish(self, connection: AsyncConnection) -> None:
        """Let the slices at work come to their end, move the checkpoint, and forget what was read ahead."""
        await finish_all(self._tasks)
        self._collect()
        self._settle_at = 0.0
        await self._settle(connection)
        self._forget()

    async def abandon(self, *, cut: bool) -> None:
        """After an error: wait for the slices at work, or `cut` them off. Their own errors do not matter any more."""
        tasks = self._tasks
        for task in tasks if cut else ():
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._forget()

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._slices, *([self._letters] if self._letters is not None else [])]

    def _forget(self) -> None:
        self._slices, self._letters, self._handled = {}, None, 0
        self.queues = AggregateQueues()
        self._reader.seek(self.position)

    def _collect(self) -> None:
        for task in [task for task in self._slices if task.done()]:
            del self._slices[task]
            task.result()
        if self._letters is not None and self._letters.done():
            letters, self._letters = self._letters, None
            letters.result()

    async def _read(self, connection: AsyncConnection, head: int) -> bool:
        async with self.order:
            page = await self._reader.read(connection, head, any_letters=self._retries.any_open)
            if page is None:
                return False
            items = page.items
            if self._parts.strict and items:
                # Behind events of its aggregate that are here, an event stays: as a letter it would overtake them.
                alone = [item for item in items if not self.queues.has(item.record.aggregate)]
                going = await self._parts.letters.set_aside(connection, alone, self.position) if alone else []
                set_aside = {item.position for item in alone}.difference(item.position for item in going)
                items = [item for item in items if item.position not in set_aside]
            self.queues.add(items)
            self._handled += page.count - len(items)
            return True

    def _begin_letters(self, connection: AsyncConnection) -> None:
        if self._retries.any_due and self._letters is None:
            self._retries.any_due = False
            self._letters = self._task(self._retry(connection))

    async def _retry(self, connection: AsyncConnection) -> None:
        """Try due letters again, of aggregates on which no slice is at work."""
        items = await self._retries.due(connection)
        aggregates = dict.fromkeys(item.record.aggregate for item in items)
        claimed = {aggregate for aggregate in aggregates if self.queues.claim(aggregate)}
        try:
            if self._parts.strict:
                await self._let_wait(connection, claimed)
            await self._retries.run(connection, [item for item in items if item.record.aggregate in claimed])
        finally:
            self.queues.release(claimed)

    async def _let_wait(self, connection: AsyncConnection, aggregates: set[Aggregate]) -> None:
        """Strict ordering: new events of these aggregates wait behind the letters, as letters."""
        async with self.order:
            for aggregate in aggregates:
                waiting = self.queues.waiting(aggregate)
                if waiting:
                    await self._parts.letters.wait_behind(connection, waiting, self.position)
                    self.queues.withdraw(aggregate)
                    self._handled += len(waiting)

    def _begin_slices(self, connection: AsyncConnection) -> None:
        """Fill the free slots. One is kept for quick aggregates."""
        concurrency, queues = self._parts.consumer.concurrency, self.queues
        while len(self._slices) < concurrency and queues.ready > 0:
            slots = concurrency - len(self._slices)
            size = -(-queues.ready // slots)
            may_be_slow = sum(self._slices.values()) < concurrency - 1
            items = queues.take(size, slots, slow=True) if may_be_slow else []
            is_slow = bool(items)
            items = items or queues.take(size, slots, slow=False)
            if not items:
                return
            self._slices[self._task(self._slice(connection, items))] = is_slow

    def _task(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="aftercommit slice")
        task.add_done_callback(lambda _: self.ended.set())
        return task

    async def _slice(self, connection: AsyncConnection, items: list[SliceItem]) -> None:
        slices = _SharedSlices(self._parts, connection, self)
        left = await self._parts.runner.run(items, slices)
        self.queues.note_pace((item.record.aggregate for item in items), slices.slow)
        self.queues.give_back(items, left)
        self._handled += len(items) - len(left)

    async def _settle(self, connection: AsyncConnection) -> None:
        """Move the checkpoint to before the first event that is not handled."""
        now, lowest = time.monotonic(), self.queues.lowest
        reached = self._reader.position if lowest is None else lowest - 1
        if not (self._handled or reached > self.position) or (lowest is not None and now < self._settle_at):
            return
        self._settle_at = now + SETTLE_SECONDS
        handled, self._handled = self._handled, 0
        if reached > self.position:
            await self._parts.lease.move(connection, reached)
            self.position = reached
        await self._parts.host.reach("consumer.handled", count=handled, position=self.position)


class _SharedSlices(FencedSlices):
    """New events of some aggregates. The checkpoint moves when all before it are handled."""

    def __init__(self, parts: WorkerParts, connection: AsyncConnection, side: SideBySide) -> None:
        super().__init__(parts, connection, TURN_SECONDS)
        self.survives = not parts.strict
        self.slow: set[Aggregate] = set()
        self._side = side

    def begin(self, segment: Sequence[SliceItem]) -> Query:
        return Query("begin_shared_slice", self.opening(segment), prepared=True)

    def finish(self, result: SliceResult) -> Iterable[Query]:
        return self.failing(result)

    async def committed(self, result: SliceResult) -> None:
        self.slow.update(result.items[place].record.aggregate for place in result.slow)
        await super().committed(result)

    async def fail(self, item: SliceItem, failure: Failed, behind: list[SliceItem]) -> None:
        async with self._side.order:
            aggregate = item.record.aggregate
            waiting = self._side.queues.waiting(aggregate) if self.strict else []
            await self.record(item, failure, [*behind, *waiting], self._side.position)
            if waiting:
                self._side.queues.withdraw(aggregate)
