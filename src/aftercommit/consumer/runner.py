"""Takes a consumer through a list of events in slices, and isolates those that fail."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from aftercommit.consumer.conversation import ChangedSettings, ConnectionLost
from aftercommit.consumer.early_slice import EarlySlice
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slice_executor import SliceExecutor
from aftercommit.consumer.slices import Finish, Query, SliceFailed, SliceItem, SliceOutdated, SliceResult, script
from aftercommit.consumer.walk import SlicePace, Walk
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.handler_connections import ConsumerConnections
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

# The server's limit is a 32-bit number of milliseconds.
LONGEST_IDLE_MS: Final = 2**31 - 1


def idle_timeout_ms(timeout: float, extra: float) -> str:
    """How many milliseconds the server waits for a silent handler before it ends the transaction.

    When a machine dies, its worker's locks are free after that time. A live worker times out earlier.
    """
    return str(min(LONGEST_IDLE_MS, int((timeout * 1.5 + extra) * 1000)))


class SlicePolicy(ABC):
    """How a runner goes through a list of events: from the log, as dead letters, or behind the bus.

    `strict`: an event that fails takes the events behind it of its aggregate along. `alone`: each event goes in a slice
    of its own, once `admit` lets it. `survives`: a slice can record its failures, and need not be undone by them.
    """

    strict = False
    alone = False
    survives = False

    @abstractmethod
    def begin(self, segment: Sequence[SliceItem]) -> Query:
        """Open a slice of these events."""

    @abstractmethod
    async def fail(self, item: SliceItem, failure: Failed, behind: list[SliceItem]) -> None:
        """An event failed whose slice was undone, and those behind it have to wait."""

    async def admit(self, item: SliceItem) -> Failed | None:
        """Asked before each event that goes alone; a failure rules the event out."""
        return None

    def finish(self, result: SliceResult) -> Iterable[Query]:
        """The last statements of a slice. They record the failures that it survived."""
        return ()

    async def committed(self, result: SliceResult) -> None:
        """A slice was committed."""
        return

    def stops(self, *, may_rest: bool) -> bool:
        """Whether to stop before the next slice.

        `may_rest`: an event has got to its end and no failure would be forgotten, so the next turn would not begin, and
        fail, in the same way.
        """
        return False


class Runner:
    """Runs slices of one consumer, at most `concurrency` at once.

    `server_started`: when the server that the events were read from was started; None if that does not matter.
    `quick`: no handler of the last slice took long. `early`: the next slice, if it was opened early.
    """

    def __init__(self, outbox: Outbox, consumer: Consumer, connections: ConsumerConnections) -> None:
        self.consumer = consumer
        self.server_started: datetime | None = None
        self.quick = False
        self._meter = outbox.meter
        self._statements = Statements(outbox.shape)
        self._executor = SliceExecutor(self._statements, consumer.timeout)
        self._connections = connections
        self._permit = connections.permit(outbox.schema)
        self._slots = asyncio.Semaphore(consumer.concurrency)
        self._pace = SlicePace()
        self._alone = False
        self.early = EarlySlice(self._executor, connections, self._slots, self._permit)

    def idle_timeout_ms(self, extra: float) -> str:
        """How many milliseconds the server waits for a silent handler of this consumer."""
        return idle_timeout_ms(self.consumer.timeout, extra)

    async def slice(
        self, items: Sequence[SliceItem], begin: Query, finish: Finish, *, survives: bool = False, guard_events: int = 0
    ) -> SliceResult:
        """Run one slice in one transaction, when it is its turn."""
        blocking = self.consumer.is_async is False
        steps = script(items, begin, finish, survives=survives, guard_events=guard_events)
        opened = await self.early.take(items, begin)
        if opened is not None:
            result = await self._executor.run(self._connections, steps, blocking=blocking, opened=opened)
        else:
            async with self._slots, self._permit:
                result = await self._executor.run(self._connections, steps, blocking=blocking)
        self.quick = not result.slow and not result.failures and not self._alone
        self._meter.on_consumed(self.consumer.name, "done", len(result.handled))
        skipped = len(items) - len(result.handled) - len(result.failures) - len(result.left)
        self._meter.on_consumed(self.consumer.name, "skipped", skipped)
        return result

    async def ask(self, name: str, parameters: dict[str, Any]) -> list[Any]:
        """The rows of a query about this consumer's events, on one of its connections."""
        await self.early.drop()
        async with self._slots, self._permit, self._connections.lend() as connection:
            return await (await connection.execute(self._statements[name], parameters)).fetchall()

    async def run(self, items: Sequence[SliceItem], policy: SlicePolicy) -> list[SliceItem]:
        """Handle all items in order; returns those that are left because the policy stopped or a slice was outdated."""
        alone = policy.alone or self._alone
        # A blocking handler that hangs takes the connection of its slice with it, and the calls before it would be
        # repeated.
        shares = policy.survives and self.consumer.is_async is not False
        walk = Walk(
            items, pace=self._pace, alone=alone, most_outside_calls=self.consumer.calls_per_commit if shares else 1
        )
        while walk.waiting:
            failure = walk.failure()
            if failure is not None:
                item, behind = walk.take(strict=policy.strict)
                await policy.fail(item, failure, behind)
                continue
            if policy.stops(may_rest=walk.may_rest) or not await self._advance(walk, policy):
                break
        return list(walk.waiting)

    async def _advance(self, walk: Walk, policy: SlicePolicy) -> bool:
        """Run the next slice; False when the rest has to be read again."""
        segment = walk.segment()
        ruled_out = await policy.admit(segment[0]) if policy.alone else None
        if ruled_out is not None:
            walk.blame(segment[0], ruled_out)
            return True
        guard_events = walk.guard_events if policy.survives else 0
        try:
            result = await self.slice(
                segment, policy.begin(segment), policy.finish, survives=policy.survives, guard_events=guard_events
            )
        except SliceOutdated:
            return False
        except SliceFailed as problem:
            if isinstance(problem.failure.error, ChangedSettings):
                # From now on each event has a transaction, and so settings, of its own.
                self._alone = True
                walk.go_alone()
                fields = {"consumer": self.consumer.name, "reason": str(problem.failure.error)}
                log_event(logger, logging.INFO, "events_handled_one_by_one", **fields)
            else:
                walk.failed(segment, problem, survives=policy.survives)
        except ConnectionLost as problem:
            # The runner deals with a lost connection; the service deals with a lost database.
            await self._connections.close()
            started = await self._connections.server_started()
            if started is None or (self.server_started is not None and started != self.server_started):
                # Another server may not have these events: they have to be read again.
                raise
            walk.lost(segment, problem)
        else:
            walk.done(result)
            await policy.committed(result)
        return True
