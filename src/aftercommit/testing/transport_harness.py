"""What the transport suite must know about a transport: how to start it, what has arrived, and how to break it."""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID

from aftercommit.event.envelope import Record
from aftercommit.event.identity import uuid7
from aftercommit.relay.transport import Failure, Transport

EVENT_TYPE = "suite.happened"
AGGREGATE_TYPE = "thing"


@dataclass(frozen=True, slots=True)
class Received:
    """An event that has arrived at the destination."""

    event_id: UUID
    aggregate_id: str
    payload: Any


class TransportHarness(ABC):
    """A transport with its destination: a broker, a database, handlers. Each case makes its own.

    Cases are skipped if the harness cannot do what they need (`can_refuse`, `can_be_down`, `can_crash`).
    `largest_payload` is the size in bytes that the transport must carry; the default is the limit of an outbox.
    """

    can_refuse: ClassVar[bool] = False
    can_be_down: ClassVar[bool] = False
    can_crash: ClassVar[bool] = False
    largest_payload: ClassVar[int] = 1 << 20

    transport: Transport

    @abstractmethod
    async def start(self) -> None:
        """Start the destination and make `transport`, not opened."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop everything."""

    @abstractmethod
    async def received(self) -> Sequence[Received]:
        """The events that have arrived so far, in order."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Deliver a batch, as the relay does."""
        return await self.transport.deliver(records)

    def refuse(self, event_ids: Collection[UUID]) -> None:
        """From now on, the destination refuses exactly these events."""
        raise NotImplementedError(f"{type(self).__name__} has can_refuse: write refuse()")

    async def take_down(self) -> None:
        """Make the destination unreachable."""
        raise NotImplementedError(f"{type(self).__name__} has can_be_down: write take_down()")

    async def bring_up(self) -> None:
        """Make the destination reachable again."""
        raise NotImplementedError(f"{type(self).__name__} has can_be_down: write bring_up()")

    async def crash(self) -> None:
        """Kill the destination and start it again; the transport may have to be opened again."""
        raise NotImplementedError(f"{type(self).__name__} has can_crash: write crash()")


_drawn = 0


def record(aggregate_id: str, number: int, **more: Any) -> Record:
    """An event as the relay would load it; its payload has `number` and `more`."""
    global _drawn
    _drawn += 1
    now = datetime.now(UTC)
    event_id = uuid7()
    return Record(
        event_id=event_id,
        event_type=EVENT_TYPE,
        schema_version=1,
        aggregate_type=AGGREGATE_TYPE,
        aggregate_id=aggregate_id,
        occurred_at=now,
        correlation_id=str(event_id),
        causation_id=None,
        scope={},
        payload=json.dumps({"number": number, **more}).encode(),
        created_at=now,
        seq=_drawn,
    )


def records(aggregates: str, count: int) -> list[Record]:
    """`count` events of each aggregate (one per letter), interleaved and numbered from 0."""
    return [record(aggregate, number) for number in range(count) for aggregate in aggregates]
