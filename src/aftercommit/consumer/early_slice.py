"""Opens a slice before its events have come, or while they are read: handlers wait for one trip less to the database.

While a relay of this process appends new events, the consumer's connection finds the same events in the outbox, and
opens a slice for them: fence, checkpoint and inbox, as always. If just these events come, the handlers are
called at once. If others come, or none, the transaction is rolled back, and the slice is opened as always. So a wrong
guess costs a message to the server, and changes nothing. Behind the bus, the consumer's connection reads the events.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final
from uuid import UUID

import psycopg

from aftercommit.consumer.opening import OpenedSlice
from aftercommit.consumer.slice_executor import SliceExecutor
from aftercommit.consumer.slices import Query, SliceItem
from aftercommit.postgres.handler_connections import ConsumerConnections
from aftercommit.postgres.resilience import LOST, close_quietly

# A slice that was opened and not used is rolled back after this time: it holds the row of its consumer.
UNUSED_SECONDS: Final = 0.05
# After a wrong guess, none is made for this time. Some consumers take few of the events that a relay brings.
PAUSE_SECONDS: Final = 1.0
# Columns of a statement that opens early; behind them comes the event, if it reads any.
_FIRST_COLUMNS: Final = 7


class EarlySlice:
    """The next slice of one consumer, if it was opened early, or several that were read. Each counts as one at work."""

    def __init__(
        self,
        executor: SliceExecutor,
        connections: ConsumerConnections,
        slots: asyncio.Semaphore,
        permit: AbstractAsyncContextManager[None],
    ) -> None:
        self._executor = executor
        self._connections = connections
        self._slots = slots
        self._permit = permit
        self._opening: asyncio.Task[OpenedSlice | None] | None = None
        # By the events that they were opened for.
        self._reads: dict[frozenset[UUID], OpenedSlice] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        self._not_before = 0.0

    def open(self, query: Query, replaces: str) -> None:
        """Begin to open it, if a connection is free."""
        if self._opening is None and self._may_open:
            self._opening = asyncio.create_task(self._open(query, replaces), name="a slice opened early")
            self._opening.get_loop().call_later(UNUSED_SECONDS, self._expire, self._opening)

    async def read(self, query: Query, replaces: str) -> Sequence[Sequence[Any]]:
        """Open one for events that the same statement reads; returns their rows, none if it was not opened."""
        opened = await self._open(query, replaces) if self._may_open else None
        if opened is None:
            return ()
        lost = self._reads.get(opened.ids)
        self._reads[opened.ids] = opened
        asyncio.get_running_loop().call_later(UNUSED_SECONDS, self._expire_read, opened)
        if lost is not None:
            # Its session has ended: otherwise the same inbox rows could not have been written again.
            await self._undo(lost)
        return opened.events

    async def release(self, ids: Iterable[UUID]) -> None:
        """Leave nothing of one that was opened for some of these events when they were read."""
        if not self._reads:
            return
        given = set(ids)
        # Taken away first: while one is rolled back, another may be taken or expire.
        for opened in [self._reads.pop(known) for known in [*self._reads] if not known.isdisjoint(given)]:
            await self._undo(opened)

    @property
    def _may_open(self) -> bool:
        is_free = not self._slots.locked() and self._connections.has_idle
        return is_free and asyncio.get_running_loop().time() >= self._not_before

    async def take(self, items: Sequence[SliceItem], begin: Query) -> OpenedSlice | None:
        """The open slice, if one fits; otherwise nothing is left of it."""
        if self._reads:
            ids = frozenset(item.record.event_id for item in items)
            if ids in self._reads:
                return self._reads.pop(ids)
            await self.release(ids)
        expected = await self._opened()
        if expected is None or expected.fits(items, begin):
            return expected
        await self._undo(expected)
        return None

    async def drop(self) -> None:
        """Leave nothing of it."""
        await self.release([event_id for ids in self._reads for event_id in ids])
        opened = await self._opened()
        if opened is not None:
            await self._undo(opened)

    async def cut_off(self) -> None:
        """Leave nothing of it, and do not wait for the server."""
        if self._opening is not None:
            self._opening.cancel()
        await self.drop()
        if self._dropping:
            await asyncio.wait(self._dropping)

    async def _undo(self, opened: OpenedSlice) -> None:
        self._pause()
        await opened.undo()

    def _pause(self) -> None:
        self._not_before = asyncio.get_running_loop().time() + PAUSE_SECONDS

    async def _opened(self) -> OpenedSlice | None:
        opening = self._opening
        if opening is None:
            return None
        if not opening.done():
            # If who waits here is cut off, the slice is dropped later.
            await asyncio.wait({opening})
        if self._opening is not opening:
            return None
        self._opening = None
        return None if opening.cancelled() else opening.result()

    def _expire(self, opening: "asyncio.Task[OpenedSlice | None]") -> None:
        if self._opening is opening:
            self._drop_later(self.drop())

    def _expire_read(self, opened: OpenedSlice) -> None:
        if self._reads.get(opened.ids) is opened:
            self._drop_later(self.release(opened.ids))

    def _drop_later(self, dropping: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(dropping, name="dropping a slice opened early")
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def _open(self, query: Query, replaces: str) -> OpenedSlice | None:
        async with AsyncExitStack() as stack:
            for resource in (self._slots, self._permit):
                await stack.enter_async_context(resource)
            connection = await stack.enter_async_context(self._connections.lend())
            try:
                rows = await self._executor.open_early(connection, query)
                *first, ids, position, waiting = rows[0][:_FIRST_COLUMNS]
                if first[0]:
                    events = [row[_FIRST_COLUMNS:] for row in rows]
                    return OpenedSlice(connection, first, frozenset(ids), position, replaces, stack.pop_all(), events)
                if waiting:
                    self._pause()
                await connection.rollback()
            except (psycopg.Error, *LOST):
                # Whatever it is, the slice that is opened as always will meet it.
                self._pause()
                await close_quietly(connection)
        self._opening = None
        return None
