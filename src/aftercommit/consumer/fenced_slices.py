"""Slices of a worker that holds the lease of its consumer: what new events and dead letters have in common."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aftercommit.consumer.dead_letters import DeadLetters
from aftercommit.consumer.lease import Lease
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.runner import Runner, SlicePolicy
from aftercommit.consumer.slices import SliceItem
from aftercommit.consumer.suspects import Suspects
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.commits import AsyncConnection


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
