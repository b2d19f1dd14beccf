"""Strict ordering: what is behind a failed event of its aggregate waits for it; everything else flows."""

import time
from dataclasses import replace

import pytest

from aftercommit.backoff import Constant, Never
from aftercommit.errors import TransportUnavailable
from aftercommit.event.envelope import Record
from aftercommit.relay import Relay, RelaySettings, doorbell
from tests.support.recording import RecordingTransport
from tests.support.relays import relay_on
from tests.support.shop import OrderPlaced, Shop, shop_outbox

RETRY_BY_HAND = Constant(1000.0)


def strict(shop: Shop, **options) -> Shop:
    return replace(shop, outbox=shop_outbox(ordering="strict", **{"backoff": RETRY_BY_HAND, **options}))


class Stumbling(RecordingTransport):
    """Refuses given (order, number) pairs until told otherwise."""

    def __init__(self, *refused: tuple[str, int]) -> None:
        super().__init__(self._refuse)
        self.refused = set(refused)

    def _refuse(self, record: Record) -> BaseException | None:
        return RuntimeError("stumbled") if key(record) in self.refused else None

    @property
    def keys(self) -> list[tuple[str, int]]:
        return [key(record) for record in self.records]


def key(record: Record) -> tuple[str, int]:
    number = int(record.payload.split(b'"number":')[1].split(b",")[0])
    return record.aggregate_id, number


def wait_is_over(shop: Shop) -> None:
    shop.rows("update outbox set next_retry_at = clock_timestamp() where next_retry_at is not null")


def reset_failed(shop: Shop) -> None:
    shop.rows("update outbox set status = 'pending', next_retry_at = clock_timestamp() where status = 'failed'")


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
async def test_events_behind_a_retrying_one_wait_and_follow_in_order(shop: Shop, batch_size: int) -> None:
    """Also those that were read in the same batch; other aggregates flow all the while."""
    shop = strict(shop)
    transport = Stumbling(("a", 1))
    shop.publish(*(OrderPlaced(order, number) for number in range(4) for order in "ab"))
    async with relay_on(shop, transport=transport, settings=RelaySettings(lease_seconds=2, batch_size=batch_size)):
        await shop.signals.wait_total("relay.appended", 5)
        shop.publish(OrderPlaced("a", 4), OrderPlaced("c", 0))
        await shop.signals.wait_total("relay.appended", 6)
        await shop.signals.next("relay.idle")
        assert [each for each in transport.keys if each[0] == "a"] == [("a", 0)]
        transport.refused.clear()
        wait_is_over(shop)
        await shop.signals.wait_total("relay.appended", 10)
    for order, count in {"a": 5, "b": 4, "c": 1}.items():
        assert [number for name, number in transport.keys if name == order] == list(range(count))
        assert [number for _, name, number in shop.log() if name == order] == list(range(count))
    assert shop.value("select count(*) from dead_letter_events where status = 'resolved'") == 1


async def test_events_behind_a_failed_one_wait_until_an_operator_sends_it_again(shop: Shop) -> None:
    """Failed is final only until somebody says otherwise; then the rest follows in order."""
    shop = strict(shop, backoff=Never())
    transport = Stumbling(("a", 0))
    shop.publish(*(OrderPlaced(order, number) for number in range(3) for order in "ab"))
    async with relay_on(shop, transport=transport):
        await shop.signals.wait_total("relay.appended", 3)
        await shop.signals.next("relay.idle")
        assert shop.rows("select status, count(*) from outbox group by status order by status") == [
            ("failed", 1),
            ("pending", 2),
        ]
        transport.refused.clear()
        reset_failed(shop)
        await shop.signals.wait_total("relay.appended", 6)
    assert [number for name, number in transport.keys if name == "a"] == [0, 1, 2]


@pytest.mark.thorough
async def test_several_failed_events_of_one_aggregate_are_sent_again_in_their_order(shop: Shop) -> None:
    """All fall due at once; only the first may go, and while it fails again the others wait without being asked for."""
    relaxed = replace(shop, outbox=shop_outbox(backoff=Never()))
    transport = Stumbling(*(("a", number) for number in range(4)))
    shop.publish(*(OrderPlaced("a", number) for number in range(5)))
    async with relay_on(relaxed, transport=transport):
        await shop.signals.wait_total("relay.failed", 4)
    reset_failed(shop)
    transport.refused = {("a", 0)}
    careful = Shop(shop.dsn, strict(shop).outbox)
    async with relay_on(careful, transport=transport, settings=RelaySettings(lease_seconds=2, gauge_seconds=0.5)):
        await careful.signals.wait("relay.failed")
        await careful.signals.next("relay.idle")
        reads, since = careful.signals.counts["relay.read"], time.monotonic()
        await careful.signals.next("relay.measured")
        await careful.signals.next("relay.measured")
        # A relay without a listener looks twenty times a second at most; a loop that never rests a thousand times.
        most = 2 * (time.monotonic() - since) / doorbell.POLL_WITHOUT_LISTENER
        assert careful.signals.counts["relay.read"] - reads < 10 + most
        assert [number for _, number in transport.keys] == [4]
        transport.refused.clear()
        wait_is_over(shop)
        await careful.signals.wait_total("relay.appended", 4)
    assert [number for _, number in transport.keys] == [4, 0, 1, 2, 3]


async def test_relaxed_ordering_lets_the_events_behind_a_failed_one_go_on(shop: Shop) -> None:
    """The default: a failure delays itself alone."""
    shop = replace(shop, outbox=shop_outbox(backoff=RETRY_BY_HAND))
    transport = Stumbling(("a", 0))
    shop.publish(*(OrderPlaced("a", number) for number in range(3)))
    async with relay_on(shop, transport=transport):
        await shop.signals.wait("relay.failed")
        assert [number for _, number in transport.keys] == [1, 2]
        transport.refused.clear()
        wait_is_over(shop)
        await shop.signals.wait_total("relay.appended", 3)
    assert [number for _, number in transport.keys] == [1, 2, 0]


async def test_after_a_takeover_a_failure_holds_back_what_is_behind_it_too(shop: Shop) -> None:
    """Suspect events go one at a time, and the order of an aggregate still holds among them."""
    shop = strict(shop)
    dead = Relay(shop.outbox, shop.database, RecordingTransport(), settings=RelaySettings(lease_seconds=0.1))
    connection = await shop.database.connect()
    await dead.lanes.tick(connection)
    await connection.close()
    transport = Stumbling(("a", 1))
    shop.publish(*(OrderPlaced(order, number) for number in range(3) for order in "ab"))
    async with relay_on(shop, transport=transport, settings=RelaySettings(lease_seconds=0.5)):
        await shop.signals.wait_total("relay.appended", 4)
        await shop.signals.next("relay.idle")
        assert shop.signals.counts["relay.counted"] > 0
        assert [number for name, number in transport.keys if name == "a"] == [0]
        transport.refused.clear()
        wait_is_over(shop)
        await shop.signals.wait_total("relay.appended", 6)
    assert [number for name, number in transport.keys if name == "a"] == [0, 1, 2]


async def test_a_late_commit_is_found_behind_a_blocked_aggregate(shop: Shop) -> None:
    """The watermark must not pass events that wait in the outbox, nor those whose writer has not ended."""
    shop = strict(shop)
    transport = Stumbling(("a", 0))
    with shop.connect() as slow:
        shop.outbox.publish(slow, OrderPlaced("slow", 0), tenant_id="acme")
        shop.publish(OrderPlaced("a", 0), OrderPlaced("a", 1))
        async with relay_on(shop, transport=transport, settings=RelaySettings(lease_seconds=2, batch_size=3)):
            await shop.signals.wait("relay.failed")
            for number in range(20):
                shop.place("b", number)
            await shop.signals.wait_total("relay.appended", 20)
            await shop.signals.next("relay.idle")
            slow.commit()
            await shop.signals.wait_total("relay.appended", 21)
            transport.refused.clear()
            wait_is_over(shop)
            await shop.signals.wait_total("relay.appended", 23)
    assert [number for name, number in transport.keys if name == "a"] == [0, 1]


async def test_an_outage_in_the_middle_of_a_batch_spends_nothing_and_keeps_the_order(shop: Shop) -> None:
    """Some rounds of a strict batch were delivered when the destination went down: they may come twice, never late."""
    shop = strict(shop)
    transport = Stumbling()
    shop.publish(*(OrderPlaced("a", number) for number in range(6)))

    def down_at_three(record: Record) -> BaseException | None:
        if key(record) == ("a", 3) and transport.down is None and shop.signals.counts["relay.outage"] == 0:
            raise TransportUnavailable("gone")
        return None

    transport.refuse = down_at_three
    async with relay_on(shop, transport=transport):
        await shop.signals.wait_total("relay.appended", 6)
    assert [number for _, _, number in shop.log()] == list(range(6))
    firsts = list(dict.fromkeys(number for _, number in transport.keys))
    assert firsts == list(range(6))
    assert shop.value("select max(retry_count) from log") == 0
