"""Handles several aggregates at a time: queues per aggregate, a bounded read-ahead, and slices that go side by side.

A slow aggregate delays only itself. The checkpoint is before the first event that is not handled; the inbox tells which
events behind it are. Everything read ahead is in memory only, so a stop or a crash loses nothing.
"""

import asyncio
import time
from typing import Final

from aftercommit.consumer.dead_letters import WorkerStatus
from aftercommit.consumer.letter_retries import LETTERS_PER_TURN, LetterRetries, LetterSlices
from aftercommit.consumer.log_reader import LogReader
from aftercommit.consumer.queues import AggregateQueues
from aftercommit.consumer.slice import Aggregate
from aftercommit.consumer.slices import SliceItem
from aftercommit.consumer.walk import SlicePace
from aftercommit.consumer.worker_slices import LogSlices, WorkerParts
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.records import BYTES_AT_ONCE
from aftercommit.service import Waker, finish_all

# A slice that took so long gives its other events back, so that they need not wait for a slow one.
TURN_SECONDS: Final = 0.1
# While work goes on, the checkpoint moves this often at most.
SETTLE_SECONDS: Final = 0.05
# Pages, and bytes of payloads, that are read and not handled at most.
MOST_PAGES: Final = 8
MOST_BYTES: Final = 4 * BYTES_AT_ONCE


class SideBySide:
    """The work of a worker that handles `concurrency` aggregates at a time, while there is any.

    `position`: the checkpoint. `done`: set when a slice has ended. `letters_ended`: a slice of letters has.
    """

    def __init__(self, parts: WorkerParts, reader: LogReader, retries: LetterRetries, page_size: int) -> None:
        self.position = 0
        self.done = Waker()
        self.letters_ended = False
        self._parts = parts
        self._reader = reader
        self._retries = retries
        self._page_size = page_size
        self._queues = AggregateQueues()
        self._running: dict[asyncio.Task[None], bool] = {}
        # Strict ordering: aggregates that have failed since the page was begun that is being read.
        self._newly_blocked: set[Aggregate] = set()
        self._ended = 0
        self._settle_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether slices are at work, or events wait for one."""
        return bool(self._running) or self._queues.events > 0

    @property
    def has_room(self) -> bool:
        """Whether more may be read: slices could soon use it, and it fits into memory."""
        queues = self._queues
        fits = queues.events < MOST_PAGES * self._page_size and queues.bytes < MOST_BYTES
        return fits and queues.ready < self._page_size and self._parts.proceeds()

    def start(self, position: int) -> None:
        """The worker begins at this checkpoint."""
        self.position = position
        self._queues = AggregateQueues()

    async def advance(self, connection: AsyncConnection, status: WorkerStatus) -> bool:
        """Read what there is room for, begin slices, and move the checkpoint; returns whether it has read anything."""
        for task in [task for task in self._running if task.done()]:
            del self._running[task]
            task.result()
        fed = False
        if self._parts.proceeds():
            fed = await self._feed_letters(connection)
            fed = await self._feed(connection, status.head) or fed
            self._begin(connection)
        await self._settle(connection)
        return fed

    async def finish(self, connection: AsyncConnection) -> None:
        """Let the slices at work come to their end, move the checkpoint, and forget what was read ahead."""
        await finish_all(self._running)
        self._settle_at = 0.0
        await self._settle(connection)
        self._forget()

    async def abandon(self) -> None:
        """The same after an error: others do not matter any more."""
        await asyncio.gather(*self._running, return_exceptions=True)
        self._forget()

    async def cut_off(self) -> None:
        """End the slices at work: their writes are undone."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._forget()

    def _forget(self) -> None:
        self._running = {}
        self._ended = 0
        self._queues = AggregateQueues()
        self._reader.seek(self.position)

    async def _feed(self, connection: AsyncConnection, head: int) -> bool:
        if not self.has_room:
            return False
        self._newly_blocked.clear()
        page = await self._reader.read(connection, head)
        if page is None:
            return False
        items = page.items
        if self._parts.strict and items:
            # Behind new events of its aggregate that are here, an event stays: as a letter it would come before them.
            alone = [item for item in items if not self._has_new(item)]
            going = {item.position for item in await self._parts.letters.set_aside(connection, alone, self.position)}
            waiting = {item.position for item in alone} - going
            items = [item for item in items if item.position not in waiting]
            while late := [item for item in items if item.record.aggregate in self._newly_blocked]:
                items = [item for item in items if item.record.aggregate not in self._newly_blocked]
                await self._parts.letters.wait_behind(connection, late, self.position)
        self._queues.add(items)
        self._ended += page.count - len(items)
        return True

    def _has_new(self, item: SliceItem) -> bool:
        return self._queues.has_new(item.record.aggregate)

    async def _feed_letters(self, connection: AsyncConnection) -> bool:
        if not self._retries.any_due or len(self._queues.letters) > LETTERS_PER_TURN // 2:
            return False
        lined_up = self._queues.aggregates_with_letters
        due = await self._retries.due(connection)
        # Until the next look nobody knows of more.
        self._retries.any_due = False
        # If an aggregate has letters here, others come later: they could overtake those that a slice gives back.
        lined_up |= self._queues.aggregates_with_letters
        items = [item for item in due or () if item.record.aggregate not in lined_up]
        if self._parts.strict:
            # A letter that may be later than new events of its aggregate here waits until they are handled.
            items = [item for item in items if item.position <= self.position or not self._has_new(item)]
        self._queues.add_letters(items)
        return bool(items)

    def _begin(self, connection: AsyncConnection) -> None:
        """Fill the free slots. One is kept for quick aggregates while there are any."""
        concurrency = self._parts.consumer.concurrency
        while len(self._running) < concurrency and self._queues.ready > 0:
            slots = concurrency - len(self._running)
            size = min(self._parts.runner.pace.size, -(-self._queues.ready // slots))
            slow_ones = sum(self._running.values())
            slow = slow_ones < concurrency - 1
            items = self._queues.take(size, slow=True) if slow else []
            is_slow = bool(items)
            items = items or self._queues.take(size, slow=False, slots=slots) or self._queues.take(size, slow=True)
            if not items:
                return
            self._begin_slice(connection, items, is_slow)

    def _begin_slice(self, connection: AsyncConnection, items: list[SliceItem], is_slow: bool) -> None:
        task = asyncio.create_task(self._slice(connection, items, is_slow), name="aftercommit slice")
        self._running[task] = is_slow
        task.add_done_callback(lambda _: self.done.set())

    async def _slice(self, connection: AsyncConnection, items: list[SliceItem], is_slow: bool) -> None:
        are_letters = items[0].due_at is not None
        policy: LetterSlices | LogSlices
        if are_letters:
            policy = LetterSlices(self._parts, connection, TURN_SECONDS)
        else:
            policy = LogSlices(self._parts, connection, TURN_SECONDS, side_by_side=True)
        left = await self._parts.runner.run(items, policy, SlicePace(len(items)) if is_slow else None)
        if policy.blocked:
            await self._hold_back(connection, policy.blocked)
        self._queues.note_pace({item.record.aggregate for item in items}, policy.slow)
        self._queues.give_back(items, left)
        if are_letters:
            self.letters_ended = True
        else:
            self._ended += len(items) - len(left)

    async def _hold_back(self, connection: AsyncConnection, aggregates: set[Aggregate]) -> None:
        """Strict ordering: what has been read of these aggregates waits behind the events that failed."""
        self._newly_blocked |= aggregates
        removed = self._queues.remove(aggregates)
        behind = [item for item in removed if item.due_at is None]
        await self._parts.letters.wait_behind(connection, behind, self.position)
        self._ended += len(behind)
        letters = [item.record for item in removed if item.due_at is not None]
        if letters:
            await self._parts.letters.hold_back(connection, letters)

    async def _settle(self, connection: AsyncConnection) -> None:
        """Move the checkpoint to before the first event that is not handled."""
        now = time.monotonic()
        lowest = self._queues.lowest
        reached = self._reader.position if lowest is None else lowest - 1
        if not (self._ended or reached > self.position) or (lowest is not None and now < self._settle_at):
            return
        self._settle_at = now + SETTLE_SECONDS
        ended, self._ended = self._ended, 0
        if reached > self.position:
            await self._parts.lease.move(connection, reached)
            self.position = reached
        await self._parts.reach("consumer.handled", count=ended, position=self.position)
