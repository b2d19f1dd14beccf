"""The leases on the checkpoints of consumers. One worker holds a lease at a time; its token fences what it writes."""

import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
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
    `renewed`: this worker held it until now, so the checkpoint is where it left it. `server_started`: tells servers
    apart.
    """

    position: int
    paused: bool
    died: bool
    unfinished: bool
    renewed: bool
    server_started: datetime


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
    """The lease of one consumer, or of one of its lanes, held by one worker for `seconds` at a time."""

    statements: Statements
    consumer: Consumer
    token: UUID
    seconds: float
    lane: int = 0

    @property
    def name(self) -> str:
        """The name of the row with the checkpoint."""
        return self.consumer.name if self.consumer.lanes == 1 else f"{self.consumer.name}#{self.lane}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of every fenced statement, and of those about the letters of the lane."""
        return {
            "consumer": self.consumer.name,
            "checkpoint": self.name,
            "lane": self.lane,
            "lanes": self.consumer.lanes,
            "token": self.token,
            "lease": self.seconds,
        }

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
            raise LeaseLost(f"another worker took over consumer {self.name!r}")

    async def _row(self, connection: AsyncConnection, name: str, position: int) -> Any:
        asked = {**self.parameters, "position": position}
        return await (await connection.execute(self.statements[name], asked, prepare=True)).fetchone()


class Leases:
    """The leases of all consumers of one worker: taken, renewed and asked about in one statement each.

    `all`: by name. A consumer that is divided has one for each lane.
    """

    def __init__(self, outbox: Outbox, consumers: Sequence[Consumer], seconds: float) -> None:
        self.token: UUID = uuid4()
        self.seconds = seconds
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        self._outbox = outbox
        self._statements = Statements(outbox.shape)
        made = (
            Lease(self._statements, each, self.token, seconds, lane) for each in consumers for lane in range(each.lanes)
        )
        self.all = {lease.name: lease for lease in made}
        self._divided = {consumer.name: consumer.lanes for consumer in consumers if consumer.lanes > 1}
        self._news = {"channel": outbox.shape.log_channel, "changed": CONSUMER_CHANGED}
        self._renew_at = 0.0

    @property
    def seconds_to_renewal(self) -> float:
        """How long until the leases have to be renewed: when a third of their time is over."""
        return max(0.0, self._renew_at - time.monotonic())

    async def share(self, connection: AsyncConnection) -> dict[str, int]:
        """How many lanes of each divided consumer are ours; those are missing that are divided in another way."""
        if not self._divided:
            return {}
        asked = {"consumers": list(self._divided), "lanes": list(self._divided.values()), **self._mine, **self._news}
        rows = await (await connection.execute(self._statements["share_lanes"], asked)).fetchall()
        return {name: share for name, share, _ in rows}

    async def take(
        self, connection: AsyncConnection, names: Collection[str], room: Mapping[str, int]
    ) -> dict[str, HeldLease]:
        """Take these, of a divided consumer as many lanes as there is `room` for.

        Those are missing that another worker has, or that a slice of our own locks.
        """
        self._renew_at = time.monotonic() + self.seconds / 3
        chosen = [self.all[name].consumer for name in names]
        known = list(self._outbox.registry)
        parameters = {
            "checkpoints": list(names),
            "declared_by": [consumer.declared_by for consumer in chosen],
            "inbox": [consumer.inbox for consumer in chosen],
            "lanes": [consumer.lanes for consumer in chosen],
            "room": [room.get(consumer.name, 1 if consumer.lanes == 1 else 0) for consumer in chosen],
            **self._mine,
            "types": [event_type.name for event_type in known],
            "versions": [event_type.version for event_type in known],
        }
        rows = await (await connection.execute(self._statements["take_consumers"], parameters)).fetchall()
        taken = {name: HeldLease(*held) for name, *held in rows}
        if taken:
            # Events that older code parked because it did not know their version are tried again.
            whose = list({self.all[name].consumer.name for name in taken})
            await connection.execute(self._statements["take_up_newer"], {**parameters, "consumers": whose})
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
        asked = {"checkpoints": list(self.all), "consumers": list(self._divided), "token": self.token, **self._news}
        await connection.execute(self._statements["release_consumers"], asked)

    async def hand_over(self, connection: AsyncConnection, names: Collection[str]) -> None:
        """Give these lanes to workers that have too few."""
        asked = {"checkpoints": list(names), "token": self.token, **self._news}
        await connection.execute(self._statements["hand_over_lanes"], asked)

    @property
    def _mine(self) -> dict[str, Any]:
        return {"token": self.token, "worker": self.worker, "lease": self.seconds}

    async def _ask(
        self, connection: AsyncConnection, statement: str, names: Collection[str]
    ) -> dict[str, ConsumerStatus]:
        leases = [self.all[name] for name in names]
        parameters = {
            "checkpoints": list(names),
            "consumers": [lease.consumer.name for lease in leases],
            "strict": [lease.consumer.ordering == "strict" for lease in leases],
            "lane": [lease.lane for lease in leases],
            "lanes": [lease.consumer.lanes for lease in leases],
            "token": self.token,
            "lease": self.seconds,
        }
        cursor = await connection.execute(self._statements[statement], parameters, prepare=True)
        return {name: ConsumerStatus(*status) for name, *status in await cursor.fetchall()}
