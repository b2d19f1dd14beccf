"""The lease on a consumer's checkpoint. One worker holds it at a time; its token fences what the worker writes."""

import os
import socket
import time
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

from aftercommit.errors import LeaseLost
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

# Sent on the log's channel when a consumer is handed over, paused or resumed; other messages name a position.
CONSUMER_CHANGED: Final = "consumer"


@dataclass(frozen=True, slots=True)
class HeldLease:
    """The lease as it was taken or renewed.

    `died`: the worker before did not hand it over. `unfinished`: a counted start has not come to its end.
    `renewed`: this worker held it until now, so the checkpoint is where it left it.
    """

    position: int
    paused: bool
    died: bool
    unfinished: bool
    renewed: bool


class Lease:
    """The lease of one worker on one consumer. `paused`: whether the consumer was, when the lease was last seen."""

    def __init__(self, shape: Shape, consumer: Consumer, seconds: float) -> None:
        self.token: UUID = uuid4()
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        self._channel = shape.log_channel
        self._statements = Statements(shape)
        self._name = consumer.name
        known = list(consumer.registry)
        self._declared = {
            "declared_by": consumer.declared_by,
            "inbox": consumer.inbox,
            "types": [event_type.name for event_type in known],
            "versions": [event_type.version for event_type in known],
        }
        self._seconds = seconds
        self._renew_every, self._renew_at = seconds / 3, 0.0
        self.paused = False

    @property
    def is_young(self) -> bool:
        """Whether less than a third of its time is over."""
        return time.monotonic() < self._renew_at

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of every fenced statement."""
        return {"consumer": self._name, "token": self.token, "lease": self._seconds}

    async def take(self, connection: AsyncConnection) -> HeldLease | None:
        """Take or renew; None while another worker has it, or while a slice of our own locks the row."""
        self._renew_at = time.monotonic() + self._renew_every
        parameters = {**self.parameters, "worker": self.worker, **self._declared}
        row = await self._row(connection, "take_consumer", parameters)
        if row is None:
            return None
        held = HeldLease(*row)
        self.paused = held.paused
        return held

    async def renew(self, connection: AsyncConnection) -> None:
        """Renew while slices are at work, without waiting for them."""
        row = await self._row(connection, "renew_consumer", self.parameters)
        self.paused = bool(row is not None and row[0])

    async def move(self, connection: AsyncConnection, position: int) -> None:
        """Move the checkpoint past events that need no transaction of their own."""
        row = await self._row(connection, "move_checkpoint", {**self.parameters, "position": position})
        self.require(row is not None)

    async def count_start(self, connection: AsyncConnection, position: int) -> int:
        """Count a start of this event before it is handled; returns how many there were."""
        row = await self._row(connection, "suspect", {**self.parameters, "position": position})
        self.require(row is not None)
        return int(row[0])

    async def release(self, connection: AsyncConnection) -> None:
        """Hand over at once."""
        parameters = {**self.parameters, "channel": self._channel, "changed": CONSUMER_CHANGED}
        await connection.execute(self._statements["release_consumer"], parameters)

    def require(self, held: bool) -> None:
        """Raise LeaseLost unless the fence let the write through."""
        if not held:
            raise LeaseLost(f"another worker took over consumer {self._name!r}")

    async def _row(self, connection: AsyncConnection, name: str, parameters: dict[str, Any]) -> Any:
        return await (await connection.execute(self._statements[name], parameters, prepare=True)).fetchone()
