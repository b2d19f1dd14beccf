"""Who works for a consumer: the lease on its checkpoint. One worker holds it, its token fences what it writes."""

import os
import socket
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg

from aftercommit.errors import LeaseLost
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

# What the log's channel says when a consumer was handed over, paused or resumed; otherwise it names a position.
CONSUMER_CHANGED: Final = "consumer"


@dataclass(frozen=True, slots=True)
class HeldLease:
    """The lease as it was taken or renewed.

    `died`: the one before us did not hand it over. `unfinished`: a start was counted that never came to an end.
    `renewed`: it was ours until now, so the checkpoint is where we left it.
    """

    position: int
    paused: bool
    died: bool
    unfinished: bool
    renewed: bool


class Lease:
    """The lease of one worker on one consumer."""

    def __init__(self, shape: Shape, consumer: Consumer, seconds: float) -> None:
        """Not taken."""
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

    @property
    def parameters(self) -> dict[str, Any]:
        """What every fenced statement is given."""
        return {"consumer": self._name, "token": self.token, "lease": self._seconds}

    async def take(self, connection: psycopg.AsyncConnection[Any]) -> HeldLease | None:
        """Take or renew; None while somebody has it, or while a slice of our own holds the row."""
        parameters = {**self.parameters, "worker": self.worker, **self._declared}
        row = await self._row(connection, "take_consumer", parameters)
        return HeldLease(*row) if row is not None else None

    async def renew(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Renew while slices are at work, without waiting for them; tells whether the consumer is paused now."""
        row = await self._row(connection, "renew_consumer", self.parameters)
        return bool(row is not None and row[0])

    async def move(self, connection: psycopg.AsyncConnection[Any], position: int) -> None:
        """Move the checkpoint past events that need no transaction of their own."""
        row = await self._row(connection, "move_checkpoint", {**self.parameters, "position": position})
        self.require(row is not None)

    async def count_start(self, connection: psycopg.AsyncConnection[Any], position: int) -> int:
        """Count that handling of this event is begun, before it is; returns how often that was."""
        row = await self._row(connection, "suspect", {**self.parameters, "position": position})
        self.require(row is not None)
        return int(row[0])

    async def release(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Hand over at once."""
        parameters = {**self.parameters, "channel": self._channel, "changed": CONSUMER_CHANGED}
        await connection.execute(self._statements["release_consumer"], parameters)

    def require(self, held: bool) -> None:
        """LeaseLost unless the fence let us through."""
        if not held:
            raise LeaseLost(f"consumer {self._name!r} was taken over by another worker")

    async def _row(self, connection: psycopg.AsyncConnection[Any], name: str, parameters: dict[str, Any]) -> Any:
        return await (await connection.execute(self._statements[name], parameters, prepare=True)).fetchone()
