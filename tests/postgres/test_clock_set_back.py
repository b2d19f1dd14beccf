"""A database whose clock was set back holds up nobody: leases from the future are void, ages are never negative."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from aftercommit.consumer import names
from aftercommit.embedded import EmbeddedPostgres
from aftercommit.errors import ConsumerNameTaken, OperationBusy
from aftercommit.operate import ReplayDriver, Selection
from aftercommit.operate.doctor import diagnose
from aftercommit.operate.health import problems
from aftercommit.operate.overview import Overview, overview
from aftercommit.relay import RelaySettings
from aftercommit.schema import migrate
from aftercommit.schema.retention import the_only_one
from aftercommit.testing.postgres import SETTINGS_FOR_TESTS
from aftercommit.testing.signals import Signals
from tests.faults.stage import faketime
from tests.support.consuming import Ledger, kill, numbered, place_in_log, worker_on
from tests.support.relays import holds, relay_on
from tests.support.repairing import Fragile, desk
from tests.support.shop import OrderPlaced, Shop, shop_outbox

pytestmark = pytest.mark.contract("E7")

A_DAY_AHEAD = "clock_timestamp() + interval '1 day'"
LEASE = 2.0


def look(shop: Shop) -> Overview:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        return overview(connection, shop.outbox.shape)


def dead_relay(shop: Shop) -> None:
    """One that died while the clock was a day ahead: it holds every lane, and was heard of then."""
    shop.rows(f"insert into relay (id, name, seen_at) values (gen_random_uuid(), 'relay dead', {A_DAY_AHEAD})")
    shop.rows(
        f"update lane set relay = (select id from relay where name = 'relay dead'), token = gen_random_uuid(), "
        f"leased_until = {A_DAY_AHEAD}, lease_seconds = 5"
    )


def dead_worker(shop: Shop) -> None:
    """The same for the consumer."""
    shop.rows(
        f"update consumer set worker = 'dead', token = gen_random_uuid(), leased_until = {A_DAY_AHEAD}, "
        "lease_seconds = 5"
    )


async def test_a_relay_takes_lanes_whose_lease_ends_in_the_far_future(shop: Shop) -> None:
    dead_relay(shop)
    shop.place("o-1")
    async with relay_on(shop, settings=RelaySettings(lease_seconds=LEASE)) as relay:
        await holds(relay.lanes, 64)
        await shop.value_becomes("select count(*) from log", 1)
    assert shop.rows("select name from relay") == []


async def test_a_lease_that_another_was_told_to_take_for_longer_is_left_alone(shop: Shop) -> None:
    """Two processes may be told different lengths: the row knows the one that it was taken with."""
    shop.rows(
        "update lane set relay = gen_random_uuid(), token = gen_random_uuid(), lease_seconds = 600, "
        "leased_until = clock_timestamp() + interval '590 s'"
    )
    async with relay_on(shop, settings=RelaySettings(lease_seconds=LEASE)) as relay:
        assert relay.lanes.held == frozenset()


# Programs from before leases knew their length write the end alone, for whatever length they were told.
OLD_LEASE = "leased_until = clock_timestamp() + interval '590 s'"


async def test_an_older_relay_keeps_the_lanes_that_it_took_from_one_that_stopped(shop: Shop) -> None:
    async with relay_on(shop, settings=RelaySettings(lease_seconds=LEASE)) as relay:
        await holds(relay.lanes, 64)
    shop.rows("insert into relay (id, name) values (gen_random_uuid(), 'relay old')")
    shop.rows(f"update lane set relay = (select id from relay), token = gen_random_uuid(), {OLD_LEASE}")
    seen = look(shop)
    assert (seen.relays[0].lanes, seen.free_lanes) == (64, 0)
    shop.signals = Signals()
    async with relay_on(shop, settings=RelaySettings(lease_seconds=LEASE)) as relay:
        assert relay.lanes.held == frozenset()


async def test_an_older_worker_keeps_the_consumer_that_it_took_from_one_that_stopped(shop: Shop) -> None:
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(Ledger(shop).write)
    async with worker_on(shop, consumer, lease_seconds=LEASE):
        pass
    shop.rows(f"update consumer set worker = 'old', token = gen_random_uuid(), {OLD_LEASE}")
    assert look(shop).consumers[0].holder == "old"
    async with await shop.database.connect() as connection:
        assert (await names.known_consumers(connection, shop.outbox.shape))[0].alive
        with pytest.raises(ConsumerNameTaken, match="at work"):
            await names.rename(connection, shop.outbox.shape, "index", "search")
        with pytest.raises(ConsumerNameTaken, match="at work"):
            await names.forget(connection, shop.outbox.shape, "index")
    async with worker_on(shop, consumer, lease_seconds=LEASE, signals=Signals(), wait_for="consumer.standing_by"):
        assert shop.value("select worker from consumer") == "old"


async def test_an_older_driver_keeps_the_replay_that_it_drives(shop: Shop) -> None:
    fragile = Fragile(shop, 1)
    place_in_log(shop, *numbered(3))
    await fragile.work()
    operation = await desk(shop).start(Selection(from_position=1), to="index")
    shop.rows("update operation set driver = gen_random_uuid(), driven_until = clock_timestamp() + interval '590 s'")
    assert look(shop).operations[0].driven
    with pytest.raises(OperationBusy):
        async with asyncio.timeout(20):
            await ReplayDriver(shop.outbox, shop.database, operation.id).run()


@pytest.mark.parametrize("ends", ["59 min", "61 min"])
async def test_a_lease_without_a_length_is_void_when_it_ends_more_than_an_hour_ahead(shop: Shop, ends: str) -> None:
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(Ledger(shop).write)
    async with worker_on(shop, consumer):
        pass
    shop.rows(
        "update consumer set worker = 'old', token = gen_random_uuid(), lease_seconds = null, "
        f"leased_until = clock_timestamp() + interval '{ends}'"
    )
    is_void = ends == "61 min"
    assert look(shop).consumers[0].holder == (None if is_void else "old")
    waited = "consumer.active" if is_void else "consumer.standing_by"
    async with worker_on(shop, consumer, lease_seconds=LEASE, signals=Signals(), wait_for=waited):
        assert (shop.value("select worker from consumer") == "old") is not is_void


async def test_a_worker_takes_a_consumer_whose_lease_ends_in_the_far_future(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(ledger.write)
    place_in_log(shop, *numbered(2))
    async with worker_on(shop, consumer):
        await shop.value_becomes("select position from consumer", 2)
    dead_worker(shop)
    place_in_log(shop, ("o-1", 2))
    async with worker_on(shop, consumer, signals=Signals(), lease_seconds=LEASE):
        await shop.value_becomes("select position from consumer", 3)
    assert ledger.numbers() == [0, 1, 2]


async def test_a_dead_worker_of_the_future_is_nobody_to_status_and_to_who_renames_its_consumer(shop: Shop) -> None:
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(Ledger(shop).write)
    async with worker_on(shop, consumer):
        pass
    dead_worker(shop)
    assert look(shop).consumers[0].holder is None
    async with await shop.database.connect() as connection:
        assert not (await names.known_consumers(connection, shop.outbox.shape))[0].alive
        await names.rename(connection, shop.outbox.shape, "index", "search")
        dead_worker(shop)
        await names.forget(connection, shop.outbox.shape, "search")
    assert shop.rows("select * from consumer") == []


async def test_a_driver_goes_on_with_a_replay_whose_driver_died_in_the_future(shop: Shop) -> None:
    fragile = Fragile(shop, 1)
    place_in_log(shop, *numbered(3))
    await fragile.work()
    fragile.mend()
    operation = await desk(shop).start(Selection(from_position=1), to="index")
    shop.rows(
        f"update operation set driver = gen_random_uuid(), driven_by = 'dead', driven_until = {A_DAY_AHEAD}, "
        "lease_seconds = 10"
    )
    assert not look(shop).operations[0].driven
    async with worker_on(shop, fragile.consumer, signals=Signals()):
        done = await ReplayDriver(shop.outbox, shop.database, operation.id).run()
    assert done.status == "done"


async def test_who_cannot_drive_is_told_who_does_and_when_to_try_again(shop: Shop) -> None:
    fragile = Fragile(shop, 1)
    place_in_log(shop, *numbered(3))
    await fragile.work()
    operation = await desk(shop).start(Selection(from_position=1), to="index")
    shop.rows(
        "update operation set driver = gen_random_uuid(), driven_by = 'web-1:4711', "
        "driven_until = clock_timestamp() + interval '7 s', lease_seconds = 10"
    )
    with pytest.raises(OperationBusy, match=r"\(web-1:4711\) drives .* lease ends at .*Z.*try again in [67] s"):
        await ReplayDriver(shop.outbox, shop.database, operation.id).run()


async def test_the_right_to_sweep_comes_back_from_the_future(shop: Shop) -> None:
    shop.rows(
        f"insert into upkeep (task, ran_at, leased_until, lease_seconds) values ('sweep', {A_DAY_AHEAD}, "
        f"{A_DAY_AHEAD}, 20) on conflict (task) do update set ran_at = excluded.ran_at, "
        "leased_until = excluded.leased_until, lease_seconds = excluded.lease_seconds"
    )
    with (
        psycopg.connect(shop.dsn, autocommit=True) as connection,
        the_only_one(connection, shop.outbox.shape, interval=60.0) as ours,
    ):
        assert ours is not None


async def test_letters_of_the_future_can_be_tried_again(shop: Shop) -> None:
    """Their row says that they were seen later than now."""
    fragile = Fragile(shop, 1)
    place_in_log(shop, *numbered(3))
    await fragile.work()
    shop.rows(
        f"update dead_letter_events set first_seen_at = {A_DAY_AHEAD}, last_seen_at = {A_DAY_AHEAD}, "
        "status = 'retrying', next_retry_at = clock_timestamp()"
    )
    fragile.mend()
    async with worker_on(shop, fragile.consumer, signals=Signals()):
        await shop.value_becomes("select status from dead_letter_events", "resolved")


async def test_status_and_doctor_say_that_the_clock_was_set_back(shop: Shop) -> None:
    dead_relay(shop)
    shop.place("o-1")
    shop.rows(f"update outbox set created_at = {A_DAY_AHEAD}")
    seen = look(shop)
    (relay,) = seen.relays
    assert (relay.silent_seconds, relay.is_alive, relay.lanes) == (None, False, 0)
    assert relay.ahead_seconds == pytest.approx(86400, abs=60)
    assert seen.free_lanes == 64
    assert seen.oldest_seconds == 0
    (problem,) = problems(seen)
    assert "no relay is alive" in problem.found
    assert "clock of the database server" in problem.remedy
    found = [each.found for each in diagnose(shop.database, lambda connection: shop.outbox.shape)]
    assert any("in the future: the clock of the database server was set back" in each for each in found)


async def test_a_word_from_a_little_ahead_counts_as_just_now(shop: Shop) -> None:
    shop.rows(
        "insert into relay (id, name, seen_at) values (gen_random_uuid(), 'r', clock_timestamp() + interval '5 s')"
    )
    (relay,) = look(shop).relays
    assert (relay.silent_seconds, relay.is_alive) == (0.0, True)


@contextmanager
def server_with_a_clock(folder: Path, clock: Path) -> Iterator[str]:
    """A PostgreSQL that reads the time from a file."""
    folder.chmod(0o755)
    clock.write_text("+0")
    clock.chmod(0o644)
    told = {
        "LD_PRELOAD": str(faketime()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    server = EmbeddedPostgres(folder / "server", settings=SETTINGS_FOR_TESTS)
    before = dict(os.environ)
    os.environ.update(told)
    try:
        server.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        yield server.dsn
    finally:
        server.stop("immediate")


@pytest.mark.needs("faketime")
async def test_a_relay_and_a_worker_that_died_a_day_ahead_are_followed_within_seconds(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    with server_with_a_clock(tmp_path, clock) as dsn:
        with psycopg.connect(dsn) as connection:
            migrate.up(connection, shop_outbox().shape)
        shop = Shop(dsn)
        ledger = Ledger(shop)
        consumer = shop.outbox.consumer("index")
        consumer.on(OrderPlaced)(ledger.write)
        clock.write_text("+1d")
        assert shop.value("select clock_timestamp()::date - statement_timestamp()::date") == 0
        async with relay_on(shop) as relay, worker_on(shop, consumer) as worker:
            shop.place("o-1", 0)
            await shop.value_becomes("select position from consumer", 1)
            await kill(worker)
            assert relay._task is not None
            relay._task.cancel()
            await asyncio.wait({relay._task})
            relay._task = None
        assert shop.value("select min(leased_until) > clock_timestamp() from lane") is True
        clock.write_text("+0")
        await shop.value_becomes("select min(leased_until) > clock_timestamp() + interval '20 h' from lane", True)
        shop.place("o-1", 1)
        shop.signals = Signals()
        async with relay_on(shop), worker_on(shop, consumer):
            await shop.value_becomes("select position from consumer", 2, timeout=30)
        assert ledger.numbers() == [0, 1]
