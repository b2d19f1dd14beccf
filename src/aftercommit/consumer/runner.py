"""Takes a consumer through a list of events in slices, and isolates the ones that fail."""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from aftercommit.consumer.execute import SliceExecutor
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slices import Item, Query, SliceFailed, script
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.database import Database
from aftercommit.postgres.statements import Statements

SMALLEST, FIRST, LARGEST = 1, 16, 500
QUICK, SLOW = 0.02, 0.1

Begin = Callable[[Sequence[Item]], Query]
OnFailure = Callable[[Item, Failed], Awaitable[None]]


class Runner:
    """Runs slices of one consumer on connections of its own pool."""

    def __init__(self, outbox: Outbox, consumer: Consumer, database: Database) -> None:
        """Not opened."""
        self.consumer = consumer
        self._meter = outbox.meter
        self._executor = SliceExecutor(Statements(outbox.shape), consumer.timeout)
        self._pool: AsyncConnectionPool[Any] | None = None
        self._pool_sync: ConnectionPool[Any] | None = None
        if consumer.is_async is False:
            self._pool_sync = database.pool_sync(consumer.concurrency + 1)
        else:
            self._pool = database.pool(consumer.concurrency + 1)

    async def open(self) -> None:
        """Open the pool; connections come as they are needed."""
        if self._pool is not None:
            await self._pool.open()
        if self._pool_sync is not None:
            self._pool_sync.open()

    async def close(self) -> None:
        """Close the pool."""
        if self._pool is not None:
            await self._pool.close()
        if self._pool_sync is not None:
            self._pool_sync.close(timeout=1.0)

    async def slice(self, items: Sequence[Item], begin: Query, end: Query | None = None) -> int:
        """One slice in one transaction."""
        steps = script(items, begin, end, inbox=self.consumer.inbox)
        if self._pool is not None:
            handled = await self._executor.run_async(self._pool, steps)
        else:
            assert self._pool_sync is not None
            handled = await self._executor.run_sync(self._pool_sync, steps)
        self._meter.on_consumed(self.consumer.name, "done", handled)
        self._meter.on_consumed(self.consumer.name, "skipped", len(items) - handled)
        return handled

    async def run(self, items: Sequence[Item], begin: Begin, on_failure: OnFailure, *, one_by_one: bool = False) -> None:
        """All items in order. A failed one is given to `on_failure`; those around it are handled."""
        waiting = deque(items)
        known: dict[int, Failed] = {}
        size = SMALLEST if one_by_one else FIRST
        singly = 0
        while waiting:
            failure = waiting[0].failure or known.pop(id(waiting[0]), None)
            if failure is not None:
                await on_failure(waiting.popleft(), failure)
                continue
            segment = _segment(waiting, 1 if singly > 0 else size, known)
            started = time.monotonic()
            try:
                await self.slice(segment, begin(segment))
            except SliceFailed as problem:
                if len(segment) == 1:
                    known[id(segment[0])] = problem.failure
                elif problem.index is None:
                    singly = len(segment)
                else:
                    known[id(segment[problem.index])] = problem.failure
                continue
            for _ in segment:
                waiting.popleft()
            singly = max(0, singly - 1)
            size = size if one_by_one else _adapted(size, len(segment), time.monotonic() - started)


def by_aggregate(items: Sequence[Item], groups: int) -> list[list[Item]]:
    """Items in so many groups that may go side by side: an aggregate's events stay together and in order."""
    if groups <= 1:
        return [list(items)]
    result: list[list[Item]] = [[] for _ in range(groups)]
    for item in items:
        result[hash(item.record.aggregate) % groups].append(item)
    return [group for group in result if group]


def records_of(items: Sequence[Item]) -> list[Record]:
    """The records of some items."""
    return [item.record for item in items]


def _segment(waiting: "deque[Item]", size: int, known: dict[int, Failed]) -> list[Item]:
    segment: list[Item] = []
    for item in waiting:
        if len(segment) == size or item.failure is not None or id(item) in known:
            break
        segment.append(item)
    return segment


def _adapted(size: int, used: int, seconds: float) -> int:
    if seconds > SLOW:
        return max(SMALLEST, size // 2)
    if seconds < QUICK and used == size:
        return min(LARGEST, size * 2)
    return size
