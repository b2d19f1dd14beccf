"""Opens a slice before its events have come, so that the handlers need not wait for that.

While a relay of this process appends new events, the consumer's connection finds the same events in the outbox, and
opens a slice for them: fence, checkpoint and inbox, as always. If just these events come, the handlers are
called at once. If others come, or none, the transaction is rolled back, and the slice is opened as always. So a wrong
guess costs a message to the server, and changes nothing.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final

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


class EarlySlice:
    """The next slice of one consumer, if it was opened early. It counts as one of the slices at work."""

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
        self._dropping: asyncio.Task[None] | None = None
        self._not_before = 0.0

    def open(self, query: Query, replaces: str) -> None:
        """Begin to open it, if a connection is free."""
        loop = asyncio.get_running_loop()
        is_free = self._opening is None and not self._slots.locked() and self._connections.has_idle
        if is_free and loop.time() >= self._not_before:
            self._opening = loop.create_task(self._open(query, replaces), name="a slice opened early")
            loop.call_later(UNUSED_SECONDS, self._expire, self._opening)

    async def take(self, items: Sequence[SliceItem], begin: Query) -> OpenedSlice | None:
        """The open slice, if it fits; otherwise nothing is left of it."""
        opened = await self._opened()
        if opened is None or opened.fits(items, begin):
            return opened
        await self._undo(opened)
        return None

    async def drop(self) -> None:
        """Leave nothing of it."""
        opened = await self._opened()
        if opened is not None:
            await self._undo(opened)

    async def cut_off(self) -> None:
        """Leave nothing of it, and do not wait for the server."""
        if self._opening is not None:
            self._opening.cancel()
        await self.drop()
        if self._dropping is not None:
            await asyncio.wait({self._dropping})

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
            self._dropping = asyncio.create_task(self.drop(), name="dropping a slice opened early")

    async def _open(self, query: Query, replaces: str) -> OpenedSlice | None:
        async with AsyncExitStack() as stack:
            for resource in (self._slots, self._permit):
                await stack.enter_async_context(resource)
            connection = await stack.enter_async_context(self._connections.lend())
            try:
                *first, ids, position, waiting = await self._executor.open_early(connection, query)
                if first[0]:
                    return OpenedSlice(connection, first, frozenset(ids), position, replaces, stack.pop_all())
                if waiting:
                    self._pause()
                await connection.rollback()
            except (psycopg.Error, *LOST):
                # Whatever it is, the slice that is opened as always will meet it.
                self._pause()
                await close_quietly(connection)
        self._opening = None
        return None
