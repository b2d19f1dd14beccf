"""The suite can be believed: a transport that keeps its promises passes, and each broken promise fails its case."""

import asyncio
import json
from collections.abc import Collection, Sequence
from typing import ClassVar
from uuid import UUID

import pytest

from aftercommit.errors import TransportUnavailable
from aftercommit.event.envelope import Record
from aftercommit.relay.transport import Capabilities, Failure
from aftercommit.testing.transport_suite import Received, TransportHarness, TransportSuite


class MemoryTransport:
    """A list that behaves as a broker should."""

    name = "memory"
    capabilities = Capabilities(deduplicates=True)

    def __init__(self) -> None:
        self.arrived: dict[UUID, Record] = {}
        self.refused: frozenset[UUID] = frozenset()
        self.is_down = False

    async def open(self) -> None:
        if self.is_down:
            raise TransportUnavailable("down")

    async def close(self) -> None:
        pass

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        await self.open()
        failures = []
        for each in records:
            if each.event_id in self.refused:
                failures.append(Failure(each.event_id, RuntimeError("refused")))
            else:
                self.accept(each)
        return failures

    def accept(self, each: Record) -> None:
        self.arrived.setdefault(each.event_id, each)


class MemoryHarness(TransportHarness):
    """Can do everything that the suite asks about."""

    can_refuse = can_be_down = can_crash = True
    kind: ClassVar[type[MemoryTransport]] = MemoryTransport

    async def start(self) -> None:
        self.memory = self.kind()
        self.transport = self.memory

    async def stop(self) -> None:
        pass

    async def received(self) -> Sequence[Received]:
        return [
            Received(each.event_id, each.aggregate_id, json.loads(each.payload))
            for each in self.memory.arrived.values()
        ]

    def refuse(self, event_ids: Collection[UUID]) -> None:
        self.memory.refused = frozenset(event_ids)

    async def take_down(self) -> None:
        self.memory.is_down = True

    async def bring_up(self) -> None:
        self.memory.is_down = False

    async def crash(self) -> None:
        pass


class TestAGoodTransport(TransportSuite):
    """Passes every case, and none is skipped."""

    @pytest.fixture
    def transport_harness(self) -> MemoryHarness:
        return MemoryHarness()


class Forgetful(MemoryTransport):
    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        return await super().deliver(records[:-1] if len(records) > 2 else records)


class Backwards(MemoryTransport):
    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        return await super().deliver(records[::-1])


class Repetitive(MemoryTransport):
    def accept(self, each: Record) -> None:
        self.arrived[UUID(int=len(self.arrived))] = each


class Silent(MemoryTransport):
    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        await super().deliver(records)
        return ()


class AllOrNothing(MemoryTransport):
    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        failures = await super().deliver(records)
        return [Failure(each.event_id, RuntimeError("batch refused")) for each in records] if failures else ()


class Blaming(MemoryTransport):
    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        if self.is_down:
            return [Failure(each.event_id, ConnectionError("down")) for each in records]
        return await super().deliver(records)


class Abridging(MemoryTransport):
    def accept(self, each: Record) -> None:
        if len(each.payload) < 1_000_000:
            super().accept(each)


class OpensOnce(MemoryTransport):
    is_closed = False

    async def close(self) -> None:
        self.is_closed = True

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        if self.is_closed:
            raise RuntimeError("closed")
        return await super().deliver(records)


class Exclusive(MemoryTransport):
    at_work = False

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        if self.at_work:
            raise RuntimeError("one at a time")
        self.at_work = True
        await asyncio.sleep(0)
        self.at_work = False
        return await super().deliver(records)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (Forgetful, "a_batch_arrives_whole_with_ids_and_payloads"),
        (Backwards, "events_of_an_aggregate_arrive_in_order"),
        (Repetitive, "a_repeated_event_reaches_consumers_once"),
        (Silent, "failures_are_reported_per_event_and_the_others_arrive"),
        (AllOrNothing, "failures_are_reported_per_event_and_the_others_arrive"),
        (Blaming, "a_destination_that_is_down_is_said_to_be_unavailable"),
        (Abridging, "the_largest_payload_goes_through_unchanged"),
        (OpensOnce, "a_closed_transport_can_be_opened_again"),
        (Exclusive, "batches_may_be_delivered_side_by_side"),
    ],
)
def test_a_broken_promise_fails_its_case(
    kind: type[MemoryTransport], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aftercommit.testing.transport_suite.DEADLINE", 0.1)
    harness = type("Harness", (MemoryHarness,), {"kind": kind})()
    with pytest.raises((AssertionError, TimeoutError, RuntimeError, pytest.fail.Exception)):
        getattr(TransportSuite(), f"test_{broken}")(harness)
