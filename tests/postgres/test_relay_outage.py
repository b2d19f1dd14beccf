"""When the destination is down, and when a transport misbehaves: who is charged for it, and what is said."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from aftercommit.backoff import Constant
from aftercommit.errors import TransportUnavailable
from aftercommit.event.envelope import Record
from aftercommit.relay import Relay, RelaySettings, transport_outage
from aftercommit.relay.transport import Failure
from tests.support.recording import RecordingTransport
from tests.support.relays import relay_on
from tests.support.shop import OrderPlaced, Shop, shop_outbox


def said(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage() == name]


def nothing_was_charged(shop: Shop) -> None:
    assert shop.value("select count(*) from dead_letter_events") == 0
    assert shop.value("select coalesce(max(retry_count), 0) from event_outbox") == 0


class OpensAnyway(RecordingTransport):
    """Its destination may be down without open() noticing."""

    async def open(self) -> None:
        pass


@pytest.mark.thorough
async def test_an_outage_spends_no_attempt_is_said_once_and_ends_in_order(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Broker down: events wait, nothing is parked, and everything goes out in order once it is back."""
    caplog.set_level(logging.INFO)
    shop = replace(shop, outbox=shop_outbox(max_attempts=2))
    transport = OpensAnyway()
    transport.down = TransportUnavailable("connection refused")
    ids = [shop.place("o-1", number) for number in range(5)]
    async with relay_on(shop, transport=transport):
        await shop.signals.wait("relay.outage", 4)
        ids += [shop.place("o-1", number) for number in range(5, 8)]
        nothing_was_charged(shop)
        transport.down = None
        await shop.signals.wait_total("relay.appended", 8)
    assert transport.ids == ids
    nothing_was_charged(shop)
    (down,) = said(caplog, "transport_is_unavailable")
    assert down.__dict__["error"] == "connection refused"
    (back,) = said(caplog, "transport_is_back")
    assert back.__dict__["attempts"] >= 4


async def test_a_second_outage_is_news_again(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Said once per outage, not once per process."""
    transport = RecordingTransport()
    async with relay_on(shop, transport=transport):
        for outage in (1, 2):
            transport.down = TransportUnavailable("gone")
            shop.place("o-1", outage)
            await shop.signals.next("relay.outage")
            transport.down = None
            await shop.signals.wait_total("relay.appended", outage)
    assert len(said(caplog, "transport_is_unavailable")) == 2


def test_the_relay_backs_off_while_the_destination_is_down() -> None:
    """The pauses grow and never last longer than half a minute."""
    pauses = [transport_outage.BACKOFF(outage, TransportUnavailable("gone")) or 0.0 for outage in range(1, 30)]
    assert all(0 < pause <= 30 for pause in pauses)
    assert min(pauses[10:]) > max(pauses[:3])


async def test_a_destination_that_is_down_at_the_start_is_waited_for(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """open() raises: the relay waits, and holds no lanes meanwhile that another could serve."""
    transport = RecordingTransport()
    transport.down = TransportUnavailable("not started yet")
    ids = [shop.place("o-1", number) for number in range(3)]
    async with Relay(shop.outbox, shop.database, transport, probe=shop.signals):
        await shop.signals.wait("relay.outage", 3)
        assert shop.value("select count(*) from lane where relay is not null") == 0
        transport.down = None
        await shop.signals.wait_total("relay.appended", 3)
    assert transport.ids == ids
    assert len(said(caplog, "transport_is_unavailable")) == 1


async def test_a_relay_can_be_stopped_while_the_destination_is_down(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In open() and in deliver(), without waiting for the back-off."""
    transport = RecordingTransport()
    transport.down = TransportUnavailable("gone")
    relay = Relay(shop.outbox, shop.database, transport, probe=shop.signals)
    monkeypatch.setattr(transport_outage, "BACKOFF", Constant(3600))
    async with relay:
        await shop.signals.wait("relay.outage")
    transport.down = None
    async with relay:
        await shop.signals.wait("relay.ready")
        transport.down = TransportUnavailable("gone")
        shop.place()
        await shop.signals.wait("relay.outage", 2)
    assert shop.value("select count(*) from lane where relay is not null") == 0


@pytest.mark.thorough
async def test_an_outage_right_after_a_takeover_spends_no_attempt_either(shop: Shop) -> None:
    """After a takeover attempts are counted before delivery; one that could not be made is given back."""
    shop = replace(shop, outbox=shop_outbox(max_attempts=2))
    dead = Relay(shop.outbox, shop.database, RecordingTransport(), settings=RelaySettings(lease_seconds=0.1))
    connection = await shop.database.connect()
    await dead.lanes.tick(connection)
    await connection.close()
    ids = [shop.place("o-1", number) for number in range(3)]
    transport = OpensAnyway()
    transport.down = TransportUnavailable("gone")
    async with relay_on(shop, transport=transport, settings=RelaySettings(lease_seconds=0.5)):
        await shop.signals.wait("relay.outage", 3)
        assert shop.signals.counts["relay.counted"] >= 3
        transport.down = None
        await shop.signals.wait_total("relay.appended", 3)
    assert transport.ids == ids
    assert shop.value("select count(*) from dead_letter_events") == 0
    assert shop.rows("select distinct retry_count from log") == [(1,)]


class Exploding(RecordingTransport):
    """Raises for a whole batch that has a poisoned record in it, before or after it took the others."""

    def __init__(self, poison: UUID) -> None:
        super().__init__()
        self.poison = poison

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        if any(record.event_id == self.poison for record in records):
            raise LookupError("a bug in the transport")
        return await super().deliver(records)


async def test_a_transport_that_raises_charges_the_one_record_it_raises_about(shop: Shop) -> None:
    """An arbitrary exception in a batch of five: found out one by one, four are delivered and one is charged."""
    shop = replace(shop, outbox=shop_outbox(backoff=Constant(1000)))
    ids = shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(5)))
    transport = Exploding(ids[2])
    async with relay_on(shop, transport=transport):
        await shop.signals.wait_total("relay.appended", 4)
        await shop.signals.wait("relay.failed")
    assert transport.ids == [*ids[:2], *ids[3:]]
    assert shop.rows("select id, status, retry_count, last_error from outbox") == [
        (ids[2], "pending", 1, "a bug in the transport")
    ]
    assert shop.rows("select event_id, error_class from dead_letter_events") == [(ids[2], "LookupError")]


class Confused(RecordingTransport):
    """Reports a failure of an event that nobody gave it."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        await super().deliver(records)
        return [Failure(uuid4(), RuntimeError("whose?"))] if len(records) > 1 else ()


async def test_a_failure_of_an_unknown_event_does_not_end_the_relay(shop: Shop) -> None:
    """It cannot be known which event was meant, so they are delivered again one by one."""
    ids = shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(3)))
    transport = Confused()
    async with relay_on(shop, transport=transport):
        await shop.signals.wait_total("relay.appended", 3)
    assert set(transport.ids) == set(ids)


async def test_the_destination_may_say_when_to_come_back_and_that_there_is_no_point(shop: Shop) -> None:
    """retry_after overrides the policy; permanent parks at once."""

    class Particular(RecordingTransport):
        async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
            failures = []
            for record in records:
                permanent = record.aggregate_id == "never"
                failures.append(Failure(record.event_id, RuntimeError("429"), permanent=permanent, retry_after=500.0))
            return failures

    never, later = shop.publish(OrderPlaced("never"), OrderPlaced("later"))
    async with relay_on(shop, transport=Particular()):
        await shop.signals.wait_total("relay.failed", 2)
    rows = shop.rows("select id, status, next_retry_at > now() + interval '400 s' from outbox order by seq")
    assert rows == [(never, "failed", None), (later, "pending", True)]
