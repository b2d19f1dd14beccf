"""Takes a consumer through a list of events in slices, and isolates the ones that fail."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aftercommit.consumer.connections import ConsumerConnections
from aftercommit.consumer.conversation import ChangedSettings, ConnectionLost
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slice_executor import SliceExecutor
from aftercommit.consumer.slices import End, Query, SliceFailed, SliceItem, SliceOutdated, no_end, script
from aftercommit.consumer.walk import FIRST, Walk
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.database import Database
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

# The server's limit is a 32-bit number of milliseconds.
LONGEST_IDLE_MS: Final = 2**31 - 1


def _nothing(seconds: float) -> Query | None:
    return None


def _always() -> bool:
    return True


def _unheard(events: int, handled: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class SlicePolicy:
    """How a list of events is gone through.

    `begin` opens a slice; `end` may close it, told how long it took. `on_failure` gets an event that failed and,
    under strict ordering, those behind it. `first` is asked before each event, which then goes alone, and may rule
    it out. `proceed` says between slices whether to go on. `has_time` does so, too, but lets at least one event get to
    its end, and whatever a failed slice has shown: or the next turn would begin, and fail, in the same way. `on_slice`
    hears of each that was committed: how many events it had, and how many were handled and not skipped.
    """

    begin: Callable[[Sequence[SliceItem]], Query]
    on_failure: Callable[[SliceItem, Failed, list[SliceItem]], Awaitable[None]]
    end: Callable[[float], Query | None] = _nothing
    first: Callable[[SliceItem], Awaitable[Failed | None]] | None = None
    proceed: Callable[[], bool] = _always
    has_time: Callable[[], bool] = _always
    strict: bool = False
    on_slice: Callable[[int, int], None] = _unheard


class Runner:
    """Runs slices of one consumer, at most `concurrency` at once."""

    def __init__(self, outbox: Outbox, consumer: Consumer, database: Database) -> None:
        """Nothing connected."""
        self.consumer = consumer
        self._meter = outbox.meter
        self._statements = Statements(outbox.shape)
        self._executor = SliceExecutor(self._statements, consumer.timeout)
        self._connections = ConsumerConnections(database)
        self._slots = asyncio.Semaphore(consumer.concurrency)
        self._pace = FIRST
        self._alone = False

    async def close(self) -> None:
        """Close idle connections; new ones are opened when there is work again."""
        await self._connections.close()

    def idle_timeout_ms(self, extra: float) -> str:
        """How many milliseconds the server waits for a silent handler before it ends the transaction.

        A worker whose machine is gone holds its locks no longer than that; a live one times out earlier.
        """
        return str(min(LONGEST_IDLE_MS, int((self.consumer.timeout * 1.5 + extra) * 1000)))

    async def slice(self, items: Sequence[SliceItem], begin: Query, end: End = no_end) -> int:
        """One slice in one transaction."""
        blocking = self.consumer.is_async is False
        async with self._slots:
            handled = await self._executor.run(self._connections, script(items, begin, end), blocking=blocking)
        self._meter.on_consumed(self.consumer.name, "done", handled)
        self._meter.on_consumed(self.consumer.name, "skipped", len(items) - handled)
        return handled

    async def ask(self, name: str, parameters: dict[str, Any]) -> list[Any]:
        """The rows of a question about this consumer's events, on a connection of its own."""
        async with self._slots, self._connections.lend() as connection:
            return await (await connection.execute(self._statements[name], parameters)).fetchall()

    async def run(self, items: Sequence[SliceItem], policy: SlicePolicy) -> list[SliceItem]:
        """All items in order; returns those that are left when it was told not to proceed, or that are outdated."""
        alone = policy.first is not None or self._alone
        walk = Walk(items, alone=alone, slice_size=self._pace)
        while walk.waiting:
            failure = walk.failure()
            if failure is not None:
                item, behind = walk.take(strict=policy.strict)
                await policy.on_failure(item, failure, behind)
                continue
            rests = not policy.proceed() or (walk.may_rest and not policy.has_time())
            if rests or not await self._advance(walk, policy):
                break
        if not alone:
            self._pace = walk.size
        return list(walk.waiting)

    async def _advance(self, walk: Walk, policy: SlicePolicy) -> bool:
        """The next slice; False when the rest has to be read again."""
        segment = walk.segment()
        ruled_out = await policy.first(segment[0]) if policy.first is not None else None
        if ruled_out is not None:
            walk.blame(segment[0], ruled_out)
            return True
        started = time.monotonic()
        try:
            handled = await self.slice(segment, policy.begin(segment), lambda: policy.end(time.monotonic() - started))
        except SliceOutdated:
            return False
        except SliceFailed as problem:
            if isinstance(problem.failure.error, ChangedSettings):
                self._go_alone(problem.failure.error)
                walk.go_alone()
            else:
                walk.failed(segment, problem)
        except ConnectionLost as problem:
            # One connection is this slice's matter; the whole database is the service's.
            await self._connections.close()
            if not await self._connections.still_connects():
                raise
            walk.lost(segment, problem)
        else:
            policy.on_slice(len(segment), handled)
            walk.done(segment, time.monotonic() - started)
        return True

    def _go_alone(self, problem: ChangedSettings) -> None:
        """From now on each event has a transaction, and so settings, of its own."""
        self._alone = True
        log_event(logger, logging.INFO, "events_handled_one_by_one", consumer=self.consumer.name, reason=str(problem))
