"""The bus keeps the promises that every transport makes, with handlers of every kind."""

from dataclasses import replace

import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer import Dispatcher
from aftercommit.event.envelope import Event
from aftercommit.relay.transports import BusTransport
from aftercommit.testing.transport_suite import TransportSuite
from tests.support.relays import relay_on
from tests.support.shop import OrderPlaced, Shop, shop_outbox
from tests.transports.databases import BusHarness


class TestBus(TransportSuite):
    """An async handler, one event at a time."""

    @pytest.fixture
    def transport_harness(self, database: str) -> BusHarness:
        return BusHarness(database)


class TestBusWithSeveralHands(TransportSuite):
    """Four async handlers side by side."""

    @pytest.fixture
    def transport_harness(self, database: str) -> BusHarness:
        return BusHarness(database, concurrency=4)


class TestBusWithBlockingHandlers(TransportSuite):
    """Ordinary functions, in threads."""

    @pytest.fixture
    def transport_harness(self, database: str) -> BusHarness:
        return BusHarness(database, concurrency=2, blocking=True)


async def test_a_consumer_that_recovers_has_no_open_letter_while_another_goes_on_failing(shop: Shop) -> None:
    """Two consumers fail; on the retry one of them succeeds: its dead letter is resolved, the other's stays."""
    shop = replace(shop, outbox=shop_outbox(max_attempts=3, backoff=Constant(0.01)))
    calls: list[str] = []
    for name in ("recovers", "fails"):
        consumer = shop.outbox.consumer(name, retry_count=0)

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], name: str = name) -> None:
            calls.append(name)
            if name == "fails" or calls.count(name) == 1:
                raise RuntimeError(name)

    event_id = shop.place()
    transport = BusTransport(Dispatcher(shop.outbox, shop.database))
    async with relay_on(shop, transport=transport):
        await shop.value_becomes("select count(*) from outbox where status = 'failed'", 1)
    assert calls.count("recovers") == 2
    assert calls.count("fails") == 3
    letters = "select consumer_name, status, attempts from dead_letter_events where event_id = %s order by 1"
    assert shop.rows(letters, [event_id]) == [("fails", "parked", 3), ("recovers", "resolved", 1)]
