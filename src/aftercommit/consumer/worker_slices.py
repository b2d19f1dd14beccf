"""Slices of a worker that holds the lease of its consumer, and how it handles events of the log in order."""

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from aftercommit.consumer.dead_letters import DeadLetters, LetterDraft
from aftercommit.consumer.lease import Lease
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.runner import Runner, SlicePolicy
from aftercommit.consumer.slice import Aggregate, Slice
from aftercommit.consumer.slices import Query, SliceItem
from aftercommit.consumer.suspects import Suspects
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.arrays import uuid_array
from aftercommit.postgres.commits import AsyncConnection


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What the parts of one worker share.

    `proceeds`: whether it is neither stopping nor paused. `answered`: to be called when the database has answered.
    """

    consumer: Consumer
    lease: Lease
    lease_seconds: float
    runner: Runner
    letters: DeadLetters
    suspects: Suspects
    proceeds: Callable[[], bool]
    reach: Callable[..., Awaitable[None]]
    answered: Callable[[], None]

    @property
    def strict(self) -> bool:
        """Whether an event waits behind a failed one of its aggregate."""
        return self.consumer.ordering == "strict"

    @property
    def idle_timeout_ms(self) -> str:
        """How long the server waits for a silent handler."""
        return self.runner.idle_timeout_ms(self.lease_seconds)


class FencedSlices(SlicePolicy):
    """Goes on while the worker proceeds, for `max_seconds`; suspects go alone, and each start is counted.

    `blocked` and `slow`: the aggregates that failed (strict ordering), and those that took long.
    """

    def __init__(self, parts: WorkerParts, connection: AsyncConnection, max_seconds: float = math.inf) -> None:
        self.strict = parts.strict
        self.alone = parts.suspects.left > 0
        self.blocked: set[Aggregate] = set()
        self.slow: set[Aggregate] = set()
        self._parts = parts
        self._connection = connection
        self._until = time.monotonic() + max_seconds
        self._drafts: list[LetterDraft] = []

    async def admit(self, item: SliceItem) -> Failed | None:
        """Count the start of a suspect before it is handled."""
        return await self._parts.suspects.admit(self._connection, item.record)

    async def committed(self, work: Slice) -> None:
        """Say what failed."""
        self.blocked.update(work.blocked_aggregates)
        self.slow |= work.slow_aggregates
        drafts, self._drafts = self._drafts, []
        self._parts.letters.tell(drafts)

    def stops(self, *, may_rest: bool) -> bool:
        """Stop as soon as the worker does, or when the time is over."""
        return not self._parts.proceeds() or (may_rest and time.monotonic() > self._until)


async def handle_in_order(
    parts: WorkerParts, connection: AsyncConnection, items: list[SliceItem], position: int, upto: int
) -> tuple[int, int]:
    """Handle the events after `position`; returns how many are left, and how far the checkpoint has come."""
    if parts.strict and items:
        items = await parts.letters.set_aside(connection, items, position)
    left = await parts.runner.run(items, LogSlices(parts, connection))
    parts.suspects.passed(len(items) - len(left))
    reached = left[0].position - 1 if left else upto
    # Each slice has moved the checkpoint itself.
    if parts.strict or left or not items or items[-1].position != reached:
        await parts.lease.move(connection, reached)
    return len(left), reached


class LogSlices(FencedSlices):
    """New events. In order, each slice moves the checkpoint; side by side, it stays."""

    def __init__(
        self,
        parts: WorkerParts,
        connection: AsyncConnection,
        max_seconds: float = math.inf,
        *,
        side_by_side: bool = False,
    ) -> None:
        super().__init__(parts, connection, max_seconds)
        self._side_by_side = side_by_side

    def begin(self, segment: Sequence[SliceItem]) -> Query:
        """Open the slice: fence, checkpoint, inbox."""
        ids = uuid_array(item.record.event_id for item in segment)
        parameters = {**self._parts.lease.parameters, "ids": ids, "patience": self._parts.idle_timeout_ms}
        if self._side_by_side:
            return Query("begin_shared_slice", parameters, prepared=True)
        name = "begin_slice" if self._parts.consumer.inbox else "begin_slice_without_inbox"
        return Query(name, {**parameters, "position": segment[-1].record.position}, prepared=True)

    def finish(self, work: Slice, seconds: float) -> Iterable[Query]:
        """Write the letters of what failed."""
        if work.failures:
            self._drafts = self._parts.letters.drafts(work)
            yield self._parts.letters.failing(work, self._drafts)
        # In order, a slice renews the lease when it begins; a long one does it again, or a standby would take over.
        if not self._side_by_side and seconds > self._parts.lease_seconds / 3:
            yield Query("renew_slice", self._parts.lease.parameters)

    async def committed(self, work: Slice) -> None:
        """Say what failed."""
        await super().committed(work)
        for item, _ in work.failed:
            await self._parts.reach("consumer.failed", position=item.position)
