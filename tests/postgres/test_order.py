"""The heart of the product: an event never becomes visible below a position that a reader has already seen.

Each test writes an interleaving by hand. The readers are pollers that go on from their last position.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from aftercommit.errors import LeaseLost
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.carrier import BatchOutcome
from aftercommit.relay.transport import Failure
from aftercommit.relay.transports import LogTransport
from tests.support.recording import RecordingTransport
from tests.support.relays import holds, listening_relay_on
from tests.support.shop import OrderPlaced, Shop


@asynccontextmanager
async def relay_on(shop: Shop, **options: Any) -> AsyncIterator[Relay]:
    """A relay that runs while the test goes on."""
    settings = options.pop("settings", RelaySettings(lease_seconds=2.0))
    relay = Relay(
        shop.outbox,
        shop.database,
        options.pop("transport", LogTransport()),
        settings=settings,
        probe=shop.signals,
    )
    async with relay:
        await shop.signals.wait("relay.ready")
        yield relay


class Poller:
    """Walks the log from its last position, a page at a time."""

    def __init__(self, shop: Shop, page: int) -> None:
        """At the beginning."""
        self.shop = shop
        self.page = page
        self.seen: list[tuple[int, str, int]] = []

    def poll(self) -> None:
        """One page."""
        after = self.seen[-1][0] if self.seen else 0
        query = (
            "select position, aggregate_id, (payload->>'number')::int from log "
            "where position > %s order by position limit %s"
        )
        self.seen += self.shop.rows(query, (after, self.page))

    def walk(self) -> list[tuple[int, str, int]]:
        """Pages until there are no more."""
        before = -1
        while len(self.seen) != before:
            before = len(self.seen)
            self.poll()
        return self.seen


def assert_gapless(walk: list[tuple[int, str, int]]) -> None:
    """Positions are 1..n."""
    assert [position for position, _, _ in walk] == list(range(1, len(walk) + 1))


@pytest.mark.contract("T3")
async def test_late_commit_of_an_early_seq_is_never_hidden_from_a_poller(shop: Shop) -> None:
    """T3: seq 1 commits after seq 2 was published and read; a poller that stands at 2's position still gets it."""
    poller = Poller(shop, page=10)
    async with relay_on(shop):
        with shop.connect() as slow:
            shop.outbox.publish(slow, OrderPlaced("slow", 1), tenant_id="acme")
            shop.place("quick", 1)
            await shop.signals.wait_total("relay.appended", 1)
            assert [order for _, order, _ in poller.walk()] == ["quick"]
            slow.commit()
        await shop.signals.wait_total("relay.appended", 2)
    assert [order for _, order, _ in poller.walk()] == ["quick", "slow"]
    assert_gapless(poller.seen)


@pytest.mark.contract("T3")
async def test_late_commit_is_found_although_the_watermark_has_moved_on(shop: Shop) -> None:
    """T3: thousands of later events passed, the watermark has followed as far as it may, and then seq 1 commits."""
    # Nobody looks back for what a watermark may have passed before the test has run out of patience.
    settings = RelaySettings(lease_seconds=2.0, batch_size=50, gauge_seconds=60)
    async with relay_on(shop, settings=settings):
        with shop.connect() as slow:
            shop.outbox.publish(slow, OrderPlaced("slow", 1), tenant_id="acme")
            for burst in range(20):
                shop.publish(*(OrderPlaced(f"quick-{burst}", number) for number in range(100)))
            await shop.signals.wait_total("relay.appended", 2000)
            await shop.signals.next("relay.idle")
            slow.commit()
        await shop.signals.wait_total("relay.appended", 2001, timeout=30)
    assert shop.log()[-1][1] == "slow"
    assert_gapless(shop.log())


@pytest.mark.contract("T3")
async def test_early_xid_with_a_late_aggregate_lock_keeps_the_order_of_the_aggregate(shop: Shop) -> None:
    """T3: a transaction with an older xid that writes to the aggregate later comes later, whatever its xid says."""
    with shop.connect(autocommit=True) as setup:
        setup.execute("create table orders (id text primary key, version int)")
        setup.execute("insert into orders values ('o-1', 0)")
    with shop.connect() as early, shop.connect() as late:
        early.execute("select pg_current_xact_id()")
        late.execute("update orders set version = 1 where id = 'o-1'")
        shop.outbox.publish(late, OrderPlaced("o-1", 1), tenant_id="acme")
        late.commit()
        early.execute("update orders set version = 2 where id = 'o-1'")
        shop.outbox.publish(early, OrderPlaced("o-1", 2), tenant_id="acme")
        early.commit()
    async with relay_on(shop):
        await shop.signals.wait_total("relay.appended", 2)
    assert [number for _, _, number in shop.log()] == [1, 2]


@pytest.mark.contract("T3")
async def test_rollbacks_leave_holes_in_seq_but_none_in_the_log(shop: Shop) -> None:
    """T3: seq has holes where transactions rolled back; positions have none."""
    for number in range(10):
        with shop.connect() as connection:
            shop.outbox.publish(connection, OrderPlaced("o-1", number), tenant_id="acme")
            if number % 3 == 0:
                connection.rollback()
    async with relay_on(shop):
        await shop.signals.wait_total("relay.appended", 6)
    assert_gapless(shop.log())
    assert [number for _, _, number in shop.log()] == [1, 2, 4, 5, 7, 8]
    assert shop.value("select max(seq) - min(seq) + 1 from log") > 6


@pytest.mark.contract("T3")
async def test_a_savepoint_rolled_back_leaves_nothing_and_its_surroundings_everything(shop: Shop) -> None:
    """T3: an event inside a rolled-back savepoint never existed; those around it keep their order."""
    with shop.connect() as connection:
        shop.outbox.publish(connection, OrderPlaced("o-1", 1), tenant_id="acme")
        with connection.transaction() as inner:
            shop.outbox.publish(connection, OrderPlaced("o-1", 2), tenant_id="acme")
            raise psycopg.Rollback(inner)
        shop.outbox.publish(connection, OrderPlaced("o-1", 3), tenant_id="acme")
    async with relay_on(shop):
        await shop.signals.wait_total("relay.appended", 2)
    assert [number for _, _, number in shop.log()] == [1, 3]
    assert_gapless(shop.log())


@pytest.mark.contract("T3", "C2")
async def test_two_relays_share_the_lanes_and_append_one_gapless_log_in_aggregate_order(shop: Shop) -> None:
    """C2: publishers side by side; nothing is taken twice, every aggregate keeps its order."""
    other = Shop(shop.dsn)
    events = [OrderPlaced(f"o-{index % 40}", index // 40) for index in range(2000)]
    settings = RelaySettings(lease_seconds=600.0, batch_size=37)
    async with (
        listening_relay_on(shop, settings=settings) as first,
        listening_relay_on(other, settings=settings) as second,
    ):
        for relay in (first, second):
            await holds(relay.lanes, 32)
        for start in range(0, 2000, 100):
            await asyncio.to_thread(shop.publish, *events[start : start + 100])
        await shop.value_becomes("select count(*) from log", 2000)
        assert first.lanes.held.isdisjoint(second.lanes.held)
        assert shop.signals.totals["relay.appended"] > 0
        assert other.signals.totals["relay.appended"] > 0
    assert_gapless(shop.log())
    for order in range(40):
        numbers = [number for _, order_id, number in shop.log() if order_id == f"o-{order}"]
        assert numbers == list(range(50))


@pytest.mark.contract("T3")
async def test_a_zombie_relay_resumed_after_its_lease_writes_nothing(shop: Shop) -> None:
    """T3: a relay stands still between delivery and append, loses its lanes, wakes up: its append is refused."""
    zombie_transport, heir_transport = RecordingTransport(), RecordingTransport()
    zombie = Relay(
        shop.outbox, shop.database, zombie_transport, settings=RelaySettings(lease_seconds=0.5), probe=shop.signals
    )
    heir_shop = Shop(shop.dsn)
    ids = [shop.place("o-1", number) for number in range(3)]
    async with manual_relay(shop, zombie) as connection:
        carrier = zombie.carrier()
        batch = await carrier.read(connection, zombie.lanes.held)
        outcome = await carrier.deliver(batch)
        async with relay_on(heir_shop, transport=heir_transport, settings=RelaySettings(lease_seconds=0.5)):
            await heir_shop.signals.wait_total("relay.appended", 3)
        with pytest.raises(LeaseLost, match="another relay took over"):
            await carrier.settle(connection, batch, outcome)
    assert [event_id for (event_id,) in shop.rows("select id from log order by position")] == ids
    assert zombie_transport.ids == ids
    assert heir_transport.ids == ids
    assert_gapless(shop.log())


@pytest.mark.contract("T3")
async def test_a_relay_whose_lanes_were_taken_moves_nothing_even_if_its_heir_has_not_begun(
    shop: Shop,
) -> None:
    """T3: the fence is in the statement itself: refused means that no row has moved and no position was used."""
    ids = [shop.place("o-1", number) for number in range(3)]
    zombie = Relay(shop.outbox, shop.database, RecordingTransport(), settings=RelaySettings(lease_seconds=0.2))
    heir = Relay(shop.outbox, shop.database, RecordingTransport(), settings=RelaySettings(lease_seconds=5))
    async with manual_relay(shop, zombie) as connection, manual_relay(shop, heir) as other:
        carrier = zombie.carrier()
        batch = await carrier.read(connection, zombie.lanes.held)
        outcome = await carrier.deliver(batch)
        while len(heir.lanes.held) < 64:
            await heir.lanes.tick(other)
        with pytest.raises(LeaseLost):
            await carrier.settle(connection, batch, outcome)
        assert shop.log() == []
        assert shop.value("select position from head") == 0
        assert [event_id for (event_id,) in shop.rows("select id from outbox order by seq")] == ids
        failures = BatchOutcome([], [Failure(ids[0], RuntimeError("late"))])
        with pytest.raises(LeaseLost):
            await carrier.settle(connection, batch, failures)
        assert shop.value("select count(*) from outbox where retry_count > 0") == 0


@pytest.mark.contract("T3")
async def test_a_relay_that_dies_on_its_way_to_the_transport_has_marked_nothing(shop: Shop) -> None:
    """T3: deliver first, then append: an event whose delivery never happened is delivered by the next relay."""
    shop.signals.fail("relay.deliver", lambda: KeyboardInterrupt("killed"))
    ids = [shop.place("o-1", number) for number in range(3)]
    dying = Relay(
        shop.outbox,
        shop.database,
        RecordingTransport(),
        settings=RelaySettings(lease_seconds=0.3),
        probe=shop.signals,
    )
    async with manual_relay(shop, dying) as connection:
        carrier = dying.carrier()
        with pytest.raises(KeyboardInterrupt):
            await carrier.carry(connection, await carrier.read(connection, dying.lanes.held))
    transport, heir = RecordingTransport(), Shop(shop.dsn)
    async with relay_on(heir, transport=transport, settings=RelaySettings(lease_seconds=0.3)):
        await heir.signals.wait_total("relay.appended", 3)
    assert transport.ids == ids


@asynccontextmanager
async def manual_relay(shop: Shop, relay: Relay) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A relay that holds lanes but is stepped by hand."""
    connection = await shop.database.connect()
    try:
        await relay.lanes.tick(connection)
        yield connection
    finally:
        await connection.close()


@pytest.mark.contract("T3")
async def test_an_event_committed_between_read_and_resolution_is_not_stepped_over(shop: Shop) -> None:
    """T3: a writer ends after the read but before the marks are looked at; the watermark must not pass its event."""
    relay = Relay(shop.outbox, shop.database, LogTransport(), probe=shop.signals)
    async with manual_relay(shop, relay) as connection:
        carrier = relay.carrier()
        with shop.connect() as slow:
            shop.outbox.publish(slow, OrderPlaced("slow", 1), tenant_id="acme")
            shop.place("quick", 1)
            batch = await carrier.read(connection, relay.lanes.held)
            assert len(batch.events) == 1
            slow.commit()
        relay._marks.observe(2, ())
        await carrier.carry(connection, batch)
        again = await carrier.read(connection, relay.lanes.held)
        assert len(again.events) == 1
        await carrier.carry(connection, again)
    assert [order for _, order, _ in shop.log()] == ["quick", "slow"]


@pytest.mark.contract("T3")
async def test_a_relay_killed_after_delivery_and_before_append_delivers_again_and_loses_nothing(
    shop: Shop,
) -> None:
    """T3: at least once to the transport, once to the log, in order."""
    first = RecordingTransport()
    ids = [shop.place("o-1", number) for number in range(5)]
    dying = Relay(shop.outbox, shop.database, first, settings=RelaySettings(lease_seconds=0.3), probe=shop.signals)
    async with manual_relay(shop, dying) as connection:
        carrier = dying.carrier()
        await carrier.deliver(await carrier.read(connection, dying.lanes.held))
    second = RecordingTransport()
    heir = Shop(shop.dsn)
    async with relay_on(heir, transport=second, settings=RelaySettings(lease_seconds=0.3)):
        await heir.signals.wait_total("relay.appended", 5)
    assert first.ids == ids
    assert second.ids == ids
    assert [number for _, _, number in shop.log()] == [0, 1, 2, 3, 4]
    assert_gapless(shop.log())


async def test_a_transaction_left_open_elsewhere_stalls_nobody(shop: Shop) -> None:
    """A snapshot held open for the whole test, with and without a write to the outbox, delays no other event."""
    with shop.connect() as reader, shop.connect() as writer:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from shop.log")
        shop.outbox.publish(writer, OrderPlaced("open", 0), tenant_id="acme")
        async with relay_on(shop):
            for number in range(5):
                shop.place("o-1", number)
                await shop.signals.wait_total("relay.appended", number + 1)
        writer.rollback()
        reader.rollback()
    assert [number for _, _, number in shop.log()] == [0, 1, 2, 3, 4]


async def test_an_event_put_back_by_hand_is_published_although_the_watermark_is_past_it(shop: Shop) -> None:
    """An operator's plain UPDATE gives a failed event its old seq back, far below where the relay reads."""
    shop.place("o-1", 1)
    shop.rows("update outbox set status = 'failed', last_error = 'down', retry_count = 1")
    async with relay_on(shop, settings=RelaySettings(lease_seconds=2.0, gauge_seconds=0.05)) as relay:
        published = 0
        await shop.signals.wait("relay.idle")
        while relay._carrier_loops[0].carrier.reader.watermark.value <= 1:
            shop.place("o-2", published)
            published += 1
            await shop.signals.wait_total("relay.appended", published)
        shop.rows("update outbox set status = 'pending', last_error = null, retry_count = 0")
        await shop.signals.wait_total("relay.appended", published + 1)
    assert shop.log()[-1][1:] == ("o-1", 1)
