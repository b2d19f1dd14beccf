"""Follows the log for one consumer whose lease is held: new events and dead letters, in order or side by side."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from aftercommit.consumer.dead_letters import DeadLetters
from aftercommit.consumer.lease import ConsumerStatus, HeldLease, Lease
from aftercommit.consumer.letter_retries import LetterRetries
from aftercommit.consumer.log_reader import LogReader, ReadAhead
from aftercommit.consumer.pages import LatestPage, Pages
from aftercommit.consumer.runner import Runner
from aftercommit.consumer.side_by_side import SideBySide
from aftercommit.consumer.suspects import Suspects
from aftercommit.consumer.waiting import CheckpointWait, VersionWaits
from aftercommit.consumer.worker_slices import WorkerParts, handle_in_order
from aftercommit.errors import DatabaseUnavailable
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.handler_connections import ConsumerConnections
from aftercommit.service import LONG, Probe, Waker, wait_for_any
from aftercommit.telemetry import Meter, log_event

logger = logging.getLogger("aftercommit.consumer")


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What the consumers of one worker share.

    `look_wanted` is set when letters were written, and one may be due sooner than known.
    """

    connections: ConsumerConnections
    latest: LatestPage
    page_size: int
    stopping: Waker
    look_wanted: Waker
    meter: Meter
    probe: Probe | None
    # Of each consumer, one for every lane.
    followers: dict[str, list["LogFollower"]] = field(default_factory=dict)

    def note_progress(self, consumer: str) -> None:
        """Measure how far a consumer has come. If it is divided, the lane that has most to do counts."""
        told = [(each.position, each.status) for each in self.followers[consumer] if each.active]
        position, status = min(told, key=lambda each: each[0], default=(0, None))
        if status is not None:
            # The worker may have looked before the last slice was committed.
            lag = status.lag if position < status.head else 0
            self.meter.on_progress(consumer, position, status.events, lag)


class LogFollower:
    """The way of one consumer, or of one of its lanes, through the log, from its checkpoint.

    `active`: the lease is held. `task`: it is at work. `status`: what the worker has told it.
    """

    def __init__(self, outbox: Outbox, lease: Lease, shared: SharedParts) -> None:
        consumer, page_size = lease.consumer, shared.page_size
        self.active = False
        self.paused = False
        self.leaving = False
        self.task: asyncio.Task[None] | None = None
        self._shared = shared
        self._told = Waker()
        self.parts = WorkerParts(
            consumer=consumer,
            lease=lease,
            runner=Runner(outbox, consumer, shared.connections),
            letters=DeadLetters(outbox, consumer, lease),
            suspects=Suspects(lease, page_size, self),
            host=self,
        )
        waits = VersionWaits(outbox, consumer, lease)
        self.retries = LetterRetries(self.parts, waits)
        wait = CheckpointWait(waits, lease.seconds / 3, self)
        self._reader = LogReader(self.parts, Pages(outbox, lease, page_size, shared.latest), wait)
        self._side = SideBySide(self.parts, self._reader, self.retries, page_size)
        self.status: ConsumerStatus | None = None
        # The checkpoint, and how many letters were written, when the worker began to ask.
        self._when_asked = (0, 0)
        self._looked_after = 0
        self._log_first = False
        shared.followers.setdefault(consumer.name, []).append(self)

    @property
    def consumer(self) -> Consumer:
        """The consumer whose events it handles."""
        return self.parts.consumer

    @property
    def name(self) -> str:
        """The name of its lease."""
        return self.parts.lease.name

    @property
    def position(self) -> int:
        """The checkpoint."""
        return self._side.position

    @property
    def has_work(self) -> bool:
        """Whether there is something to do, as far as is known."""
        if self.status is None or not self.proceeds():
            return False
        if self.retries.any_due:
            return True
        return self.status.head > self.position and not self._reader.wait.rests_at(self._reader.position)

    @property
    def due_in(self) -> float | None:
        """Seconds until the next letter was due, when the worker last looked; None if it need not look for that."""
        if self.status is None or self.status.due_in is None or not self.active or not self.proceeds():
            return None
        # While it is at work, it knows of the letters that are due.
        return self.status.due_in if self.status.due_in > 0 or self.task is None else None

    def proceeds(self) -> bool:
        """Whether the consumer is neither stopping nor paused, and the lane is not given away."""
        return not self._shared.stopping.is_set() and not self.paused and not self.leaving

    async def reach(self, point: str, **detail: Any) -> None:
        """Tell the probe that the work has reached a named point."""
        if self._shared.probe is not None:
            await self._shared.probe(point, detail)

    def start(self, held: HeldLease) -> None:
        """Begin where the lease's checkpoint is."""
        self.parts.suspects.start(held)
        self.parts.runner.server_started = held.server_started
        self._reader.seek(held.position)
        self._side.start(held.position)
        self._reader.wait.over()
        self.retries.start()
        self.status = None
        self.active, self.paused, self.leaving = True, held.paused, False
        started = {"consumer": self.name, "position": held.position, "took_over": held.died}
        log_event(logger, logging.INFO, "consumer_started", **started)

    def leave(self, *, leaving: bool = True) -> None:
        """Stop between two slices, because another worker gets the lane; or, with `leaving=False`, keep it."""
        if self.leaving != leaving:
            self.leaving = leaving
            self._told.set()

    def asking(self) -> None:
        """The worker is about to look: what changes from now on, the answer may not contain."""
        self._when_asked = self.position, self.parts.letters.written

    def tell(self, status: ConsumerStatus) -> None:
        """Tell it what the worker has seen."""
        position, written = self._when_asked
        if status.checkpoint < position:
            # The events in between are not handled in the restored database, and those read ahead may not exist.
            raise DatabaseUnavailable(
                f"the checkpoint of consumer {self.name!r} went back from {position} to "
                f"{status.checkpoint}: the database was restored, or the checkpoint was moved"
            )
        self.paused = status.paused
        self.retries.any_due = status.any_due
        self.retries.any_open = status.any_open or self.parts.letters.written > written
        self.status = status
        self._told.set()
        self._shared.note_progress(self.consumer.name)

    def tell_end(self, head: int) -> None:
        """Tell it that the log now goes as far as this position."""
        if self.status is not None and (new := head - self.status.head) > 0:
            status = self.status
            self.status = status._replace(head=head, events=status.events + new, lag=status.lag + new)
            self._told.set()
            self._shared.note_progress(self.consumer.name)

    async def cut_off(self) -> None:
        """End at once: what slices wrote is undone."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None
        await self.forget()

    async def forget(self) -> None:
        """The session is over: nothing that was read counts any more."""
        self.active = False
        await self.parts.runner.early.cut_off()
        await self._reader.forget()

    async def work(self, connection: AsyncConnection) -> None:
        """Handle what there is, until there is nothing more."""
        while self.has_work:
            if self.consumer.concurrency == 1 or self.parts.suspects.left > 0:
                await self._in_order(connection)
            else:
                await self._side_by_side(connection)
            self._want_look()
        self._shared.note_progress(self.consumer.name)
        if self.proceeds():
            await self.reach("consumer.idle", position=self.position)

    async def _in_order(self, connection: AsyncConnection) -> None:
        """Handle due letters and the next page. After letters the log comes first, so that they take turns."""
        if self._log_first:
            await self._next_page(connection)
            self._log_first = await self.retries.turn(connection)
        else:
            self._log_first = await self.retries.turn(connection)
            await self._next_page(connection)

    async def _next_page(self, connection: AsyncConnection) -> None:
        page = await self._read(connection)
        if page is None:
            return
        left, reached = await handle_in_order(self.parts, connection, page.items, self.position, self._reader.position)
        await self.handled(page.count - left, reached)

    async def handled(self, events: int, position: int) -> None:
        """So many events were handled, and the checkpoint is at this position."""
        self._reader.seek(position)
        self._side.position = position
        await self.reach("consumer.handled", count=events, position=position)

    async def _side_by_side(self, connection: AsyncConnection) -> None:
        """Go on while anything is at work, or new."""
        side = self._side
        try:
            while True:
                self._told.clear()
                has_read = await side.advance(connection, self.status.head if self.status is not None else 0)
                self._want_look()
                if not self.proceeds() or not (has_read or side.is_busy or self._told.is_set()):
                    break
                if not has_read or not side.has_room:
                    await wait_for_any(LONG, side.ended, self._told, self._shared.stopping)
            await side.finish(connection)
        except BaseException as error:
            # A slice that is at work may end, unless the worker itself is cut off.
            await side.abandon(cut=isinstance(error, asyncio.CancelledError))
            raise

    async def _read(self, connection: AsyncConnection) -> ReadAhead | None:
        if self.status is None or not self.proceeds():
            return None
        return await self._reader.read(connection, self.status.head, any_letters=self.retries.any_open)

    def _want_look(self) -> None:
        if self.parts.letters.written > self._looked_after:
            self._looked_after = self.parts.letters.written
            self._shared.look_wanted.set()
