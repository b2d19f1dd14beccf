"""The leases on the checkpoints of consumers. One worker holds a lease at a time; its token fences what it writes."""

import os
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from aftercommit.errors import LeaseLost
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.statements import Statements

# Sent on the log's channel when a consumer is handed over, paused or resumed; other messages name a position.
CONSUMER_CHANGED: Final = "consumer"


class HeldLease(NamedTuple):
    """A lease that was taken.

    `died`: the worker before did not hand it over. `unfinished`: a counted start has not come to its end.
    `renewed`: this worker held it until now, so the checkpoint is where it left it.
    """

    position: int
    paused: bool
    died: bool
    unfinished: bool
    renewed: bool


class ConsumerStatus(NamedTuple):
    """What there is to do for a consumer: whether a letter is due or any is open, and where the log ends.

    `checkpoint`: as stored. `due_in`: seconds until the next letter is due. `events` were ever in the log, and the
    consumer still has to handle `lag` of them; unused positions do not count.
    """

    held: bool
    paused: bool
    checkpoint: int
    any_due: bool
    any_open: bool
    due_in: float | None
    head: int
    events: int
    lag: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of one consumer, held by one worker for `seconds` at a time."""

    statements: Statements
    consumer: Consumer
    token: UUID
    seconds: float

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of every fenced statement."""
        return {"consumer": self.consumer.name, "token": self.token, "lease": self.seconds}

    async def move(self, connection: AsyncConnection, position: int) -> None:
        """Move the checkpoint past events that need no transaction of their own."""
        self.require(await self._row(connection, "move_checkpoint", position) is not None)

    async def count_start(self, connection: AsyncConnection, position: int) -> int:
        """Count a start of this event before it is handled; returns how many there were."""
        row = await self._row(connection, "suspect", position)
        self.require(row is not None)
        return int(row[0])

    def require(self, held: bool) -> None:
        """Raise LeaseLost unless the fence let the write through."""
        if not held:
            raise LeaseLost(f"another worker took over consumer {self.consumer.name!r}")

    async def _row(self, connection: AsyncConnection, name: str, position: int) -> Any:
        asked = {**self.parameters, "position": position}
        return await (await connection.execute(self.statements[name], asked, prepare=True)).fetchone()


class Leases:
    """The leases of all consumers of one worker: taken, renewed and asked about in one statement each."""

    def __init__(self, outbox: Outbox, consumers: Sequence[Consumer], seconds: float) -> None:
        self.token: UUID = uuid4()
        self.seconds = seconds
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        self._outbox = outbox
        self._consumers = {consumer.name: consumer for consumer in consumers}
        self._statements = Statements(outbox.shape)
        self._renew_at = 0.0

    @property
    def seconds_to_renewal(self) -> float:
        """How long until the leases have to be renewed: when a third of their time is over."""
        return max(0.0, self._renew_at - time.monotonic())

    def of(self, consumer: Consumer) -> Lease:
        """The lease of one consumer."""
        return Lease(self._statements, consumer, self.token, self.seconds)

    async def take(self, connection: AsyncConnection, names: Collection[str]) -> dict[str, HeldLease]:
        """Take these; those are missing that another worker has, or that a slice of our own locks."""
        self._renew_at = time.monotonic() + self.seconds / 3
        chosen = [self._consumers[name] for name in names]
        known = list(self._outbox.registry)
        parameters = {
            "consumers": [consumer.name for consumer in chosen],
            "declared_by": [consumer.declared_by for consumer in chosen],
            "inbox": [consumer.inbox for consumer in chosen],
            "token": self.token,
            "worker": self.worker,
            "lease": self.seconds,
            "types": [event_type.name for event_type in known],
            "versions": [event_type.version for event_type in known],
        }
        rows = await (await connection.execute(self._statements["take_consumers"], parameters)).fetchall()
        taken = {name: HeldLease(*held) for name, *held in rows}
        if taken:
            # Events that older code parked because it did not know their version are tried again.
            await connection.execute(self._statements["take_up_newer"], {**parameters, "consumers": list(taken)})
        return taken

    async def renew(self, connection: AsyncConnection, names: Collection[str]) -> dict[str, ConsumerStatus]:
        """Renew these without waiting for slices at work, and look what there is to do."""
        self._renew_at = time.monotonic() + self.seconds / 3
        return await self._ask(connection, "renew_consumers", names)

    async def look(self, connection: AsyncConnection, names: Collection[str]) -> dict[str, ConsumerStatus]:
        """Look what there is to do."""
        return await self._ask(connection, "consumer_status", names)

    async def release(self, connection: AsyncConnection) -> None:
        """Hand all consumers over at once."""
        parameters = {
            "consumers": list(self._consumers),
            "token": self.token,
            "channel": self._outbox.shape.log_channel,
            "changed": CONSUMER_CHANGED,
        }
        await connection.execute(self._statements["release_consumers"], parameters)

    async def _ask(
        self, connection: AsyncConnection, statement: str, names: Collection[str]
    ) -> dict[str, ConsumerStatus]:
        parameters = {
            "consumers": list(names),
            "strict": [self._consumers[name].ordering == "strict" for name in names],
            "token": self.token,
            "lease": self.seconds,
        }
        cursor = await connection.execute(self._statements[statement], parameters, prepare=True)
        return {name: ConsumerStatus(*status) for name, *status in await cursor.fetchall()}
