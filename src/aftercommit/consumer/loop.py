"""A worker on the log: one consumer, one lease, one checkpoint. Others of the same name stand by."""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg

from aftercommit.consumer.failures import DeadLetters, Letter
from aftercommit.consumer.names import register
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.runner import Runner, by_aggregate
from aftercommit.consumer.slices import Item, Query, SliceFailed, prepare
from aftercommit.errors import AftercommitError, DeclarationError, LeaseLost
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.database import Database, privilege, require_schema
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.records import log_record
from aftercommit.postgres.resilience import DatabaseService, close_quietly
from aftercommit.postgres.statements import Statements
from aftercommit.service import Probe, finish_all
from aftercommit.telemetry import say

logger = logging.getLogger("aftercommit.consumer")

MAX_PAGE_BYTES = 8 << 20
POLL = 1.0
POLL_WITHOUT_LISTENER = 0.05
LETTERS_PER_TURN = 50


class HandlerNeverFinished(AftercommitError):
    """Handling this event was begun again and again, and each time the process died before it ended."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works. `lease` bounds the time until a standby takes over after a crash."""

    page_size: int = 1000
    lease: float = 5.0

    def __post_init__(self) -> None:
        """Refuse numbers that could not work."""
        if self.page_size < 1 or self.lease <= 0:
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
        self.name = f"worker {consumer.name}"
        self.consumer = consumer
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        self.token: UUID = uuid4()
        self.position = 0
        self.active = False
        self._outbox = outbox
        self._database = database
        self._settings = settings or WorkerSettings()
        self._listener = listener
        self._statements = Statements(outbox.shape)
        self._runner = Runner(outbox, consumer, database)
        self._letters = DeadLetters(outbox, consumer, self.token, self._settings.lease)
        self._news = listener.subscribe(outbox.shape.log_channel) if listener is not None else asyncio.Event()
        self._suspects = 0

    async def run(self) -> None:
        """Open the handlers' connections, work in sessions, close them."""
        await self._runner.open()
        try:
            await super().run()
        finally:
            await self._runner.close()

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
                    self._stand_by(problem)
                    await self.reach("consumer.fenced")
            await self._release(connection)
            await self.reach("consumer.stopped")
        except psycopg.errors.InsufficientPrivilege as problem:
            raise privilege(connection.info.user, self._outbox.shape, problem) from problem
        finally:
            self.active = False
            await close_quietly(connection)

    async def _turn(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if not await self._hold(connection):
            await self.reach("consumer.standing_by")
            await self.pause(self._settings.lease / 3, self._news)
            return
        worked = await self._retry_letters(connection)
        worked = await self._follow(connection) or worked
        if not worked:
            await self.reach("consumer.idle", position=self.position)
            await self._rest(connection)

    async def _hold(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Take or renew the lease; False while somebody else has it, or while paused."""
        row = await (await connection.execute(self._statements["take_consumer"], self._lease_parameters())).fetchone()
        if row is None:
            # Our own slice may hold the row for a moment; only the fence decides that a lease is lost.
            return self.active
        position, paused, died = row
        if not self.active:
            self.position = position
            self._suspects = self._settings.page_size if died else 0
            say(logger, logging.INFO, "consumer_started", consumer=self.consumer.name, position=position, took_over=died)
            await self.reach("consumer.active", position=position, died=died)
        self.active = True
        return not paused

    async def _follow(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Handle the next page of the log; False when there is nothing new."""
        row = await (await connection.execute(self._statements["head"])).fetchone()
        head = int(row[0]) if row else 0
        upto = min(head, self.position + self._settings.page_size)
        self._outbox.meter.on_progress(self.consumer.name, self.position, head)
        if upto <= self.position:
            return False
        records, upto = await self._page(connection, upto)
        items = prepare(self.consumer, records)
        await self.reach("consumer.read", count=len(items), position=self.position)
        await self._handle(connection, items, upto)
        self.position = upto
        await self.reach("consumer.handled", count=len(items), position=upto)
        return True

    async def _page(self, connection: psycopg.AsyncConnection[Any], upto: int) -> tuple[list[Record], int]:
        parameters = {"after": self.position, "upto": upto, "types": self.consumer.types, "max_bytes": MAX_PAGE_BYTES}
        rows = await (await connection.execute(self._statements["read_log"], parameters)).fetchall()
        records = [log_record(row, self._outbox.shape) for row in rows]
        read = sum(len(record.payload) for record in records)
        if read >= MAX_PAGE_BYTES // 2 and records:
            # The page may have been cut by its size: what lies behind the last record was not looked at.
            upto = min(upto, records[-1].position or upto)
        return records, upto

    async def _handle(self, connection: psycopg.AsyncConnection[Any], items: list[Item], upto: int) -> None:
        if self.consumer.ordering == "strict" and items:
            items = await self._without_blocked(connection, items)
        if self._suspects > 0:
            await self._handle_suspects(connection, items)
        elif self.consumer.concurrency == 1:
            await self._runner.run(items, self._begin, self._recorder(connection))
        else:
            await self._handle_side_by_side(connection, items, upto)
        await self._move(connection, upto)

    async def _handle_suspects(self, connection: psycopg.AsyncConnection[Any], items: Sequence[Item]) -> None:
        """One event at a time, each attempt counted before it is made: one of them may have killed our predecessor."""
        record_failure = self._recorder(connection)
        for item in items:
            parameters = {**self._lease_parameters(), "consumer": self.consumer.name, "position": item.record.position}
            row = await (await connection.execute(self._statements["suspect"], parameters)).fetchone()
            if row is None:
                raise LeaseLost(f"consumer {self.consumer.name!r} was taken over by another worker")
            if row[0] > self.consumer.retry_count + 1:
                error = HandlerNeverFinished(f"handling was begun {row[0] - 1} times and the process died each time")
                await record_failure(item, Failed(error, permanent=True))
                continue
            await self.reach("consumer.suspect", attempts=row[0])
            await self._runner.run([item], self._begin, record_failure, one_by_one=True)
        self._suspects = max(0, self._suspects - max(1, len(items)))

    async def _handle_side_by_side(
        self, connection: psycopg.AsyncConnection[Any], items: Sequence[Item], upto: int
    ) -> None:
        letters: list[Letter] = []

        async def collect(item: Item, failure: Failed) -> None:
            letters.append(self._letters.letter(item.record, failure, 1))

        groups = by_aggregate(items, self.consumer.concurrency)
        await finish_all(self._runner.run(group, self._begin_shared, collect) for group in groups)
        if letters:
            await self._letters.record(connection, letters, upto)

    async def _without_blocked(self, connection: psycopg.AsyncConnection[Any], items: list[Item]) -> list[Item]:
        """Strict ordering: events behind an unhandled one of their aggregate are set aside, in order."""
        blocked = await self._letters.blocked(connection, [item.record for item in items])
        waiting = [self._letters.waiting(item.record) for item in items if item.record.aggregate in blocked]
        if waiting:
            await self._letters.record(connection, waiting, self.position)
        return [item for item in items if item.record.aggregate not in blocked]

    def _recorder(self, connection: psycopg.AsyncConnection[Any]) -> Any:
        async def record_failure(item: Item, failure: Failed) -> None:
            letter = self._letters.letter(item.record, failure, 1)
            await self._letters.record(connection, [letter], item.record.position or 0)
            await self.reach("consumer.failed", position=item.record.position)

        return record_failure

    async def _retry_letters(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Give dead letters that are due another attempt, each in a transaction of its own."""
        records = await self._letters.due(connection, LETTERS_PER_TURN)
        for record in records:
            if self.stopping.is_set():
                break
            items = prepare(self.consumer, [record], attempt=record.retry_count + 1)
            failure = items[0].failure if items else None
            if failure is None:
                try:
                    resolve = Query("resolve_letter", {"event_id": record.event_id, "consumer": self.consumer.name})
                    await self._runner.slice(items, self._begin_shared(items), resolve)
                except SliceFailed as problem:
                    failure = problem.failure
            if failure is not None:
                await self._letters.failed_again(connection, record, failure)
            await self.reach("consumer.retried", event_id=record.event_id, failed=failure is not None)
        return bool(records)

    def _begin(self, segment: Sequence[Item]) -> Query:
        name = "begin_slice" if self.consumer.inbox else "begin_slice_without_inbox"
        return Query(name, {**self._slice_parameters(segment), "position": segment[-1].record.position})

    def _begin_shared(self, segment: Sequence[Item]) -> Query:
        return Query("begin_shared_slice", self._slice_parameters(segment))

    def _slice_parameters(self, segment: Sequence[Item]) -> dict[str, Any]:
        return {
            "consumer": self.consumer.name,
            "token": self.token,
            "lease": self._settings.lease,
            "ids": [item.record.event_id for item in segment],
        }

    def _lease_parameters(self) -> dict[str, Any]:
        return {
            "name": self.consumer.name,
            "token": self.token,
            "worker": self.worker,
            "declared_by": self.consumer.declared_by,
            "lease": self._settings.lease,
        }

    async def _move(self, connection: psycopg.AsyncConnection[Any], position: int) -> None:
        parameters = {**self._lease_parameters(), "consumer": self.consumer.name, "position": position}
        row = await (await connection.execute(self._statements["move_checkpoint"], parameters)).fetchone()
        if row is None:
            raise LeaseLost(f"consumer {self.consumer.name!r} was taken over by another worker")

    async def _rest(self, connection: psycopg.AsyncConnection[Any]) -> None:
        seconds = POLL if self._listener is not None and self._listener.working else POLL_WITHOUT_LISTENER
        due_in = await self._letters.seconds_to_next(connection)
        if due_in is not None:
            seconds = max(0.001, min(seconds, due_in))
        await self.pause(min(seconds, self._settings.lease / 3), self._news)

    def _stand_by(self, problem: LeaseLost) -> None:
        self.active = False
        say(logger, logging.WARNING, "consumer_lease_lost", consumer=self.consumer.name, error=str(problem))

    async def _release(self, connection: psycopg.AsyncConnection[Any]) -> None:
        parameters = {"name": self.consumer.name, "token": self.token, "channel": self._outbox.shape.log_channel}
        await connection.execute(self._statements["release_consumer"], parameters)
