"""What the transport suite needs to know about a transport: how to make it, what arrived, and how to break it."""

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
    """An event as somebody behind the transport got it."""

    event_id: UUID
    aggregate_id: str
    payload: Any


class TransportHarness(ABC):
    """A transport in its surroundings: a broker, a database, handlers. One is made for every case.

    What the harness cannot do (`can_refuse`, `can_be_down`, `can_crash`) is not asked of it, and the cases about it are
    skipped. `largest_payload` is the size in bytes that must go through; the default is what an outbox allows.
    """

    can_refuse: ClassVar[bool] = False
    can_be_down: ClassVar[bool] = False
    can_crash: ClassVar[bool] = False
    largest_payload: ClassVar[int] = 1 << 20

    transport: Transport

    @abstractmethod
    async def start(self) -> None:
        """Bring up the surroundings and make `transport`, not opened."""

    @abstractmethod
    async def stop(self) -> None:
        """Take everything down."""

    @abstractmethod
    async def received(self) -> Sequence[Received]:
        """What has arrived so far, in the order of arrival."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Hand a batch over, as the relay does."""
        return await self.transport.deliver(records)

    def refuse(self, event_ids: Collection[UUID]) -> None:
        """From now on the destination refuses exactly these events."""
        raise NotImplementedError(f"{type(self).__name__} says can_refuse: write refuse()")

    async def take_down(self) -> None:
        """Make the destination as a whole unreachable."""
        raise NotImplementedError(f"{type(self).__name__} says can_be_down: write take_down()")

    async def bring_up(self) -> None:
        """Make it reachable again."""
        raise NotImplementedError(f"{type(self).__name__} says can_be_down: write bring_up()")

    async def crash(self) -> None:
        """Kill the receiving side and start it again; the transport may have to be opened anew."""
        raise NotImplementedError(f"{type(self).__name__} says can_crash: write crash()")


_drawn = 0


def record(aggregate_id: str, number: int, **more: Any) -> Record:
    """An event as the relay would load it; `number` and what is given besides are its payload."""
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
    """So many events of each aggregate (one per letter), interleaved and numbered from 0."""
    return [record(aggregate, number) for number in range(count) for aggregate in aggregates]
