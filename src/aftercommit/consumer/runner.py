"""Takes a consumer through a list of events in slices, and isolates those that fail."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aftercommit.consumer.connections import ConsumerConnections
from aftercommit.consumer.conversation import ChangedSettings, ConnectionLost
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slice import Slice
from aftercommit.consumer.slice_executor import SliceExecutor
from aftercommit.consumer.slices import Query, SliceFailed, SliceItem, SliceOutdated
from aftercommit.consumer.walk import SlicePace, Walk
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.database import Database
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

# The server's limit is a 32-bit number of milliseconds.
LONGEST_IDLE_MS: Final = 2**31 - 1


class SlicePolicy(ABC):
    """How a runner goes through a list of events: from the log, as dead letters, or behind the bus.

    `strict`: an event that fails takes the events behind it of its aggregate along. `alone`: each event goes in a slice
    of its own, once `admit` lets it. `records`: a slice records its failures.
    """

    strict = False
    alone = False
    records = True

    @abstractmethod
    def begin(self, segment: Sequence[SliceItem]) -> Query:
        """Open a slice of these events."""

    @abstractmethod
    def finish(self, work: Slice, seconds: float) -> Iterable[Query]:
        """The last statements of a slice whose handlers took so long: they record what failed."""

    async def committed(self, work: Slice) -> None:
        """A slice was committed."""
        return

    async def admit(self, item: SliceItem) -> Failed | None:
        """Asked before each event that goes alone; a failure rules the event out."""
        return None

    def stops(self, *, may_rest: bool) -> bool:
        """Whether to stop before the next slice.

        `may_rest`: an event has got to its end and no failure would be forgotten, so the next turn would not begin, and
        fail, in the same way.
        """
        return False


class Runner:
    """Runs slices of one consumer, at most `concurrency` at once."""

    def __init__(self, outbox: Outbox, consumer: Consumer, database: Database) -> None:
        self.consumer = consumer
        self._meter = outbox.meter
        self._statements = Statements(outbox.shape)
        self._executor = SliceExecutor(self._statements, consumer.timeout, is_async=consumer.is_async is not False)
        self._connections = ConsumerConnections(database)
        self._slots = asyncio.Semaphore(consumer.concurrency)
        self.pace = SlicePace()
        self._alone = False

    async def close(self) -> None:
        """Close idle connections; new ones are opened when there is work again."""
        await self._connections.close()

    def idle_timeout_ms(self, extra: float) -> str:
        """How many milliseconds the server waits for a silent handler before it ends the transaction.

        When a machine dies, its worker's locks are free after that time. A live worker times out earlier.
        """
        return str(min(LONGEST_IDLE_MS, int((self.consumer.timeout * 1.5 + extra) * 1000)))

    async def slice(self, work: Slice, begin: Query, finish: Callable[[], Iterable[Query]]) -> None:
        """Run one slice in one transaction."""
        # A blocking handler that acts outside the transaction has a thread, but not the transaction's.
        blocking = self.consumer.is_async is False and not (work.items and work.items[0].outside)
        async with self._slots:
            script = work.script(begin, finish)
            handled = await self._executor.run(self._connections, script, blocking=blocking)
        self._meter.on_consumed(self.consumer.name, "done", handled)
        self._meter.on_consumed(self.consumer.name, "skipped", len(work.done) - handled)

    async def ask(self, name: str, parameters: dict[str, Any]) -> list[Any]:
        """The rows of a query about this consumer's events, on one of its connections."""
        async with self._slots, self._connections.lend() as connection:
            return await (await connection.execute(self._statements[name], parameters)).fetchall()

    async def run(
        self, items: Sequence[SliceItem], policy: SlicePolicy, pace: SlicePace | None = None
    ) -> list[SliceItem]:
        """Handle all items in order; returns those that are left because the policy stopped or a slice was outdated."""
        walk = Walk(
            items,
            pace=pace or self.pace,
            alone=policy.alone or self._alone,
            strict=policy.strict,
            apart=not self.consumer.inbox,
            most_outside_calls=self.consumer.calls_per_commit,
        )
        while walk.waiting:
            if policy.stops(may_rest=walk.may_rest) or not await self._advance(walk, policy):
                break
        return list(walk.waiting)

    async def _advance(self, walk: Walk, policy: SlicePolicy) -> bool:
        """Run the next slice; False when the rest has to be read again."""
        work = walk.next()
        if policy.alone and not work.failures and work.items[0].failure is None:
            ruled_out = await policy.admit(work.items[0])
            if ruled_out is not None:
                walk.blame(work.items[0], ruled_out)
                return True
        if work.only_failures and not policy.records:
            work.take_failures()
            walk.done(work, 0.0)
            await policy.committed(work)
            return True
        started = time.monotonic()
        try:
            await self.slice(work, policy.begin(work.items), lambda: policy.finish(work, time.monotonic() - started))
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
                walk.failed(work, problem)
        except ConnectionLost as problem:
            # The runner deals with a lost connection; the service deals with a lost database.
            await self._connections.close()
            if not await self._connections.still_connects():
                raise
            walk.lost(work, problem)
        else:
            walk.done(work, time.monotonic() - started)
            await policy.committed(work)
        return True
