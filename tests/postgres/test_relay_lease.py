"""The lease of a relay: one row at rest, the same takeover as ever, and relays of the release before beside it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from aftercommit.operate.overview import overview
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.relay import RelaySettings
from aftercommit.relay.lanes import Lanes
from tests.support.relays import holds, listening_relay_on, relay_on
from tests.support.shop import OrderPlaced, Shop

LEASE = 600.0
LANE_ROWS = "select lane, relay, token, leased_until, xmin::text from lane order by lane"


@pytest.fixture
async def connection(shop: Shop) -> AsyncIterator[AsyncConnection]:
    async with await shop.database.connect() as found:
        yield found


@pytest.fixture
async def other(shop: Shop) -> AsyncIterator[AsyncConnection]:
    async with await shop.database.connect() as found:
        yield found


def lanes_of(shop: Shop, name: str, lease: float = LEASE) -> Lanes:
    return Lanes(shop.outbox.shape, name, lease_seconds=lease)


def expire(shop: Shop, lanes: Lanes) -> None:
    """As if this relay had been silent for too long."""
    shop.rows("update relay set leased_until = '-infinity' where id = %s", [lanes.relay])


class OldRelay:
    """A relay of the release before 0008, in its own statements: it knows nothing of the leases of relays."""

    def __init__(self, shop: Shop, lease: float = LEASE) -> None:
        self._shop = shop
        self.relay, self.token, self.lease = uuid4(), uuid4(), lease

    def heartbeat(self) -> None:
        self._run(
            "insert into relay (id, name, listening) values (%(relay)s, 'old', false) "
            "on conflict (id) do update set seen_at = clock_timestamp()"
        )

    def take(self, wanted: int = 64) -> set[int]:
        """What it takes: free lanes, and those whose own lease is void."""
        rows = self._run(
            """
            with open as (
                select lane, relay from lane
                where (relay is null or leased_until < clock_timestamp() or leased_until > clock_timestamp()
                       + make_interval(secs => greatest(coalesce(lease_seconds, 3600), %(lease)s)))
                  and token is distinct from %(token)s
                order by lane limit %(wanted)s for update skip locked
            ),
            buried as (
                delete from relay
                where id in (select id from relay where id in (select relay from open) for update skip locked)
            )
            update lane set relay = %(relay)s, token = %(token)s, lease_seconds = %(lease)s,
                leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
            from open where lane.lane = open.lane
            returning lane.lane
            """,
            wanted=wanted,
        )
        return {lane for (lane,) in rows}

    def _run(self, query: str, **more: Any) -> list[tuple[Any, ...]]:
        parameters = {"relay": self.relay, "token": self.token, "lease": self.lease, **more}
        with self._shop.connect(autocommit=True) as connection:
            connection.execute("set search_path to shop")
            cursor = connection.execute(query.encode(), parameters)
            return cursor.fetchall() if cursor.description else []


async def test_a_relay_at_rest_writes_its_own_row_and_no_lane(shop: Shop, connection: AsyncConnection) -> None:
    lanes = lanes_of(shop, "quiet")
    await lanes.tick(connection)
    rows, lease = shop.rows(LANE_ROWS), shop.value("select leased_until from relay")
    for _ in range(3):
        await lanes.tick(connection)
        assert shop.rows(LANE_ROWS) == rows
        assert shop.value("select leased_until from relay") > lease
    assert lanes.held == frozenset(range(64))


async def test_the_lanes_of_a_relay_whose_lease_has_run_out_are_free_although_their_own_leases_are_long(
    shop: Shop, connection: AsyncConnection
) -> None:
    """And those that the first heir leaves are free for the second at once."""
    dead, first, second = (lanes_of(shop, name) for name in ("dead", "first", "second"))
    await dead.tick(connection)
    await first.tick(connection)
    await second.tick(connection)
    assert first.held == second.held == frozenset()
    expire(shop, dead)
    await first.tick(connection)
    assert len(first.held) == 32
    await second.tick(connection)
    assert first.held | second.held == frozenset(range(64))
    assert first.suspect | second.suspect == set(range(64))
    assert shop.value("select count(*) from relay where name = 'dead'") == 0


async def test_a_relay_that_renews_too_late_sees_which_lanes_a_takeover_leaves_it(
    shop: Shop, connection: AsyncConnection, other: AsyncConnection
) -> None:
    """The takeover has begun and is not committed: the renewal waits for it, or both would think the lanes theirs."""
    late, third, heir = (lanes_of(shop, name) for name in ("late", "third", "heir"))
    await late.tick(connection)
    await third.tick(connection)
    expire(shop, late)
    await other.execute("begin")
    await heir.tick(other)
    assert len(heir.held) == 32
    renewal = asyncio.create_task(late.tick(connection))
    waiting = "datname = current_database() and wait_event_type = 'Lock' and query like '-- Renews the lease of this%'"
    await shop.value_becomes(f"select count(*) from pg_stat_activity where {waiting}", 1)
    await other.execute("commit")
    await renewal
    assert len(late.held | late._leaving) <= 32
    assert late.held.isdisjoint(heir.held)
    owners = dict(shop.rows("select lane, relay from lane where relay is not null"))
    assert {lane for lane, relay in owners.items() if relay == late.relay} == late.held


async def test_a_relay_that_renews_in_time_keeps_its_lanes_from_one_that_is_taking_them(
    shop: Shop, connection: AsyncConnection, other: AsyncConnection
) -> None:
    """The renewal is not committed yet: the other relay steps over it."""
    late, heir = lanes_of(shop, "late"), lanes_of(shop, "heir")
    await late.tick(connection)
    expire(shop, late)
    await connection.execute("begin")
    await late.tick(connection)
    await heir.tick(other)
    await connection.execute("commit")
    assert heir.held == frozenset()
    assert late.held == frozenset(range(64))


async def test_a_relay_of_the_release_before_takes_no_lane_of_a_live_relay(
    shop: Shop, connection: AsyncConnection
) -> None:
    """It comes while nobody expects it, and sees leases of lanes that nobody has renewed for a while."""
    lanes, old = lanes_of(shop, "new", lease=1.0), OldRelay(shop, lease=1.0)
    await lanes.tick(connection)
    await shop.value_becomes("select count(*) from relay where leased_until < clock_timestamp()", 1)
    await lanes.tick(connection)
    old.heartbeat()
    assert old.take() == set()


async def test_a_relay_of_the_release_before_gets_its_share_and_the_lanes_of_a_dead_one(shop: Shop) -> None:
    """While it is alive, the lanes have leases by which it can tell a dead relay from a live one."""
    old = OldRelay(shop, lease=LEASE)
    async with listening_relay_on(shop, settings=RelaySettings(lease_seconds=LEASE)) as relay:
        assert shop.value("select max(leased_until) > clock_timestamp() + interval '1 hour' from lane")
        old.heartbeat()
        relay.lanes.tick_now.set()
        await holds(relay.lanes, 32)
        await shop.value_becomes("select count(*) from lane where relay is null", 32)
        assert len(old.take()) == 32
        assert shop.value("select max(leased_until) <= clock_timestamp() + interval '600 s' from lane")
        shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(50)))
        held = list(relay.lanes.held)
        await shop.value_becomes(f"select count(*) from outbox where lane = any(array{held})", 0)
        assert shop.value("select count(*) from log where not lane = any(%s)", [held]) == 0


async def test_the_lanes_of_a_dead_relay_of_the_release_before_are_taken_when_their_leases_have_run_out(
    shop: Shop, connection: AsyncConnection
) -> None:
    old, lanes = OldRelay(shop, lease=LEASE), lanes_of(shop, "new")
    old.heartbeat()
    assert len(old.take()) == 64
    await lanes.tick(connection)
    assert lanes.held == frozenset()
    shop.rows("update lane set leased_until = clock_timestamp() - interval '1 second'")
    await lanes.tick(connection)
    assert lanes.held == lanes.suspect == frozenset(range(64))


async def test_a_lease_of_a_relay_from_before_the_clock_was_set_back_is_void(
    shop: Shop, connection: AsyncConnection
) -> None:
    dead, heir = lanes_of(shop, "dead"), lanes_of(shop, "heir")
    await dead.tick(connection)
    shop.rows("update relay set leased_until = clock_timestamp() + interval '1 day'")
    await heir.tick(connection)
    assert heir.held == frozenset(range(64))


async def test_a_lane_without_events_is_neither_locked_nor_waited_for(shop: Shop) -> None:
    """Each lock is written to the write-ahead log, and another relay may be taking an idle lane."""
    async with listening_relay_on(shop):
        with shop.connect() as taking:
            shop.publish(OrderPlaced("o-1", 0))
            await shop.signals.wait_total("relay.appended", 1)
            (lane,) = shop.rows("select lane from log")[0]
            taking.execute("select from shop.lane where lane <> %s for update", (lane,))
            shop.publish(OrderPlaced("o-1", 1))
            await shop.signals.wait_total("relay.appended", 2)
    assert shop.value("select count(*) from log") == 2


async def test_an_event_that_nobody_rings_for_is_found_by_the_control_loop(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain INSERT rings no bell, and the carrier itself would look in ten minutes."""
    monkeypatch.setattr("aftercommit.relay.doorbell.POLL", 600.0)
    monkeypatch.setattr("aftercommit.relay.carrier_loop.FIRST_LOOK", 600.0)
    async with listening_relay_on(shop, settings=RelaySettings(lease_seconds=LEASE, gauge_seconds=60.0)):
        await shop.value_becomes("select count(*) from relay where listening", 1)
        for count in (1, 2):
            shop.rows(
                "insert into outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id) "
                "values (gen_random_uuid(), 'order', 'o-1', 'order.placed', 'c', '{\"number\": 1}', 'acme')"
            )
            await shop.signals.wait_total("relay.appended", count)


async def test_a_status_counts_the_lanes_of_a_relay_by_its_lease(shop: Shop) -> None:
    async with relay_on(shop, settings=RelaySettings(lease_seconds=LEASE)) as relay:
        with shop.connect(autocommit=True) as operator:
            seen = overview(operator, shop.outbox.shape)
            assert (seen.relays[0].lanes, seen.free_lanes) == (64, 0)
            expire(shop, relay.lanes)
            seen = overview(operator, shop.outbox.shape)
            assert (seen.relays[0].lanes, seen.free_lanes) == (0, 64)
