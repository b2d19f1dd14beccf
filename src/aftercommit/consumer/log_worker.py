"""A worker on the log: follows it for some consumers of an outbox, on one control connection.

Each consumer has its lease and its checkpoint. The worker takes, renews and asks about all of them in one statement,
and starts a consumer when there is something to do. Other workers of the same consumer stand by.
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import psycopg

from aftercommit.consumer.lease import CONSUMER_CHANGED, Leases
from aftercommit.consumer.log_follower import LogFollower, SharedParts
from aftercommit.consumer.names import Standby, register
from aftercommit.consumer.pages import LatestPage
from aftercommit.consumer.slices import require_handlers
from aftercommit.errors import DatabaseUnavailable, DeclarationError, LeaseLost
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.database import Database, privilege
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.resilience import LOST, DatabaseService
from aftercommit.postgres.shared import SharedConnections, exclusive
from aftercommit.schema.requirement import require_schema
from aftercommit.service import Probe, Waker, wait_for_any
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

POLL: Final = 2.0
POLL_WITHOUT_LISTENER: Final = 0.05
# So long a worker waits for the answer to an append that a notification has overtaken.
EXPECT_SECONDS: Final = 0.05
# So many connections serve the handlers of all consumers, or as many as one consumer's concurrency needs.
CONNECTIONS: Final = 10


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works. `lease_seconds`: after a crash a standby takes over within this time.

    `max_connections`: how many handlers have a connection at the same time, all consumers together (by default 10, or
    the highest concurrency of a consumer).
    """

    page_size: int = 1000
    lease_seconds: float = 5.0
    max_connections: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.page_size < 1 or not 0 < self.lease_seconds < math.inf:
            raise DeclarationError(f"{self!r}: need page_size >= 1 and lease_seconds > 0")
        if self.max_connections is not None and self.max_connections < 1:
            raise DeclarationError(f"{self!r}: need max_connections >= 1")

    def connections_for(self, consumers: Sequence[Consumer]) -> int:
        """How many connections the handlers of these consumers share."""
        return self.max_connections or max([CONNECTIONS, *(consumer.concurrency for consumer in consumers)])


class LogWorker(DatabaseService):
    """Follows the log for one consumer or several: handles new events, retries dead letters, moves the checkpoints.

    It wakes up through the listener, which other services may share; without one it polls.
    """

    def __init__(
        self,
        outbox: Outbox,
        consumers: Consumer | Sequence[Consumer],
        database: Database,
        *,
        settings: WorkerSettings | None = None,
        listener: Listener | None = None,
        connections: SharedConnections | None = None,
        probe: Probe | None = None,
    ) -> None:
        super().__init__(probe)
        chosen = [consumers] if isinstance(consumers, Consumer) else list(consumers)
        if not chosen:
            raise DeclarationError("a worker needs at least one consumer")
        for consumer in chosen:
            require_handlers(consumer)
        outbox.registry.require_upcasters()
        settings = settings or WorkerSettings()
        self.name = f"worker {chosen[0].name}" if len(chosen) == 1 else f"worker of {len(chosen)} consumers"
        self.silence = settings.lease_seconds
        self._outbox = outbox
        self._connections = connections or SharedConnections(database)
        self._connections.make_room(handlers=settings.connections_for(chosen))
        self._listener = listener
        self._leases = Leases(outbox, chosen, settings.lease_seconds)
        self._shared = SharedParts(
            connections=self._connections.handlers,
            latest=LatestPage(outbox),
            page_size=settings.page_size,
            stopping=self.stopping,
            look_wanted=Waker(),
            probe=probe,
        )
        self._followers = {each.name: LogFollower(outbox, self._leases.of(each), self._shared) for each in chosen}
        channel = self._channel = outbox.shape.log_channel
        self._news = listener.subscribe(channel) if listener is not None else Waker()
        self._word = listener.subscribe(channel, {CONSUMER_CHANGED}) if listener is not None else Waker()
        self._ended, self._look_at = Waker(), 0.0
        self._received, self._expects_until = Waker(), 0.0
        self._standby = Standby(outbox.shape)

    @property
    def token(self) -> UUID:
        """What fences this worker's writes."""
        return self._leases.token

    @property
    def active(self) -> bool:
        """Whether it holds the leases of all its consumers."""
        return all(follower.active for follower in self._followers.values())

    @property
    def position(self) -> int:
        """The checkpoint; the lowest one, if there are several."""
        return min(follower.position for follower in self._followers.values())

    def expect(self) -> None:
        """A relay of this process begins to append: what it appends need not be read."""
        self._received.clear()
        self._expects_until = time.monotonic() + EXPECT_SECONDS

    def receive(self, records: Sequence[Record]) -> None:
        """Take events that a relay of this process has just appended to the log."""
        self._expects_until = 0.0
        self._received.set()
        end = self._resting_at()
        if records and end is not None and records[0].position == end + 1:
            self._shared.latest.keep(records)
            self._news.set()

    async def session(self) -> None:
        """Connect, stand by, then work, until stopped or until a connection is lost."""
        try:
            async with self._connections as connections:
                await self._session(connections.control(), connections.reading())
        finally:
            self._shared.latest.forget()
            await self._shared.connections.close()

    async def _session(self, control: AsyncConnection, reading: AsyncConnection) -> None:
        try:
            async with exclusive(control) as own:
                await require_schema(own, self._outbox.shape)
            await register(control, self._outbox, [each.consumer for each in self._followers.values()])
            self.session_is_up()
            self._word.set()
            while not self.stopping.is_set():
                await self._turn(control, reading)
            await self._finish(control)
            await self._leases.release(control)
            await self.reach("consumer.stopped")
        except psycopg.errors.InsufficientPrivilege as problem:
            raise privilege(self._connections.user, self._outbox.shape, problem) from problem
        except psycopg.errors.ReadOnlySqlTransaction as problem:
            # This server is no longer the primary: another will be, or this one again.
            raise DatabaseUnavailable(f"the database takes no writes: {problem}") from problem
        except LOST:
            for follower in self._followers.values():
                if follower.task is not None:
                    follower.connection_lost()
            raise
        finally:
            await self._cut_off()

    async def _turn(self, control: AsyncConnection, reading: AsyncConnection) -> None:
        """Collect what has ended; if it is time, look what there is to do, and begin it; wait."""
        await self._collect()
        is_time = time.monotonic() >= self._look_at or self._word.is_set() or self._shared.look_wanted.is_set()
        hears = self._news.is_set() and time.monotonic() >= self._expects_until
        if is_time or (hears and not await self._hear(reading)):
            await self._look(control, reading)
        # The notification of an append often overtakes the answer to it, which has the events.
        expects = time.monotonic() < self._expects_until
        until = min(self._look_at, self._expects_until) if expects else self._look_at
        wakers = (self._received if expects else self._news, self._word, self._shared.look_wanted)
        await wait_for_any(until - time.monotonic(), self.stopping, self._ended, *wakers)

    async def _hear(self, reading: AsyncConnection) -> bool:
        """New events are in the log. If all consumers wait for them, begin at once; otherwise it takes a look."""
        self._news.clear()
        followers = self._at_work
        listener = self._listener
        if listener is None or not listener.working or not followers:
            return False
        told = listener.heard.get(self._channel, "")
        end = self._resting_at()
        if end is None:
            return told.isdecimal() and all(follower.knows(int(told)) for follower in followers)
        consumers = [follower.consumer for follower in followers]
        head = self._shared.latest.end_after(end)
        if head is None:
            if told.isdecimal() and int(told) <= end:
                return True
            head = await self._shared.latest.read_news(reading, end, consumers, self.token)
            self.answered()
        if head is None:
            return False
        for follower in followers:
            follower.tell_end(head)
        for follower in followers:
            await self._begin(follower, reading, renewed=False)
        return True

    @property
    def _at_work(self) -> list[LogFollower]:
        return [follower for follower in self._followers.values() if follower.active and not follower.paused]

    def _resting_at(self) -> int | None:
        """Where all consumers wait for new events; None if they are not at the same position, or one is at work."""
        places = {follower.rests_at for follower in self._at_work}
        return places.pop() if len(places) == 1 else None

    async def _look(self, control: AsyncConnection, reading: AsyncConnection) -> None:
        renews = self._word.is_set() or self._leases.seconds_to_renewal == 0
        for waker in (self._news, self._word, self._shared.look_wanted):
            waker.clear()
        if renews:
            await self._take(control)
        active = [follower for follower in self._followers.values() if follower.active]
        if active:
            for follower in active:
                follower.asking()
            ask = self._leases.renew if renews else self._leases.look
            statuses = await ask(control, [follower.consumer.name for follower in active])
            for follower in active:
                name = follower.consumer.name
                if (status := statuses.get(name)) is not None and status.held:
                    follower.tell(status)
                elif follower.task is None:
                    # One that is at work finds out when it writes.
                    await self._lost(follower, LeaseLost(f"another worker took over consumer {name!r}"))
        self.answered()
        for follower in active:
            await self._begin(follower, reading, renewed=renews)
        self._look_at = time.monotonic() + self._rest_seconds()

    async def _take(self, control: AsyncConnection) -> None:
        """Take the leases that are free. For the others, see that the workers that have them run the same consumers."""
        missing = [name for name, follower in self._followers.items() if not follower.active]
        if not missing:
            return
        taken = await self._leases.take(control, missing)
        for name, held in taken.items():
            self._standby.over(name)
            self._followers[name].start(held)
            await self.reach("consumer.active", position=held.position, died=held.died)
        if standing_by := [self._followers[name].consumer for name in missing if name not in taken]:
            await self._standby.look(control, standing_by)
            for _ in standing_by:
                await self.reach("consumer.standing_by")

    async def _begin(self, follower: LogFollower, reading: AsyncConnection, *, renewed: bool) -> None:
        """Start a consumer that has something to do."""
        if not follower.active:
            return
        if not follower.paused:
            await follower.free_waiting(reading, POLL)
        if follower.task is not None:
            if renewed:
                await self.reach("consumer.heartbeat", paused=follower.paused)
        elif follower.paused:
            await self.reach("consumer.paused")
        elif follower.has_work:
            follower.task = asyncio.create_task(follower.work(reading), name=f"consumer {follower.consumer.name}")
            follower.task.add_done_callback(lambda _: self._ended.set())
        else:
            await self.reach("consumer.idle", position=follower.position)

    def _rest_seconds(self) -> float:
        """How long nothing needs a look, if nothing wakes the worker."""
        poll = POLL if self._listener is not None and self._listener.working else POLL_WITHOUT_LISTENER
        seconds = min(poll, self._leases.seconds_to_renewal)
        due = (follower.due_in for follower in self._followers.values())
        return min([seconds, *(max(0.001, due_in) for due_in in due if due_in is not None)])

    async def _collect(self) -> None:
        """Take notice of consumers that have come to their end; errors but a lost lease end the session."""
        self._ended.clear()
        for follower in self._followers.values():
            task = follower.task
            if task is None or not task.done():
                continue
            try:
                task.result()
            except LeaseLost as problem:
                await self._lost(follower, problem)
            follower.task = None
            if follower.active and follower.has_work:
                # It was told of this when it had just come to its end.
                self._shared.look_wanted.set()

    async def _lost(self, follower: LogFollower, problem: LeaseLost) -> None:
        await follower.forget()
        fields = {"consumer": follower.consumer.name, "error": str(problem)}
        log_event(logger, logging.WARNING, "consumer_lease_lost", **fields)
        await self.reach("consumer.fenced")
        self._word.set()

    async def _finish(self, control: AsyncConnection) -> None:
        """Let what is at work come to its end, and keep the leases meanwhile."""
        while True:
            await self._collect()
            working = [name for name, follower in self._followers.items() if follower.task is not None]
            if not working:
                return
            if self._leases.seconds_to_renewal == 0:
                await self._leases.renew(control, working)
                self.answered()
            await wait_for_any(self._leases.seconds_to_renewal, self._ended)

    async def _cut_off(self) -> None:
        """End all consumers at once: what their slices wrote is undone."""
        await asyncio.gather(*(follower.cut_off() for follower in self._followers.values()))
