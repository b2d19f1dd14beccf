"""Slices of a worker that holds the lease of its consumer, and how it handles a page of the log in them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aftercommit.consumer.dead_letters import DeadLetters
from aftercommit.consumer.lease import Lease
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.runner import Runner, SlicePolicy
from aftercommit.consumer.slices import Query, SliceItem
from aftercommit.consumer.suspects import Suspects
from aftercommit.consumer.walk import by_aggregate
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.arrays import uuid_array
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.service import finish_all


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What the parts of one worker share. `proceeds`: whether it is neither stopping nor paused."""

    consumer: Consumer
    lease: Lease
    lease_seconds: float
    runner: Runner
    letters: DeadLetters
    suspects: Suspects
    proceeds: Callable[[], bool]
    reach: Callable[..., Awaitable[None]]

    @property
    def strict(self) -> bool:
        """Whether an event waits behind a failed one of its aggregate."""
        return self.consumer.ordering == "strict"

    @property
    def idle_timeout_ms(self) -> str:
        """How long the server waits for a silent handler."""
        return self.runner.idle_timeout_ms(self.lease_seconds)


class FencedSlices(SlicePolicy):
    """Goes on while the worker proceeds; suspects go alone, and each start is counted."""

    def __init__(self, parts: WorkerParts, connection: AsyncConnection) -> None:
        self.strict = parts.strict
        self.alone = parts.suspects.left > 0
        self._parts = parts
        self._connection = connection

    async def admit(self, item: SliceItem) -> Failed | None:
        """Count the start of a suspect before it is handled."""
        return await self._parts.suspects.admit(self._connection, item.record)

    def stops(self, *, may_rest: bool) -> bool:
        """Stop as soon as the worker does."""
        return not self._parts.proceeds()


async def handle_page(
    parts: WorkerParts, connection: AsyncConnection, items: list[SliceItem], position: int, upto: int
) -> tuple[int, int]:
    """Handle the events after `position`; returns how many are left, and how far the checkpoint has come."""
    concurrency = parts.consumer.concurrency
    if parts.strict and items:
        items = await parts.letters.set_aside(connection, items, position)
    if concurrency == 1 or parts.suspects.left > 0:
        left = await parts.runner.run(items, _LogSlices(parts, connection))
        parts.suspects.passed(len(items) - len(left))
    else:
        policy = _LogSlices(parts, connection, shared_from=position)
        lefts = await finish_all(parts.runner.run(group, policy) for group in by_aggregate(items, concurrency))
        left = sorted((item for group in lefts for item in group), key=lambda item: item.record.position or 0)
    reached = (left[0].record.position or 0) - 1 if left else upto
    in_step = concurrency == 1 and not parts.strict and not left and bool(items)
    # One after the other, each slice has moved the checkpoint itself.
    if not in_step or items[-1].record.position != reached:
        await parts.lease.move(connection, reached)
    return len(left), reached


class _LogSlices(FencedSlices):
    """New events. In order, each slice moves the checkpoint; side by side, it stays at `shared_from`."""

    def __init__(self, parts: WorkerParts, connection: AsyncConnection, shared_from: int | None = None) -> None:
        super().__init__(parts, connection)
        self._shared_from = shared_from

    def begin(self, segment: Sequence[SliceItem]) -> Query:
        ids = uuid_array(item.record.event_id for item in segment)
        parameters = {**self._parts.lease.parameters, "ids": ids, "patience": self._parts.idle_timeout_ms}
        if self._shared_from is not None:
            return Query("begin_shared_slice", parameters, prepared=True)
        name = "begin_slice" if self._parts.consumer.inbox else "begin_slice_without_inbox"
        return Query(name, {**parameters, "position": segment[-1].record.position}, prepared=True)

    def end(self, segment: Sequence[SliceItem], seconds: float) -> Query | None:
        # In order, a slice renews the lease when it begins; a long one does it again, or a standby would take over.
        is_late = self._shared_from is None and seconds > self._parts.lease_seconds / 3
        return Query("renew_slice", self._parts.lease.parameters) if is_late else None

    async def fail(self, item: SliceItem, failure: Failed, behind: list[SliceItem]) -> None:
        # Written at once: an overtaken event has a letter before the checkpoint passes it, even if the worker dies.
        position = (item.record.position or 0) if self._shared_from is None else self._shared_from
        letters = self._parts.letters.letters(item, failure, behind)
        await self._parts.letters.record(self._connection, letters, position)
        await self._parts.reach("consumer.failed", position=item.record.position)
