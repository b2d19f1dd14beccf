"""Relays beside each other, after each other and instead of each other: leases, hand-over, and events that kill."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.lanes import Lanes
from aftercommit.service import Waker
from tests.support.recording import RecordingTransport
from tests.support.relays import PATIENCE, RelayProcess, holds, listening_relay_on, relay_on
from tests.support.shop import OrderPlaced, Shop, shop_outbox


def free_lanes(shop: Shop) -> int:
    return int(shop.value("select count(*) from lane where relay is null"))


@pytest.mark.thorough
@pytest.mark.contract("K2")
async def test_an_event_that_kills_the_process_is_parked_and_the_others_are_delivered(
    shop: Shop, tmp_path: Path
) -> None:
    """K2: attempts are counted before delivery, so a supervisor that restarts the relay is not kept busy for ever."""
    file = tmp_path / "delivered"
    events = [OrderPlaced(f"o-{number % 4}", number, note="poison" if number == 5 else "") for number in range(12)]
    poison = shop.publish(*events)[5]
    options = {"lease_seconds": 0.4, "max_attempts": 2, "file": str(file), "poison": "poison"}
    deaths = 0
    while shop.value("select status from event_outbox where id = %s", [poison]) != "failed":
        with RelayProcess(shop, **options) as relay:
            await relay.ready()
            parked = asyncio.create_task(shop.value_becomes("select count(*) from outbox where status = 'failed'", 1))
            ended = asyncio.create_task(relay.ended())
            await asyncio.wait({parked, ended}, return_when=asyncio.FIRST_COMPLETED)
            deaths += ended.done()
            if parked.done():
                await shop.value_becomes("select count(*) from log", 11)
                relay.terminate()
                assert await ended == 0
            else:
                assert ended.result() == 1
                parked.cancel()
        assert deaths <= 4
    # The first death came in a batch, when nobody suspected anything; every later attempt was counted before it.
    attempts = [line.split()[2] for line in file.read_text().splitlines() if line.split()[1] == "5"]
    assert attempts == ["0", "1", "2"]
    assert deaths == 3
    assert shop.rows("select id, retry_count from outbox") == [(poison, 2)]
    assert shop.rows("select event_id, status, attempts, error_class from dead_letter_events") == [
        (poison, "parked", 2, "DeliveryNeverFinished")
    ]
    delivered = Counter(int(line.split()[1]) for line in file.read_text().splitlines())
    assert set(delivered) == set(range(12))
    assert [position for position, _, _ in shop.log()] == list(range(1, 12))


async def test_a_relay_that_stops_hands_its_lanes_over_at_once(shop: Shop) -> None:
    """The heir has everything as soon as the notification arrives: it would look round in minutes."""
    heir_shop, settings = Shop(shop.dsn), RelaySettings(lease_seconds=600.0)
    async with listening_relay_on(heir_shop, settings=settings) as heir:
        async with listening_relay_on(shop, settings=settings) as leaver:
            await holds(leaver.lanes, 32)
            await holds(heir.lanes, 32)
            assert leaver.lanes.held.isdisjoint(heir.lanes.held)
        await holds(heir.lanes, 64)
        assert heir.lanes.suspect == set()
        ids = heir_shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(100)))
        await heir_shop.signals.wait_total("relay.appended", len(ids))
    assert free_lanes(shop) == 64
    assert shop.value("select count(*) from relay") == 0


async def test_a_newcomer_gets_its_share_at_once(shop: Shop) -> None:
    """The others hear of it and give lanes up long before their next look round."""
    settings = RelaySettings(lease_seconds=600.0)
    newcomer_shop = Shop(shop.dsn)
    async with listening_relay_on(shop, settings=settings) as first:
        assert len(first.lanes.held) == 64
        async with listening_relay_on(newcomer_shop, settings=settings) as newcomer:
            await holds(newcomer.lanes, 32)
            assert len(first.lanes.held) == 32


async def test_sigterm_ends_a_relay_with_status_0_and_frees_its_lanes(shop: Shop) -> None:
    """As a container's end is announced."""
    with RelayProcess(shop, lease_seconds=60.0) as relay:
        await relay.ready()
        assert free_lanes(shop) == 0
        relay.terminate()
        assert await relay.ended() == 0
    assert free_lanes(shop) == 64


@pytest.mark.thorough
async def test_lanes_of_a_killed_relay_are_taken_over_when_its_lease_has_run_out(shop: Shop) -> None:
    """SIGKILL: nobody says goodbye. The heir's own lease is of minutes: it goes by the one that the dead relay had."""
    with RelayProcess(shop, lease_seconds=1.0) as victim:
        await victim.ready()
        async with relay_on(shop, settings=RelaySettings(lease_seconds=600.0)) as heir:
            # All of them when the machine stood still for longer than the victim's lease.
            await holds(heir.lanes, 32, or_more=True)
            victim.kill()
            shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(200)))
            await shop.signals.wait_total("relay.appended", 200)
    assert [position for position, _, _ in shop.log()] == list(range(1, 201))


async def test_a_takeover_does_not_wait_for_the_next_look_round(shop: Shop) -> None:
    """The heir looks again when the dead relay's lease runs out, not a third of its own lease later."""
    dead = Relay(shop.outbox, shop.database, RecordingTransport(), settings=RelaySettings(lease_seconds=600.0))
    connection = await shop.database.connect()
    await dead.lanes.tick(connection)
    async with relay_on(shop, settings=RelaySettings(lease_seconds=600.0)) as heir:
        assert len(heir.lanes.held) == 0
        # As if the dead one had a short lease; the heir looks once, and the next time when that is over.
        shop.rows(
            "update relay set leased_until = clock_timestamp() + interval '1 second', lease_seconds = 1 where id = %s",
            [dead.lanes.relay],
        )
        heir.lanes.tick_now.set()
        await holds(heir.lanes, 64)
        assert heir.lanes.suspect == set(range(64))
    await connection.close()


async def test_a_relay_with_lanes_of_its_own_takes_those_of_a_dead_one_whatever_their_leases_are(shop: Shop) -> None:
    """A relay that has let a lane run out is not counted among the living, however lately it was seen."""
    connection = await shop.database.connect()
    dead = Lanes(shop.outbox.shape, "dead", lease_seconds=1.0)
    async with relay_on(shop, settings=RelaySettings(lease_seconds=600.0)) as heir:
        assert len(heir.lanes.held) == 64
        await dead.tick(connection)
        heir.lanes.tick_now.set()
        await shop.value_becomes("select count(*) from lane where relay is null", 32)
        await dead.tick(connection)
        assert len(dead.held) == 32
        heir.lanes.tick_now.set()
        await holds(heir.lanes, 64)
        assert heir.lanes.suspect == dead.held
    await connection.close()


async def test_three_relays_share_the_lanes_evenly(shop: Shop) -> None:
    """22, 21 or 22, and what is left: nobody has more than its share, and every lane has one owner."""
    shops = [Shop(shop.dsn) for _ in range(3)]
    settings = RelaySettings(lease_seconds=600.0)
    async with (
        listening_relay_on(shops[0], settings=settings) as first,
        listening_relay_on(shops[1], settings=settings) as second,
        listening_relay_on(shops[2], settings=settings) as third,
    ):
        relays = [first, second, third]
        await shared_evenly([relay.lanes for relay in relays])
        owned = [row[0] for row in shop.rows("select count(*) from lane group by relay order by 1")]
        assert owned == [20, 22, 22]
        assert frozenset.union(*(relay.lanes.held for relay in relays)) == frozenset(range(64))


async def shared_evenly(relays: Sequence[Lanes]) -> None:
    """Until everybody holds its share, and so all that is given away is taken."""
    changed = Waker()
    for lanes in relays:
        lanes.watch(changed)
    async with asyncio.timeout(PATIENCE):
        while sorted(len(lanes.held) for lanes in relays) != [20, 22, 22]:
            await changed.wait()
            changed.clear()


async def test_lanes_change_hands_without_anything_being_delivered_twice(shop: Shop) -> None:
    """A relay that must give lanes away finishes what it has begun on them first."""
    newcomer_shop = Shop(shop.dsn)
    transports = RecordingTransport(), RecordingTransport()
    ids = set(shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(100))))
    hold = shop.signals.hold("relay.delivered")
    settings = RelaySettings(lease_seconds=600.0, batch_size=100)
    async with listening_relay_on(shop, transport=transports[0], settings=settings) as first:
        await hold.wait()
        async with listening_relay_on(newcomer_shop, transport=transports[1], settings=settings) as newcomer:
            # The first relay has looked round and knows that half of its lanes are to go, but it is at work on them.
            await holds(first.lanes, 32)
            assert len(newcomer.lanes.held) == 0
            hold.release()
            await holds(newcomer.lanes, 32)
            ids |= set(shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(100, 200))))
            await shop.value_becomes("select count(*) from log", 200)
    delivered = [event_id for transport in transports for event_id in transport.ids]
    assert len(delivered) == 200
    assert set(delivered) == ids
    assert shop.signals.counts["relay.fenced"] == newcomer_shop.signals.counts["relay.fenced"] == 0


async def test_suspicion_goes_with_the_lanes(shop: Shop) -> None:
    """Lanes of a dead relay that are handed on before their events were tried one by one are as suspect as before."""
    connection = await shop.database.connect()
    shape = shop.outbox.shape
    dead, heir, second = (Lanes(shape, name, lease_seconds=0.05) for name in ("dead", "heir", "second"))
    await dead.tick(connection)
    heir.lease = second.lease = 60.0
    await shop.value_becomes("select count(*) from relay where leased_until < clock_timestamp()", 1)
    await heir.tick(connection)
    assert heir.suspect == set(range(64))
    heir.forget()
    await heir.tick(connection)
    assert heir.suspect == heir.held == set(range(64))
    heir.suspect -= {0, 1, 2, 63}
    await heir.release_all(connection)
    await second.tick(connection)
    assert len(second.held) == 64
    assert second.suspect == set(range(64)) - {0, 1, 2, 63}
    await connection.close()


@pytest.mark.thorough
async def test_a_relay_cut_off_for_longer_than_its_lease_stops_delivering(shop: Shop) -> None:
    """It cannot renew, so somebody else may have its lanes: it delivers nothing until it can."""
    transport = RecordingTransport()
    async with relay_on(shop, transport=transport, settings=RelaySettings(lease_seconds=0.5)) as relay:
        with shop.connect() as blocker:
            blocker.execute("lock table shop.relay in access exclusive mode")
            async with asyncio.timeout(PATIENCE):
                while relay.lanes.are_valid:  # noqa: ASYNC110 - a lease runs out without telling anybody
                    await asyncio.sleep(0.01)
            await goes_round(relay)
            # Publishing would wait for the lock as well; the event stands in the outbox all the same.
            shop.rows(
                "insert into outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id) "
                "values (gen_random_uuid(), 'order', 'o-1', 'order.placed', 'c', '{\"number\": 1}', 'acme')"
            )
            for _ in range(3):
                await goes_round(relay)
            assert transport.records == []
            assert shop.value("select count(*) from outbox") == 1
            blocker.rollback()
        await shop.signals.wait_total("relay.appended", 1)
    assert len(transport.records) == 1


async def goes_round(relay: Relay) -> None:
    """Until the carrier, which has no lanes, has nothing in hand: each time it goes round it asks for a look round."""
    relay.lanes.tick_now.clear()
    await asyncio.wait_for(relay.lanes.tick_now.wait(), PATIENCE)


async def test_several_carriers_of_one_relay_never_share_a_lane(shop: Shop) -> None:
    """Four carriers side by side: everything goes out once, every aggregate in order."""
    transport = RecordingTransport()
    events = [OrderPlaced(f"o-{number % 20}", number // 20) for number in range(400)]
    shop.publish(*events)
    async with relay_on(shop, transport=transport, settings=RelaySettings(lease_seconds=2, carriers=4, batch_size=7)):
        await shop.signals.wait_total("relay.appended", 400)
    assert len(set(transport.ids)) == len(transport.ids) == 400
    for order in range(20):
        numbers = [number for _, name, number in shop.log() if name == f"o-{order}"]
        assert numbers == list(range(20))


async def test_a_relay_that_is_stopped_finishes_its_batch_first(shop: Shop) -> None:
    """What the transport has taken is in the log when stop() returns."""
    transport = RecordingTransport()
    hold = shop.signals.hold("relay.delivered")
    ids = shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(10)))
    relay = Relay(shop.outbox, shop.database, transport, probe=shop.signals)
    await relay.start()
    await hold.wait()
    stopping = asyncio.create_task(relay.stop())
    hold.release()
    await stopping
    assert transport.ids == list(ids)
    assert len(shop.log()) == 10


async def test_a_delivery_that_hangs_is_cut_off_when_the_relay_stops(shop: Shop) -> None:
    """After drain_seconds; the events stay in the outbox, uncharged, and the lanes are free."""

    class Hanging(RecordingTransport):
        async def deliver(self, records):
            await asyncio.Event().wait()

    shop.place()
    async with relay_on(shop, transport=Hanging(), settings=RelaySettings(drain_seconds=0.05)):
        await shop.signals.wait("relay.deliver")
    assert shop.rows("select status, retry_count from outbox") == [("pending", 0)]
    assert free_lanes(shop) == 64


async def test_a_relay_that_loses_its_database_while_a_delivery_is_cut_off_stops_as_it_was_told(shop: Shop) -> None:
    """Whoever waits for its end is told of no cancellation that nobody asked for."""

    class Cut(RecordingTransport):
        async def deliver(self, records):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise psycopg.OperationalError("server closed the connection unexpectedly") from None

    shop.place()
    relay = Relay(shop.outbox, shop.database, Cut(), settings=RelaySettings(drain_seconds=0.05), probe=shop.signals)
    await relay.start()
    await shop.signals.wait("relay.deliver")
    await relay.stop()
    assert shop.rows("select status, retry_count from outbox") == [("pending", 0)]


async def test_an_event_sent_again_by_an_operator_is_tried_although_the_relay_had_died(shop: Shop) -> None:
    """Its attempts were used up before; after a takeover it gets the one more that was asked for."""
    shop = replace(shop, outbox=shop_outbox(max_attempts=2))
    event_id = shop.place()
    shop.rows("update outbox set retry_count = 2, last_error = 'x', next_retry_at = clock_timestamp()")
    dead = Relay(shop.outbox, shop.database, RecordingTransport(), settings=RelaySettings(lease_seconds=0.1))
    connection = await shop.database.connect()
    await dead.lanes.tick(connection)
    await connection.close()
    transport = RecordingTransport()
    async with relay_on(shop, transport=transport, settings=RelaySettings(lease_seconds=0.5)):
        await shop.signals.wait_total("relay.appended", 1)
    assert transport.ids == [event_id]
