"""Follows the log for a worker that holds its lease: new events and dead letters, in order or side by side."""

import asyncio
import time

from aftercommit.consumer import wakeups
from aftercommit.consumer.dead_letters import WorkerStatus
from aftercommit.consumer.lease import HeldLease
from aftercommit.consumer.letter_retries import LetterRetries
from aftercommit.consumer.log_reader import LogReader
from aftercommit.consumer.pages import Pages
from aftercommit.consumer.side_by_side import SideBySide
from aftercommit.consumer.waiting import CheckpointWait, VersionWaits
from aftercommit.consumer.wakeups import Wakeups
from aftercommit.consumer.worker_slices import WorkerParts, handle_in_order
from aftercommit.errors import DatabaseUnavailable
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.service import Waker, wait_for_any


class LogFollower:
    """One consumer's way through the log, from its checkpoint."""

    def __init__(self, outbox: Outbox, parts: WorkerParts, wakers: Wakeups, stopping: Waker, page_size: int) -> None:
        self._meter = outbox.meter
        self._parts = parts
        self._wakers = wakers
        self._stopping = stopping
        waits = VersionWaits(outbox, parts.consumer, parts.lease.token)
        self._retries = LetterRetries(parts, waits)
        wait = CheckpointWait(waits, parts.lease_seconds / 3, parts.reach)
        self._reader = LogReader(parts, Pages(outbox, parts.consumer, page_size), self._retries, wait)
        self._side = SideBySide(parts, self._reader, self._retries, page_size)
        self._look_at = 0.0

    @property
    def position(self) -> int:
        """The checkpoint."""
        return self._side.position

    @property
    def waits_for_version(self) -> bool:
        """Whether the next event waits for newer code."""
        return self._reader.wait.is_on

    def start(self, held: HeldLease) -> None:
        """Begin where the lease's checkpoint is."""
        self._parts.suspects.start(held)
        self._reader.seek(held.position)
        self._side.start(held.position)
        self._reader.wait.over()
        self._retries.start()

    async def forget(self) -> None:
        """Drop what was read early."""
        await self._reader.forget()

    async def turn(self, connection: AsyncConnection) -> bool:
        """Handle what there is; False when there was nothing."""
        if self._parts.consumer.concurrency == 1 or self._parts.suspects.left > 0:
            return await self._in_order(connection)
        return await self._side_by_side(connection)

    async def _in_order(self, connection: AsyncConnection) -> bool:
        """Handle due letters, then the next page."""
        status = await self._look(connection)
        worked = await self._retries.turn(connection)
        if worked:
            # That may have taken a while, and events published meanwhile are next.
            status = await self._look(connection)
        position = self.position
        page = await self._reader.read(connection, status.head) if self._parts.proceeds() else None
        if page is None:
            return worked
        left, reached = await handle_in_order(self._parts, connection, page.items, position, self._reader.position)
        self._reader.seek(reached)
        self._side.position = reached
        await self._parts.reach("consumer.handled", count=page.count - left, position=reached)
        return True

    async def _side_by_side(self, connection: AsyncConnection) -> bool:
        """Go on while anything is at work, or new."""
        side, worked = self._side, False
        status = await self._look(connection)
        try:
            while True:
                fed = await side.advance(connection, status)
                worked = worked or fed or side.is_busy
                if not side.is_busy or not self._parts.proceeds():
                    break
                if not (fed and side.has_room and self._reader.position < status.head):
                    status = await self._wait(connection, status)
            await side.finish(connection)
        except BaseException as error:
            # A slice that is at work may end, unless the worker itself is cut off.
            await (side.cut_off() if isinstance(error, asyncio.CancelledError) else side.abandon())
            raise
        return worked

    async def _wait(self, connection: AsyncConnection, status: WorkerStatus) -> WorkerStatus:
        """Wait until a slice has ended or there may be something new; returns what is known then."""
        wakers = [self._side.done, self._stopping, self._wakers.word]
        if self._side.has_room:
            wakers.append(self._wakers.news)
        await wait_for_any(self._look_at - time.monotonic(), *wakers)
        self._side.done.clear()
        if self._wakers.word.is_set():
            self._wakers.word.clear()
            await self._parts.lease.renew(connection)
        is_new = self._side.has_room and self._wakers.news.is_set()
        if not is_new and not self._side.letters_ended and time.monotonic() < self._look_at:
            return status
        return await self._look(connection)

    async def _look(self, connection: AsyncConnection) -> WorkerStatus:
        self._wakers.news.clear()
        self._side.letters_ended = False
        status = await self._retries.look(connection, wakeups.POLL, self.position)
        if status.checkpoint is not None and status.checkpoint < self.position:
            # The events in between are not handled in the restored database, and those read ahead may not exist.
            raise DatabaseUnavailable(
                f"the checkpoint of consumer {self._parts.consumer.name!r} went back from {self.position} to "
                f"{status.checkpoint}: the database was restored, or the checkpoint was moved"
            )
        self._parts.answered()
        self._meter.on_progress(self._parts.consumer.name, self.position, status.events, status.lag)
        seconds = min(self._wakers.poll_seconds, self._parts.lease_seconds / 3)
        self._look_at = time.monotonic() + seconds
        return status
