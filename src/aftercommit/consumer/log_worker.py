"""A worker on the log: one consumer, one lease, one checkpoint. Others of the same name stand by."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg

from aftercommit.consumer.conversation import ConnectionLost
from aftercommit.consumer.dead_letters import DeadLetters, WorkerStatus
from aftercommit.consumer.lease import CONSUMER_CHANGED, HeldLease, Lease
from aftercommit.consumer.letter_retries import LetterRetries
from aftercommit.consumer.names import register, require_mine
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.pages import Pages
from aftercommit.consumer.runner import Runner, SlicePolicy
from aftercommit.consumer.slices import Query, SliceItem, prepare
from aftercommit.consumer.waiting import VersionWaits, waits
from aftercommit.consumer.walk import by_aggregate
from aftercommit.errors import AftercommitError, DatabaseUnavailable, DeclarationError, LeaseLost, NewerVersion
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.arrays import uuid_array
from aftercommit.postgres.database import Database, privilege
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.resilience import DatabaseService, close_quietly
from aftercommit.schema.requirement import require_schema
from aftercommit.service import Probe, Waker, finish_all, wait_for_any
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

POLL: Final = 1.0
POLL_WITHOUT_LISTENER: Final = 0.05


class HandlerNeverFinished(AftercommitError):
    """Handling this event was begun again and again, and each time the process died before it ended."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works. `lease_seconds` bounds the time until a standby takes over after a crash."""

    page_size: int = 1000
    lease_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Refuse numbers that could not work."""
        if self.page_size < 1 or not 0 < self.lease_seconds < math.inf:
            raise DeclarationError(f"{self!r}: page_size >= 1 and lease > 0 are needed")


class LogWorker(DatabaseService):
    """Follows the log for one consumer."""

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
        """Not started. A listener shared with other services is used when given; without one the worker polls."""
        super().__init__(probe)
        if not consumer.handlers:
            raise DeclarationError(f"consumer {consumer.name!r} has no handlers: declare one with @consumer.on(…)")
        outbox.registry.require_upcasters()
        self.name = f"worker {consumer.name}"
        self.consumer = consumer
        self.position = 0
        self.active = False
        self._outbox = outbox
        self._database = database
        self._settings = settings or WorkerSettings()
        self.silence = self._settings.lease_seconds
        self._listener = listener
        self._lease = Lease(outbox.shape, consumer, self._settings.lease_seconds)
        self._pages = Pages(outbox, consumer, self._settings.page_size)
        self._runner = Runner(outbox, consumer, database)
        self._letters = DeadLetters(outbox, consumer, self._lease)
        self._waits = VersionWaits(outbox, consumer, self._lease.token)
        self._retries = LetterRetries(
            consumer, self._runner, self._letters, self._waits, self._settings.lease_seconds, self.reach
        )
        channel = outbox.shape.log_channel
        self._news = listener.subscribe(channel) if listener is not None else Waker()
        self._word = listener.subscribe(channel, {CONSUMER_CHANGED}) if listener is not None else Waker()
        self._strict = consumer.ordering == "strict"
        self._paused = False
        self._behind: str | None = None
        self._suspects = 0
        self._crashed = False
        self._crashed_at = 0
        self._crashes = 0
        self._renew_at = 0.0
        # The event behind the checkpoint that waits for newer code, and when to ask again whether it still does.
        self._awaited: tuple[int, NewerVersion] | None = None
        self._ask_at = 0.0

    @property
    def token(self) -> UUID:
        """What fences this worker's writes."""
        return self._lease.token

    async def session(self) -> None:
        """One life of the control connection: standing by, then working, until stopped or lost."""
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
                    log_event(
                        logger, logging.WARNING, "consumer_lease_lost", consumer=self.consumer.name, error=str(problem)
                    )
                    await self.reach("consumer.fenced")
            await self._lease.release(connection)
            await self.reach("consumer.stopped")
        except psycopg.errors.InsufficientPrivilege as problem:
            raise privilege(connection.info.user, self._outbox.shape, problem) from problem
        except psycopg.errors.ReadOnlySqlTransaction as problem:
            # A server that is no longer the primary: another will be, or this one again.
            raise DatabaseUnavailable(f"the database takes no writes: {problem}") from problem
        except ConnectionLost:
            self._crashed = True
            raise
        finally:
            self.active = False
            await self._pages.forget()
            await self._runner.close()
            await close_quietly(connection)

    async def _turn(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if not await self._hold(connection):
            self._say_who_holds((await require_mine(connection, self._outbox.shape, self.consumer)).worker)
            self.answered()
            await self.reach("consumer.standing_by")
            await self.pause(self._settings.lease_seconds / 3, self._word)
            return
        if self._paused:
            self.answered()
            await self.reach("consumer.paused")
            await self.pause(self._settings.lease_seconds / 3, self._word)
            return
        async with self._heartbeat(connection):
            status = await self._look(connection)
            self.answered()
            worked = await self._retry_letters(connection)
            if worked:
                # That may have taken its time, and whoever was published meanwhile is next.
                status = await self._look(connection)
            worked = await self._follow(connection, status) or worked
        if not worked:
            await self.reach("consumer.idle", position=self.position)
            await self._rest(connection)

    def _say_who_holds(self, holder: str | None) -> None:
        """Once for each: whoever waits for effects here learns where they happen. None: it is being handed over."""
        if holder is not None and holder != self._behind:
            self._behind = holder
            log_event(logger, logging.INFO, "consumer_standing_by", consumer=self.consumer.name, holder=holder)

    async def _hold(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Take or renew the lease; False while somebody else has it.

        While it is young there is nothing to renew, and every write is fenced: a turn need not begin with one.
        """
        if self.active and not self._paused and not self._word.is_set() and time.monotonic() < self._renew_at:
            return True
        self._word.clear()
        self._renew_at = time.monotonic() + self._settings.lease_seconds / 3
        held = await self._lease.take(connection)
        if held is None:
            # A slice of our own, cut off, may hold the row for a moment; only the fence says that a lease is lost.
            return self.active
        self._paused = held.paused
        if not self.active or not held.renewed:
            self._begin_at(held)
            await self._letters.take_up_newer(connection)
            await self.reach("consumer.active", position=held.position, died=held.died)
        return True

    def _begin_at(self, held: HeldLease) -> None:
        if self._crashed:
            self._crashes = self._crashes + 1 if held.position == self._crashed_at else 1
            self._crashed, self._crashed_at = False, held.position
        else:
            self._crashes = 0
        self.position = held.position
        self._awaited = None
        self._waits.over()
        # Whoever died here, worker or (twice) database server: one of the next events may have done it.
        suspicious = held.died or held.unfinished or self._crashes > 1
        self._suspects = self._settings.page_size if suspicious else 0
        self._retries.start()
        self.active = True
        self._behind = None
        started = {"consumer": self.consumer.name, "position": held.position, "took_over": held.died}
        log_event(logger, logging.INFO, "consumer_started", **started)

    @asynccontextmanager
    async def _heartbeat(self, connection: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
        """Keep the lease, and look for a pause, while handlers work for longer than the lease lasts."""
        over = Waker()

        async def beat() -> None:
            while not over.is_set():
                await wait_for_any(self._settings.lease_seconds / 3, over)
                if not over.is_set():
                    self._paused = await self._lease.renew(connection)
                    self.answered()
                    await self.reach("consumer.heartbeat", paused=self._paused)

        beating = asyncio.create_task(beat(), name=f"{self.name} heartbeat")
        try:
            yield
        finally:
            over.set()
            await beating

    def _proceeds(self) -> bool:
        return not self.stopping.is_set() and not self._paused

    async def _look(self, connection: psycopg.AsyncConnection[Any]) -> WorkerStatus:
        status = await self._retries.look(connection, POLL, self.position)
        if status.checkpoint is not None and status.checkpoint < self.position:
            # What was handled since is not handled in what was restored, and what was read ahead may not exist.
            raise DatabaseUnavailable(
                f"the checkpoint of consumer {self.consumer.name!r} is {status.checkpoint} and was {self.position}: "
                "the database behind this connection was restored, or somebody moved the checkpoint"
            )
        return status

    async def _follow(self, connection: psycopg.AsyncConnection[Any], status: WorkerStatus) -> bool:
        """Handle the next page of the log, which reaches to its head; False when there is nothing new."""
        self._outbox.meter.on_progress(self.consumer.name, self.position, status.events, status.lag)
        if status.head <= self.position or not self._proceeds() or await self._still_waits(connection):
            return False
        records, upto = await self._pages.read(connection, self.position, status.head)
        items = prepare(self.consumer, records, attempt=1)
        await self.reach("consumer.read", events=len(items), position=self.position)
        items, upto = await self._before_newer(connection, items, upto)
        if upto <= self.position:
            return False
        left, self.position = await self._handle(connection, items, upto)
        await self.reach("consumer.handled", count=len(items) - left, position=self.position)
        return True

    async def _before_newer(
        self, connection: psycopg.AsyncConnection[Any], items: list[SliceItem], upto: int
    ) -> tuple[list[SliceItem], int]:
        """What of a page stands before the first event that waits for newer code, and the position up to which."""
        left = await self._waits.of(self._waits.asking(connection), items)
        for index, item in enumerate(items):
            if item.newer is not None and waits(item, left):
                before = (item.record.position or 0) - 1
                self._awaited, self._ask_at = (before, item.newer), time.monotonic() + self._settings.lease_seconds / 3
                await self._look_at_wait(left[item.newer.kind], item.newer)
                return items[:index], before
        return items, upto

    async def _still_waits(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Whether the next event waits for newer code, as it did when it was read."""
        if self._awaited is None or self._awaited[0] != self.position:
            return False
        newer = self._awaited[1]
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + self._settings.lease_seconds / 3
            left = await self._waits.seconds_left(self._waits.asking(connection), newer)
            await self._look_at_wait(left, newer)
        return self._awaited is not None

    async def _look_at_wait(self, left: float | None, newer: NewerVersion) -> None:
        if left is None:
            raise LeaseLost(f"a worker that knows version {newer.version} of {newer.event_type} has taken over")
        if left == 0.0:
            self._awaited = None
        await self.reach("consumer.waiting", position=self.position, version=newer.version, left=left)

    async def _handle(
        self, connection: psycopg.AsyncConnection[Any], items: list[SliceItem], upto: int
    ) -> tuple[int, int]:
        """Handle a page; returns how many events are left of it, and how far the checkpoint has come."""
        if items and self._retries.any_open:
            items = await self._letters.without_open_letters(connection, items)
        if self._strict and items:
            items = await self._letters.set_aside(connection, items, self.position)
        if self._suspects > 0:
            left = await self._runner.run(items, self._policy(connection, suspects=True))
            self._suspects = max(0, self._suspects - max(1, len(items) - len(left)))
        elif self.consumer.concurrency == 1:
            left = await self._runner.run(items, self._policy(connection))
        else:
            left = await self._handle_side_by_side(connection, items)
        reached = _before(left, upto)
        in_step = self.consumer.concurrency == 1 and not self._strict and not left and bool(items)
        # One after the other, each slice has moved the checkpoint itself.
        if not in_step or items[-1].record.position != reached:
            await self._lease.move(connection, reached)
        return len(left), reached

    def _policy(self, connection: psycopg.AsyncConnection[Any], *, suspects: bool = False) -> SlicePolicy:
        async def record(item: SliceItem, failure: Failed, behind: list[SliceItem]) -> None:
            letters = self._letters.letters(item, failure, behind)
            await self._letters.record(connection, letters, item.record.position or 0)
            await self.reach("consumer.failed", position=item.record.position)

        async def first(item: SliceItem) -> Failed | None:
            return await self._count_start(connection, item.record)

        return SlicePolicy(
            self._begin,
            record,
            end=self._renew_late,
            first=first if suspects else None,
            proceed=self._proceeds,
            strict=self._strict,
        )

    async def _count_start(self, connection: psycopg.AsyncConnection[Any], record: Record) -> Failed | None:
        """Counted before it is begun: it may be what killed our predecessor, and must not kill for ever."""
        starts = await self._lease.count_start(connection, record.position or 0)
        await self.reach("consumer.suspect", starts=starts, position=record.position)
        if starts <= self.consumer.retry_count + 1:
            return None
        error = HandlerNeverFinished(
            f"handling was begun {starts - 1} times and the process died each time; fix what kills it, then retry"
        )
        return Failed(error, permanent=True)

    async def _handle_side_by_side(
        self, connection: psycopg.AsyncConnection[Any], items: Sequence[SliceItem]
    ) -> list[SliceItem]:
        async def record(item: SliceItem, failure: Failed, behind: list[SliceItem]) -> None:
            # At once, before the checkpoint gets here: an event that is overtaken has a letter, whoever dies meanwhile.
            await self._letters.record(connection, self._letters.letters(item, failure, behind), self.position)
            await self.reach("consumer.failed", position=item.record.position)

        policy = SlicePolicy(self._begin_shared, record, proceed=self._proceeds, strict=self._strict)
        groups = by_aggregate(items, self.consumer.concurrency)
        lefts = await finish_all(self._runner.run(group, policy) for group in groups)
        return sorted((item for group in lefts for item in group), key=lambda item: item.record.position or 0)

    async def _retry_letters(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Give dead letters that are due another attempt."""

        async def first(item: SliceItem) -> Failed | None:
            return await self._count_start(connection, item.record)

        return await self._retries.turn(connection, self._proceeds, first if self._suspects > 0 else None)

    def _begin(self, segment: Sequence[SliceItem]) -> Query:
        name = "begin_slice" if self.consumer.inbox else "begin_slice_without_inbox"
        parameters = {**self._slice_parameters(segment), "position": segment[-1].record.position}
        return Query(name, parameters, prepared=True)

    def _begin_shared(self, segment: Sequence[SliceItem]) -> Query:
        return Query("begin_shared_slice", self._slice_parameters(segment), prepared=True)

    def _slice_parameters(self, segment: Sequence[SliceItem]) -> dict[str, Any]:
        return {
            **self._lease.parameters,
            "ids": uuid_array(item.record.event_id for item in segment),
            "patience": self._runner.idle_timeout_ms(self._settings.lease_seconds),
        }

    def _renew_late(self, seconds: float) -> Query | None:
        """A slice renews the lease when it begins; one that took long does it again, or a standby would step in."""
        return Query("renew_slice", self._lease.parameters) if seconds > self._settings.lease_seconds / 3 else None

    async def _rest(self, connection: psycopg.AsyncConnection[Any]) -> None:
        listening = self._listener is not None and self._listener.working
        seconds = min(POLL if listening else POLL_WITHOUT_LISTENER, self._settings.lease_seconds / 3)
        if self._awaited is not None:
            # News of the log change nothing: one look in a third of the lease is enough.
            seconds = self._settings.lease_seconds / 3
        due_in = await self._letters.seconds_to_next(connection)
        if due_in is not None:
            seconds = max(0.001, min(seconds, due_in))
        await self.pause(seconds, self._news if self._awaited is None else self._word)


def _before(left: Sequence[SliceItem], upto: int) -> int:
    """The position before the first event that is left, or the end of the page."""
    return (left[0].record.position or 0) - 1 if left else upto
