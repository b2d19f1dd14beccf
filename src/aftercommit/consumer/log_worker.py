"""A worker on the log: follows it for some consumers of an outbox, on one control connection.

Each consumer has its lease and its checkpoint. The worker takes, renews and asks about all of them in one statement,
and starts a consumer when there is something to do. Other workers of the same consumer stand by, or share its lanes.
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

from aftercommit.consumer.joint_slices import JointSlices
from aftercommit.consumer.lease import Leases
from aftercommit.consumer.lease_taker import LeaseTaker
from aftercommit.consumer.log_follower import LogFollower, SharedParts
from aftercommit.consumer.names import register
from aftercommit.consumer.news import LogNews
from aftercommit.consumer.pages import LatestPage
from aftercommit.consumer.slices import require_handlers
from aftercommit.errors import DatabaseUnavailable, DeclarationError, LeaseLost
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
            meter=outbox.meter,
            probe=probe,
        )
        self._followers = {name: LogFollower(outbox, lease, self._shared) for name, lease in self._leases.all.items()}
        self._joint = JointSlices(outbox, self._shared)
        self._taker = LeaseTaker(outbox.shape, self._leases, self._shared.followers, self.reach)
        self.news = LogNews(outbox.shape, listener, self._shared, self._followers, self._leases.token)
        self._word = self.news.word
        self._ended, self._look_at = Waker(), 0.0

    @property
    def token(self) -> UUID:
        """What fences this worker's writes."""
        return self._leases.token

    @property
    def active(self) -> bool:
        """Whether it holds the leases of all its consumers, or a lane of those that are divided."""
        return all(any(each.active for each in lanes) for lanes in self._shared.followers.values())

    @property
    def position(self) -> int:
        """The checkpoint; the lowest one, if there are several."""
        followers = self._followers.values()
        return min(each.position for each in [each for each in followers if each.active] or followers)

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
                await register(own, self._outbox, [lanes[0].consumer for lanes in self._shared.followers.values()])
                await self.news.begin(own)
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
                    follower.parts.suspects.connection_lost()
            raise
        finally:
            # What slices of consumers at work wrote is undone.
            await asyncio.gather(*(follower.cut_off() for follower in self._followers.values()))

    async def _turn(self, control: AsyncConnection, reading: AsyncConnection) -> None:
        """Collect what has ended; if it is time, look what there is to do, and begin it; wait."""
        await self._collect()
        is_time = time.monotonic() >= self._look_at or self._word.is_set() or self._shared.look_wanted.is_set()
        told = None if is_time else await self.news.hear(reading)
        if told is None:
            await self._look(control, reading)
        for follower in self._joint.start(told or (), reading, self._ended.set):
            await self._begin(follower, reading, renewed=False)
        wakers = (self.news.waker, self._word, self._shared.look_wanted)
        seconds = self._look_at - time.monotonic()
        await wait_for_any(min(seconds, self.news.seconds_expected or seconds), self.stopping, self._ended, *wakers)

    async def _look(self, control: AsyncConnection, reading: AsyncConnection) -> None:
        renews = self._word.is_set() or self._leases.seconds_to_renewal == 0
        for waker in (self.news.rung, self._word, self._shared.look_wanted):
            waker.clear()
        if renews:
            await self._taker.take(control)
        active = [follower for follower in self._followers.values() if follower.active]
        if active:
            for follower in active:
                follower.asking()
            ask = self._leases.renew if renews else self._leases.look
            statuses = await ask(control, [follower.name for follower in active])
            for follower in active:
                name = follower.name
                if (status := statuses.get(name)) is not None and status.held:
                    follower.tell(status)
                elif follower.task is None:
                    # One that is at work finds out when it writes.
                    await self._lost(follower, LeaseLost(f"another worker took over consumer {name!r}"))
        self.answered()
        for follower in active:
            await self._begin(follower, reading, renewed=renews)
        self._look_at = time.monotonic() + self._rest_seconds()

    async def _begin(self, follower: LogFollower, reading: AsyncConnection, *, renewed: bool) -> None:
        """Start a consumer that has something to do."""
        if not follower.active:
            return
        if not follower.paused:
            await follower.retries.free_waiting(reading, POLL)
        if follower.task is not None:
            if renewed:
                await self.reach("consumer.heartbeat", paused=follower.paused)
        elif follower.paused:
            await self.reach("consumer.paused")
        elif follower.has_work:
            follower.task = asyncio.create_task(follower.work(reading), name=f"consumer {follower.name}")
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
            if follower.leaving:
                self._word.set()
            if follower.active and follower.has_work:
                # It was told of this when it had just come to its end.
                self._shared.look_wanted.set()

    async def _lost(self, follower: LogFollower, problem: LeaseLost) -> None:
        await follower.forget()
        fields = {"consumer": follower.name, "error": str(problem)}
        log_event(logger, logging.WARNING, "consumer_lease_lost", **fields)
        await self.reach("consumer.fenced")
        self._word.set()

    async def _finish(self, control: AsyncConnection) -> None:
        """Let what is at work come to its end, and keep the leases meanwhile."""
        while True:
            await self._collect()
            working = [name for name, follower in self._followers.items() if follower.task is not None]
            if not working:
                # What was opened early holds the rows of the leases that are given back next.
                await asyncio.gather(*(follower.parts.runner.early.drop() for follower in self._followers.values()))
                return
            if self._leases.seconds_to_renewal == 0:
                await self._leases.renew(control, working)
                self.answered()
            await wait_for_any(self._leases.seconds_to_renewal, self._ended)
