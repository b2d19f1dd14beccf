"""Slices of a worker that holds the lease of its consumer, and how it handles a page of the log in order."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aftercommit.consumer.dead_letters import DeadLetters, LetterDraft
from aftercommit.consumer.host import Host
from aftercommit.consumer.lease import Lease
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.runner import Runner, SlicePolicy
from aftercommit.consumer.slices import Query, SliceItem, SliceResult
from aftercommit.consumer.suspects import Suspects
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.arrays import text_array, uuid_array
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.records import FEW_EVENTS
from aftercommit.relay.transport import Untried


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What the parts of one consumer's worker share."""

    consumer: Consumer
    lease: Lease
    runner: Runner
    letters: DeadLetters
    suspects: Suspects
    host: Host

    @property
    def strict(self) -> bool:
        """Whether an event waits behind a failed one of its aggregate."""
        return self.consumer.ordering == "strict"

    @property
    def idle_timeout_ms(self) -> str:
        """How long the server waits for a silent handler."""
        return self.runner.idle_timeout_ms(self.lease.seconds)


class FencedSlices(SlicePolicy):
    """Goes on while the worker proceeds, and for `max_seconds`; suspects go alone, and each start is counted."""

    def __init__(self, parts: WorkerParts, connection: AsyncConnection, max_seconds: float | None = None) -> None:
        self.strict = parts.strict
        self.alone = parts.suspects.left > 0
        self._drafts: list[LetterDraft] = []
        self._parts = parts
        self._connection = connection
        self._until = None if max_seconds is None else time.monotonic() + max_seconds

    async def admit(self, item: SliceItem) -> Failed | None:
        """Count the start of a suspect before it is handled."""
        return await self._parts.suspects.admit(self._connection, item.record)

    def stops(self, *, may_rest: bool) -> bool:
        """Stop as soon as the worker does, or when the time is over."""
        is_late = may_rest and self._until is not None and time.monotonic() > self._until
        return is_late or not self._parts.host.proceeds()

    def opening(self, segment: Sequence[SliceItem]) -> dict[str, Any]:
        """Parameters of the statement that opens a slice of new events."""
        opening = {**self._parts.lease.parameters, "patience": self._parts.idle_timeout_ms}
        if self._parts.consumer.inbox:
            opening["ids"] = uuid_array(item.record.event_id for item in segment)
        return opening

    def failing(self, result: SliceResult) -> Iterable[Query]:
        """Write the letters of events that failed in a slice of new events, in that slice."""
        if result.failures:
            letters = self._parts.letters
            self._drafts = [letters.draft(item.record, failure, 1) for item, failure in result.failed]
            yield letters.failing(self._drafts)

    async def committed(self, result: SliceResult) -> None:
        """Say what failed."""
        drafts, self._drafts = self._drafts, []
        self._parts.letters.tell(drafts)
        for item, _ in result.failed:
            await self._parts.host.reach("consumer.failed", position=item.position)

    async def record(self, item: SliceItem, failure: Failed, behind: Sequence[SliceItem], position: int) -> None:
        """Write the letters of a failed event and of those behind it, and move the checkpoint to `position`."""
        # Written at once: an overtaken event has a letter before the checkpoint passes it, even if the worker dies.
        letters = self._parts.letters.letters(item, failure, behind)
        await self._parts.letters.record(self._connection, letters, position)
        await self._parts.host.reach("consumer.failed", position=item.position)


def open_early(parts: WorkerParts, position: int, untried: Untried) -> None:
    """Begin to open a slice for events of the outbox that a relay appends: they may come next after `position`."""
    consumer = parts.consumer
    if not consumer.inbox or parts.strict or parts.suspects.left or consumer.is_async is False:
        return
    if consumer.concurrency == consumer.lanes == 1:
        opening = {
            **parts.lease.parameters,
            **untried._asdict(),
            "patience": parts.idle_timeout_ms,
            "after": position,
            "types": None if consumer.types is None else text_array(consumer.types),
            "few": FEW_EVENTS,
        }
        parts.runner.early.open(Query("begin_slice_early", opening, prepared=True), replaces="begin_slice")


async def handle_in_order(
    parts: WorkerParts, connection: AsyncConnection, items: list[SliceItem], position: int, upto: int
) -> tuple[int, int]:
    """Handle the events after `position`; returns how many are left, and how far the checkpoint has come."""
    if not items:
        # It has the row of the consumer, which is written below.
        await parts.runner.early.drop()
    if parts.strict and items:
        items = await parts.letters.set_aside(connection, items, position)
    left = await parts.runner.run(items, _InOrder(parts, connection))
    parts.suspects.passed(len(items) - len(left))
    reached = left[0].position - 1 if left else upto
    # Each slice has moved the checkpoint itself.
    if parts.strict or left or not items or items[-1].position != reached:
        await parts.lease.move(connection, reached)
    return len(left), reached


class _InOrder(FencedSlices):
    """New events, one after the other. Each slice moves the checkpoint."""

    def __init__(self, parts: WorkerParts, connection: AsyncConnection) -> None:
        super().__init__(parts, connection)
        # Without an inbox nothing tells events apart that a handler has committed in the middle of a slice.
        self.survives = not parts.strict and parts.consumer.inbox

    def begin(self, segment: Sequence[SliceItem]) -> Query:
        name = "begin_slice" if self._parts.consumer.inbox else "begin_slice_without_inbox"
        return Query(name, {**self.opening(segment), "position": segment[-1].position}, prepared=True)

    def finish(self, result: SliceResult) -> Iterable[Query]:
        yield from self.failing(result)
        # A slice renews the lease when it begins; a long one does it again, or a standby would take over.
        if result.seconds > self._parts.lease.seconds / 3:
            yield Query("renew_slice", self._parts.lease.parameters)

    async def fail(self, item: SliceItem, failure: Failed, behind: list[SliceItem]) -> None:
        await self.record(item, failure, behind, item.position)
