"""A worker on the log: one consumer, one lease, one checkpoint. Other workers of the same consumer stand by."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import psycopg

from aftercommit.consumer.conversation import ConnectionLost
from aftercommit.consumer.dead_letters import DeadLetters, WorkerStatus
from aftercommit.consumer.lease import CONSUMER_CHANGED, HeldLease, Lease
from aftercommit.consumer.letter_retries import LetterRetries
from aftercommit.consumer.names import register, require_mine
from aftercommit.consumer.pages import Pages
from aftercommit.consumer.runner import Runner
from aftercommit.consumer.slices import prepare, require_handlers
from aftercommit.consumer.suspects import Suspects
from aftercommit.consumer.waiting import CheckpointWait, VersionWaits
from aftercommit.consumer.worker_slices import WorkerParts, handle_page
from aftercommit.errors import DatabaseUnavailable, DeclarationError, LeaseLost
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.database import Database, privilege
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.resilience import DatabaseService, close_quietly
from aftercommit.schema.requirement import require_schema
from aftercommit.service import Probe, Waker, wait_for_any
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

POLL: Final = 1.0
POLL_WITHOUT_LISTENER: Final = 0.05


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works. `lease_seconds`: after a crash a standby takes over within this time."""

    page_size: int = 1000
    lease_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.page_size < 1 or not 0 < self.lease_seconds < math.inf:
            raise DeclarationError(f"{self!r}: need page_size >= 1 and lease_seconds > 0")


class LogWorker(DatabaseService):
    """Follows the log for one consumer: handles new events, retries dead letters, moves the checkpoint.

    It wakes up through the listener, which other services may share; without one it polls.
    """

    def __init__(
        self,
        outbox: Outbox,
        consumer: Consumer,
        database: Database,
        *,
        settings: WorkerSettings | None = None,
        listener: Listener | None = None,
        probe: Probe | None = None,
    ) -> None:
        super().__init__(probe)
        require_handlers(consumer)
        outbox.registry.require_upcasters()
        settings = settings or WorkerSettings()
        self.name = f"worker {consumer.name}"
        self.consumer = consumer
        self.position = 0
        self.active = False
        self.silence = settings.lease_seconds
        self._outbox = outbox
        self._database = database
        self._listener = listener
        self._pages = Pages(outbox, consumer, settings.page_size)
        lease = Lease(outbox.shape, consumer, settings.lease_seconds)
        self._parts = WorkerParts(
            consumer=consumer,
            lease=lease,
            lease_seconds=settings.lease_seconds,
            runner=Runner(outbox, consumer, database),
            letters=DeadLetters(outbox, consumer, lease),
            suspects=Suspects(lease, consumer.retry_count, settings.page_size, self.reach),
            proceeds=self._proceeds,
            reach=self.reach,
        )
        waits = VersionWaits(outbox, consumer, lease.token)
        self._retries = LetterRetries(self._parts, waits)
        self._version_wait = CheckpointWait(waits, settings.lease_seconds / 3, self.reach)
        channel = outbox.shape.log_channel
        self._news = listener.subscribe(channel) if listener is not None else Waker()
        self._word = listener.subscribe(channel, {CONSUMER_CHANGED}) if listener is not None else Waker()
        self._behind: str | None = None

    @property
    def token(self) -> UUID:
        """What fences this worker's writes."""
        return self._parts.lease.token

    async def session(self) -> None:
        """Connect, stand by, then work, until stopped or until the connection is lost."""
        connection = await self._database.connect()
        try:
            await require_schema(connection, self._outbox.shape)
            await register(connection, self._outbox, self.consumer)
            self.session_is_up()
            while not self.stopping.is_set():
                try:
                    await self._turn(connection)
                except LeaseLost as problem:
                    self.active = False
                    fields = {"consumer": self.consumer.name, "error": str(problem)}
                    log_event(logger, logging.WARNING, "consumer_lease_lost", **fields)
                    await self.reach("consumer.fenced")
            await self._parts.lease.release(connection)
            await self.reach("consumer.stopped")
        except psycopg.errors.InsufficientPrivilege as problem:
            raise privilege(connection.info.user, self._outbox.shape, problem) from problem
        except psycopg.errors.ReadOnlySqlTransaction as problem:
            # This server is no longer the primary: another will be, or this one again.
            raise DatabaseUnavailable(f"the database takes no writes: {problem}") from problem
        except ConnectionLost:
            self._parts.suspects.connection_lost()
            raise
        finally:
            self.active = False
            await self._pages.forget()
            await self._parts.runner.close()
            await close_quietly(connection)

    async def _turn(self, connection: AsyncConnection) -> None:
        if not await self._hold(connection):
            self._say_who_holds((await require_mine(connection, self._outbox.shape, self.consumer)).worker)
            self.answered()
            await self.reach("consumer.standing_by")
            await self.pause(self._parts.lease_seconds / 3, self._word)
            return
        if self._parts.lease.paused:
            self.answered()
            await self.reach("consumer.paused")
            await self.pause(self._parts.lease_seconds / 3, self._word)
            return
        async with self._heartbeat(connection):
            status = await self._look(connection)
            self.answered()
            worked = await self._retries.turn(connection)
            if worked:
                # That may have taken a while, and events published meanwhile are next.
                status = await self._look(connection)
            worked = await self._follow(connection, status) or worked
        if not worked:
            await self.reach("consumer.idle", position=self.position)
            await self._rest(connection)

    def _say_who_holds(self, holder: str | None) -> None:
        """Log once where the consumer runs instead. None: it is being handed over."""
        if holder is not None and holder != self._behind:
            self._behind = holder
            log_event(logger, logging.INFO, "consumer_standing_by", consumer=self.consumer.name, holder=holder)

    async def _hold(self, connection: AsyncConnection) -> bool:
        """Take or renew the lease; False while another worker has it.

        A young lease needs no renewal, and every write is fenced: a turn need not begin with one.
        """
        lease = self._parts.lease
        if self.active and not lease.paused and not self._word.is_set() and lease.is_young:
            return True
        self._word.clear()
        held = await lease.take(connection)
        if held is None:
            # A slice of our own, cut off, may lock the row for a moment; only the fence says that a lease is lost.
            return self.active
        if not self.active or not held.renewed:
            self._begin_at(held)
            await self._parts.letters.take_up_newer(connection)
            await self.reach("consumer.active", position=held.position, died=held.died)
        return True

    def _begin_at(self, held: HeldLease) -> None:
        self._parts.suspects.start(held)
        self.position = held.position
        self._version_wait.over()
        self._retries.start()
        self.active = True
        self._behind = None
        started = {"consumer": self.consumer.name, "position": held.position, "took_over": held.died}
        log_event(logger, logging.INFO, "consumer_started", **started)

    @asynccontextmanager
    async def _heartbeat(self, connection: AsyncConnection) -> AsyncIterator[None]:
        """Renew the lease, and look for a pause, while handlers work for longer than the lease lasts."""
        over = Waker()

        async def beat() -> None:
            while not over.is_set():
                await wait_for_any(self._parts.lease_seconds / 3, over)
                if not over.is_set():
                    await self._parts.lease.renew(connection)
                    self.answered()
                    await self.reach("consumer.heartbeat", paused=self._parts.lease.paused)

        beating = asyncio.create_task(beat(), name=f"{self.name} heartbeat")
        try:
            yield
        finally:
            over.set()
            await beating

    def _proceeds(self) -> bool:
        return not self.stopping.is_set() and not self._parts.lease.paused

    async def _look(self, connection: AsyncConnection) -> WorkerStatus:
        status = await self._retries.look(connection, POLL, self.position)
        if status.checkpoint is not None and status.checkpoint < self.position:
            # The events in between are not handled in the restored database, and those read ahead may not exist.
            raise DatabaseUnavailable(
                f"the checkpoint of consumer {self.consumer.name!r} went back from {self.position} to "
                f"{status.checkpoint}: the database was restored, or the checkpoint was moved"
            )
        return status

    async def _follow(self, connection: AsyncConnection, status: WorkerStatus) -> bool:
        """Handle the next page of the log; False when there is nothing new."""
        self._outbox.meter.on_progress(self.consumer.name, self.position, status.events, status.lag)
        if status.head <= self.position or not self._proceeds():
            return False
        if await self._version_wait.goes_on(connection, self.position):
            return False
        records, upto = await self._pages.read(connection, self.position, status.head)
        items = prepare(self.consumer, records, attempt=1)
        await self.reach("consumer.read", events=len(items), position=self.position)
        items, upto = await self._version_wait.cut(connection, items, self.position, upto)
        if upto <= self.position:
            return False
        count = len(items)
        if items and self._retries.any_open:
            items = await self._parts.letters.without_open_letters(connection, items)
        left, self.position = await handle_page(self._parts, connection, items, self.position, upto)
        await self.reach("consumer.handled", count=count - left, position=self.position)
        return True

    async def _rest(self, connection: AsyncConnection) -> None:
        listening = self._listener is not None and self._listener.working
        seconds = min(POLL if listening else POLL_WITHOUT_LISTENER, self._parts.lease_seconds / 3)
        if self._version_wait.is_on:
            # New events change nothing: one look in a third of the lease is enough.
            seconds = self._parts.lease_seconds / 3
        due_in = await self._parts.letters.seconds_to_next(connection)
        if due_in is not None:
            seconds = max(0.001, min(seconds, due_in))
        await self.pause(seconds, self._word if self._version_wait.is_on else self._news)
