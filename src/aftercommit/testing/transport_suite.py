"""The guarantees of a transport as tests, for every transport, your own included.

    class MyBroker(TransportHarness): ...      # start, stop, received, and optional abilities

    class TestMyBroker(TransportSuite):
        ...

Needs pytest, and a fixture `transport_harness` that returns a new harness. Cases about guarantees that the transport
does not declare in its `capabilities` are skipped. To see values in failures, call
`pytest.register_assert_rewrite("aftercommit.testing.transport_suite")` in conftest.py before you import this module.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from aftercommit.errors import TransportUnavailable
from aftercommit.event.envelope import Record
from aftercommit.testing.transport_harness import Received, TransportHarness, record, records

__all__ = ["Received", "TransportHarness", "TransportSuite", "record", "records"]

DEADLINE = 120.0
AWKWARD = "ünï ☃ 𝄞 \u2028 'single' \"double\" \\ %s {} $1 \t\n"

Case = Callable[[Any, TransportHarness], Awaitable[None]]


def case(check: Case) -> Callable[[Any, TransportHarness], None]:
    """Run a case with an open transport in its own event loop, so that pytest needs no asyncio plugin."""

    async def staged(suite: Any, harness: TransportHarness) -> None:
        await harness.start()
        try:
            await harness.transport.open()
            try:
                await check(suite, harness)
            finally:
                await harness.transport.close()
        finally:
            await harness.stop()

    def run(self: Any, transport_harness: TransportHarness) -> None:
        asyncio.run(staged(self, transport_harness))

    run.__name__, run.__qualname__, run.__doc__ = check.__name__, check.__qualname__, check.__doc__
    return run


class TransportSuite:
    """The tests of a transport. Subclass it as `Test…`, and write a fixture `transport_harness`."""

    @case
    async def test_an_empty_batch_is_accepted_and_nothing_arrives(self, harness: TransportHarness) -> None:
        """The relay never sends one, but a transport must not choke on it."""
        assert list(await harness.deliver([])) == []
        await accepted(harness, [record("a", 0)])
        assert len(await arrived(harness, 1)) == 1

    @case
    async def test_a_batch_arrives_whole_with_ids_and_payloads(self, harness: TransportHarness) -> None:
        """What arrives is what was published, byte for byte in meaning."""
        batch = [*records("abc", 3), record("d", 0, text=AWKWARD, nested={"list": [1, None, 2.5, True]})]
        await accepted(harness, batch)
        got = {each.event_id: each for each in await arrived(harness, len(batch))}
        assert set(got) == ids(batch)
        for each in batch:
            assert got[each.event_id].aggregate_id == each.aggregate_id
            assert got[each.event_id].payload == json.loads(each.payload)

    @case
    async def test_a_full_batch_arrives_whole(self, harness: TransportHarness) -> None:
        """A thousand events at once, as the relay sends them."""
        batch = records("abcdefghij", 100)
        await accepted(harness, batch)
        assert {each.event_id for each in await arrived(harness, len(batch))} == ids(batch)

    @case
    async def test_events_of_an_aggregate_arrive_in_order(self, harness: TransportHarness) -> None:
        """Within a batch and from batch to batch."""
        needs(harness.transport.capabilities.ordered, "the transport does not promise order")
        batch = records("abcd", 60)
        for start in range(0, len(batch), 40):
            await accepted(harness, batch[start : start + 40])
        assert_in_order(await arrived(harness, len(batch)), "abcd", 60)

    @case
    async def test_batches_may_be_delivered_side_by_side(self, harness: TransportHarness) -> None:
        """A relay has several carriers; each aggregate belongs to one of them, and keeps its order."""
        batches = {letter: records(letter, 30) for letter in "abcd"}

        async def one_carrier(letter: str) -> None:
            for start in range(0, 30, 10):
                await accepted(harness, batches[letter][start : start + 10])

        await asyncio.gather(*(one_carrier(letter) for letter in batches))
        got = await arrived(harness, 120)
        assert len({each.event_id for each in got}) == 120
        if harness.transport.capabilities.ordered:
            assert_in_order(got, "abcd", 30)

    @case
    async def test_the_same_event_delivered_again_is_accepted(self, harness: TransportHarness) -> None:
        """Delivery is at least once: after a crash the relay sends what it may have sent before."""
        batch = records("ab", 3)
        await accepted(harness, batch)
        await accepted(harness, batch)
        await accepted(harness, batch[:1])
        assert {each.event_id for each in await arrived(harness, len(batch))} == ids(batch)

    @case
    async def test_a_repeated_event_reaches_consumers_once(self, harness: TransportHarness) -> None:
        """By its `event_id`, also side by side with itself."""
        needs(harness.transport.capabilities.deduplicates, "the transport does not promise to deduplicate")
        batch = records("ab", 5)
        await accepted(harness, batch)
        await asyncio.gather(accepted(harness, batch), accepted(harness, batch[:3]))
        last = [record("a", 5), record("b", 5)]
        await accepted(harness, last)
        got = await arrived_with(harness, ids(last))
        assert sorted(each.event_id for each in got) == sorted(ids([*batch, *last]))

    @case
    async def test_failures_are_reported_per_event_and_the_others_arrive(self, harness: TransportHarness) -> None:
        """The refused events are named, each with its error; those around them are delivered."""
        needs(harness.can_refuse, "the harness cannot make its destination refuse an event")
        batch = records("abcde", 3)
        refused = {batch[4].event_id, batch[7].event_id}
        harness.refuse(refused)
        failures = await harness.deliver(batch)
        assert {failure.event_id for failure in failures} == refused
        assert all(isinstance(failure.error, BaseException) and failure.consumer for failure in failures)
        got = await arrived(harness, len(batch) - 2)
        assert {each.event_id for each in got} == ids(batch) - refused

    @case
    async def test_a_refused_event_can_be_delivered_later(self, harness: TransportHarness) -> None:
        """A failure leaves nothing behind that would keep the retry from succeeding."""
        needs(harness.can_refuse, "the harness cannot make its destination refuse an event")
        batch = records("ab", 2)
        harness.refuse(ids(batch))
        assert {failure.event_id for failure in await harness.deliver(batch)} == ids(batch)
        harness.refuse(())
        await accepted(harness, batch)
        assert {each.event_id for each in await arrived(harness, len(batch))} == ids(batch)

    @case
    async def test_a_destination_that_is_down_is_said_to_be_unavailable(self, harness: TransportHarness) -> None:
        """Not a failure of events: TransportUnavailable, so that no attempt is spent. Then it works again."""
        needs(harness.can_be_down, "the harness cannot take its destination down")
        await accepted(harness, [record("a", 0)])
        await harness.take_down()
        batch = records("ab", 2)
        with pytest.raises(TransportUnavailable):
            await asyncio.wait_for(harness.deliver(batch), DEADLINE)
        await harness.bring_up()
        await until_available(lambda: accepted(harness, batch))
        await arrived_with(harness, ids(batch))

    @case
    async def test_opening_while_the_destination_is_down_says_so_too(self, harness: TransportHarness) -> None:
        """open() may be called again once the destination is back."""
        needs(harness.can_be_down, "the harness cannot take its destination down")
        await harness.transport.close()
        await harness.take_down()
        with pytest.raises(TransportUnavailable):
            await asyncio.wait_for(harness.transport.open(), DEADLINE)
        await harness.bring_up()
        await until_available(harness.transport.open)
        await accepted(harness, [record("a", 0)])

    @case
    async def test_what_was_accepted_survives_a_crash_of_the_receiving_side(self, harness: TransportHarness) -> None:
        """Accepted means kept."""
        needs(harness.transport.capabilities.durable, "the transport does not promise durability")
        needs(harness.can_crash, "the harness cannot crash the receiving side")
        batch = records("ab", 5)
        await accepted(harness, batch)
        await harness.crash()
        assert {each.event_id for each in await arrived(harness, len(batch))} == ids(batch)

    @case
    async def test_the_largest_payload_goes_through_unchanged(self, harness: TransportHarness) -> None:
        """Whatever an outbox accepts, its transport must carry."""
        overhead = len(record("a", 0, text="").payload)
        large = record("a", 0, text="x" * (harness.largest_payload - overhead))
        assert len(large.payload) == harness.largest_payload
        await accepted(harness, [record("b", 0), large, record("c", 0)])
        got = {each.event_id: each for each in await arrived(harness, 3)}
        assert got[large.event_id].payload == json.loads(large.payload)

    @case
    async def test_a_closed_transport_can_be_opened_again(self, harness: TransportHarness) -> None:
        """And closing twice does no harm."""
        await accepted(harness, [record("a", 0)])
        await harness.transport.close()
        await harness.transport.close()
        await harness.transport.open()
        await accepted(harness, [record("a", 1)])
        assert [each.payload["number"] for each in await arrived(harness, 2)] == [0, 1]


def needs(condition: bool, otherwise: str) -> None:
    """Skip the case unless the condition is true."""
    if not condition:
        pytest.skip(otherwise)


def ids(batch: Sequence[Record]) -> set[UUID]:
    """The ids of a batch."""
    return {each.event_id for each in batch}


async def accepted(harness: TransportHarness, batch: Sequence[Record]) -> None:
    """Deliver a batch without failures."""
    assert list(await asyncio.wait_for(harness.deliver(batch), DEADLINE)) == []


async def arrived(harness: TransportHarness, count: int) -> Sequence[Received]:
    """Wait until so many different events have arrived; returns all that have."""
    return await _arrived(harness, lambda got: len(got) >= count)


async def arrived_with(harness: TransportHarness, expected: set[UUID]) -> Sequence[Received]:
    """Wait until these events have arrived; returns all that have."""
    return await _arrived(harness, lambda got: expected <= got)


async def _arrived(harness: TransportHarness, enough: Callable[[set[UUID]], bool]) -> Sequence[Received]:
    async with asyncio.timeout(DEADLINE):
        while True:
            got = await harness.received()
            if enough({each.event_id for each in got}):
                return got
            await asyncio.sleep(0.01)


async def until_available(action: Callable[[], Awaitable[None]]) -> None:
    """Try again and again, as the relay does after an outage."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                return await action()
            except TransportUnavailable:
                await asyncio.sleep(0.05)


def assert_in_order(got: Sequence[Received], aggregates: str, count: int) -> None:
    """Each aggregate's events, counted when first seen, are numbered 0, 1, 2, …"""
    for aggregate in aggregates:
        first_seen = dict.fromkeys(each.payload["number"] for each in got if each.aggregate_id == aggregate)
        assert list(first_seen) == list(range(count)), aggregate
