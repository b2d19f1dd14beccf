"""Takes a consumer through a list of events in slices, and isolates those that fail."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from aftercommit.consumer.connections import ConsumerConnections
from aftercommit.consumer.conversation import ChangedSettings, ConnectionLost
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slice_executor import SliceExecutor
from aftercommit.consumer.slices import End, Query, SliceFailed, SliceItem, SliceOutdated, script
from aftercommit.consumer.walk import FIRST, Walk
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

# The server's limit is a 32-bit number of milliseconds.
LONGEST_IDLE_MS: Final = 2**31 - 1


class SlicePolicy(ABC):
    """How a runner goes through a list of events: from the log, as dead letters, or behind the bus.

    `strict`: an event that fails takes the events behind it of its aggregate along. `alone`: each event goes in a slice
    of its own, once `admit` lets it.
    """

    strict = False
    alone = False

    @abstractmethod
    def begin(self, segment: Sequence[SliceItem]) -> Query:
        """Open a slice of these events."""

    @abstractmethod
    async def fail(self, item: SliceItem, failure: Failed, behind: list[SliceItem]) -> None:
        """An event failed, and those behind it have to wait."""

    async def admit(self, item: SliceItem) -> Failed | None:
        """Asked before each event that goes alone; a failure rules the event out."""
        return None

    def end(self, segment: Sequence[SliceItem], seconds: float) -> Query | None:
        """The last statement of a slice whose handlers took so long."""
        return None

    def committed(self, segment: Sequence[SliceItem], handled: int) -> None:
        """A slice was committed; so many of its events were handled, the others skipped."""
        return

    def stops(self, *, may_rest: bool) -> bool:
        """Whether to stop before the next slice.

        `may_rest`: an event has got to its end and no failure would be forgotten, so the next turn would not begin, and
        fail, in the same way.
        """
        return False


class Runner:
    """Runs slices of one consumer, at most `concurrency` at once."""

    def __init__(self, outbox: Outbox, consumer: Consumer, connections: ConsumerConnections) -> None:
        self.consumer = consumer
        self._meter = outbox.meter
        self._statements = Statements(outbox.shape)
        self._executor = SliceExecutor(self._statements, consumer.timeout)
        self._connections = connections
        self._slots = asyncio.Semaphore(consumer.concurrency)
        self._pace = FIRST
        self._alone = False

    def idle_timeout_ms(self, extra: float) -> str:
        """How many milliseconds the server waits for a silent handler before it ends the transaction.

        When a machine dies, its worker's locks are free after that time. A live worker times out earlier.
        """
        return str(min(LONGEST_IDLE_MS, int((self.consumer.timeout * 1.5 + extra) * 1000)))

    async def slice(self, items: Sequence[SliceItem], begin: Query, end: End) -> int:
        """Run one slice in one transaction; returns how many of its events were handled and not skipped."""
        blocking = self.consumer.is_async is False
        async with self._slots, self._connections.permit:
            handled = await self._executor.run(self._connections, script(items, begin, end), blocking=blocking)
        self._meter.on_consumed(self.consumer.name, "done", handled)
        self._meter.on_consumed(self.consumer.name, "skipped", len(items) - handled)
        return handled

    async def ask(self, name: str, parameters: dict[str, Any]) -> list[Any]:
        """The rows of a query about this consumer's events, on one of its connections."""
        async with self._slots, self._connections.permit, self._connections.lend() as connection:
            return await (await connection.execute(self._statements[name], parameters)).fetchall()

    async def run(self, items: Sequence[SliceItem], policy: SlicePolicy) -> list[SliceItem]:
        """Handle all items in order; returns those that are left because the policy stopped or a slice was outdated."""
        alone = policy.alone or self._alone
        walk = Walk(items, alone=alone, slice_size=self._pace)
        while walk.waiting:
            failure = walk.failure()
            if failure is not None:
                item, behind = walk.take(strict=policy.strict)
                await policy.fail(item, failure, behind)
                continue
            if policy.stops(may_rest=walk.may_rest) or not await self._advance(walk, policy):
                break
        if not alone:
            self._pace = walk.size
        return list(walk.waiting)

    async def _advance(self, walk: Walk, policy: SlicePolicy) -> bool:
        """Run the next slice; False when the rest has to be read again."""
        segment = walk.segment()
        ruled_out = await policy.admit(segment[0]) if policy.alone else None
        if ruled_out is not None:
            walk.blame(segment[0], ruled_out)
            return True
        started = time.monotonic()
        try:
            handled = await self.slice(
                segment, policy.begin(segment), lambda: policy.end(segment, time.monotonic() - started)
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
                walk.failed(segment, problem)
        except ConnectionLost as problem:
            # The runner deals with a lost connection; the service deals with a lost database.
            await self._connections.close()
            if not await self._connections.still_connects():
                raise
            walk.lost(segment, problem)
        else:
            policy.committed(segment, handled)
            walk.done(segment, time.monotonic() - started)
        return True
