"""A log that was restored goes on above all that it can have given: seen at the relay, the consumers and the tables."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from aftercommit.consumer import LogWorker, WorkerSettings
from aftercommit.postgres import lives
from aftercommit.relay import Relay
from aftercommit.schema import migrate
from tests.feed.journal import until
from tests.support.old_schema import migrate_up_to
from tests.support.relays import relay_on
from tests.support.restoring import Restorable, restorable
from tests.support.shop import OrderPlaced, Shop, shop_outbox

MICROSECONDS = 10**15


@pytest.fixture(scope="module")
def running() -> Iterator[Restorable]:
    with restorable() as server:
        yield server


@pytest.fixture
def place(running: Restorable) -> Shop:
    """A shop on a server that can be restored."""
    running.rows("drop database if exists shop (force)")
    running.rows("create database shop")
    shop = Shop(running.dsn("shop"), shop_outbox(numbered=["order"]))
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        migrate.up(connection, shop.outbox.shape)
    return shop


@asynccontextmanager
async def relaying(shop: Shop) -> AsyncIterator[Relay]:
    async with relay_on(shop) as relay:
        yield relay


async def publish(shop: Shop, *numbers: int) -> None:
    for number in numbers:
        shop.publish(OrderPlaced("o-1", number))
    await until_logged(shop, numbers[-1])


async def until_logged(shop: Shop, number: int) -> None:
    query = "select exists (select from log where (payload ->> 'number')::int = %s)"
    await until(lambda: bool(shop.value(query, [number])))


def positions(shop: Shop) -> list[int]:
    return [row[0] for row in shop.rows("select position from log order by position")]


def seqs(shop: Shop) -> list[int]:
    return [row[0] for row in shop.rows("select stream_seq from log order by position")]


def life(shop: Shop) -> tuple[int, int, int, str]:
    return shop.rows("select number, base, previous_last, reason from life order by number desc limit 1")[0]


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_after_a_recovery_to_a_point_in_time_positions_and_streams_go_on_above_all_that_was_given(
    running: Restorable, place: Shop
) -> None:
    async with relaying(place):
        await publish(place, *range(1, 6))
        backup = running.backup()
        await publish(place, *range(6, 11))
        point = running.restore_point()
        await publish(place, *range(11, 31))

        await asyncio.to_thread(running.recover, backup, point)
        await publish(place, *range(31, 41))

    number, base, previous_last, reason = life(place)
    assert (number, previous_last) == (2, 10)
    assert "timeline 2, was 1" in reason
    assert base > MICROSECONDS
    assert positions(place) == [*range(1, 11), *range(base + 1, base + 11)]
    assert seqs(place) == positions(place)
    assert place.value("select count(*) from log where position > 30") == 10


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_a_backup_that_is_restored_twice_goes_on_above_what_was_given_after_the_first_time(
    running: Restorable, place: Shop
) -> None:
    async with relaying(place):
        await publish(place, 1, 2, 3)
        backup, point = running.backup(), running.restore_point()
        await publish(place, 4, 5)
        await asyncio.to_thread(running.recover, backup, point)
        await publish(place, *range(10, 15))
        last = positions(place)[-1]
        await asyncio.to_thread(running.recover, backup, point)
        await publish(place, 20, 21)

    assert positions(place)[:3] == [1, 2, 3]
    assert positions(place)[3] > last > MICROSECONDS
    assert life(place)[0] == 2


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_a_relay_that_has_seen_the_log_further_on_notices_a_copy_of_the_data_folder(
    running: Restorable, place: Shop
) -> None:
    async with relaying(place):
        await publish(place, 1, 2, 3)
        copy = await asyncio.to_thread(running.copy)
        await publish(place, 4, 5)
        await asyncio.to_thread(running.put_back, copy)
        await publish(place, 6)

    number, base, previous_last, reason = life(place)
    assert (number, previous_last) == (2, 3)
    assert reason == "the log ends at 3, but had reached 5 before: it was restored from a copy"
    assert positions(place) == [1, 2, 3, base + 1]


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_a_server_that_is_merely_restarted_goes_on_without_a_gap(running: Restorable, place: Shop) -> None:
    async with relaying(place):
        await publish(place, 1, 2)
        await asyncio.to_thread(running.server.stop, "immediate")
        await asyncio.to_thread(running.server.start)
        await publish(place, 3)

    assert positions(place) == [1, 2, 3]
    assert life(place)[0] == 1


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_a_dump_that_is_loaded_beside_the_original_begins_a_life_of_its_own(
    running: Restorable, place: Shop
) -> None:
    async with relaying(place):
        await publish(place, 1, 2)
    running.rows("drop database if exists shop_copy (force)")
    running.rows("create database shop_copy template shop")
    other = Shop(running.dsn("shop_copy"), place.outbox)
    async with relaying(other):
        await publish(other, 3)

    assert life(other)[0] == 2
    assert "the database was copied" in life(other)[3]


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_consumers_handle_what_was_restored_and_what_is_new_once_and_count_no_position_that_was_never_given(
    running: Restorable, place: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    place.rows("create table handled (number integer primary key)")
    consumer = place.outbox.consumer("counting")

    @consumer.on(OrderPlaced)
    async def count(event, connection) -> None:
        await connection.execute("insert into shop.handled values (%s)", [event.payload.number])

    worker = LogWorker(place.outbox, consumer, place.database, settings=WorkerSettings(lease_seconds=2.0))

    def handled() -> list[int]:
        return [row[0] for row in place.rows("select number from handled order by 1")]

    async def until_handled(numbers: list[int]) -> None:
        await until(lambda: handled() == numbers)

    async with relaying(place), worker:
        await publish(place, 1, 2, 3)
        await until_handled([1, 2, 3])
        backup = running.backup()
        await publish(place, 4, 5)
        point = running.restore_point()
        await publish(place, 6, 7)
        await until_handled([1, 2, 3, 4, 5, 6, 7])
        await asyncio.to_thread(running.recover, backup, point)
        await publish(place, 8, 9)
        await until_handled([1, 2, 3, 4, 5, 8, 9])
        meter = place.outbox.meter
        assert meter.log_events == 7
        await until(lambda: meter.consumer_events["counting"] == 7)
    assert not [record for record in caplog.records if "consumer_events_lost" in record.getMessage()]


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_several_programs_that_notice_at_once_begin_one_life(running: Restorable, place: Shop) -> None:
    async with relaying(place):
        await publish(place, 1)
    place.rows("update life set timeline = 4711")
    place.rows("update head set server_started = 'epoch'")
    connections = [await psycopg.AsyncConnection.connect(place.dsn, autocommit=True) for _ in range(4)]
    try:
        found = await asyncio.gather(*(lives.recognise(each, place.outbox.shape) for each in connections))
    finally:
        for connection in connections:
            await connection.close()

    assert [begun is not None for begun, _ in found].count(True) == 1
    assert place.value("select count(*) from life") == 2


@pytest.mark.thorough
async def test_a_server_that_does_not_say_who_it_is_goes_on_with_the_same_life(
    running: Restorable, place: Shop
) -> None:
    async with relaying(place):
        await publish(place, 1)
    place.rows("create role nobody_special login")
    try:
        for grant in migrate.grants(place.outbox.shape, "nobody_special"):
            place.rows(grant)
        place.rows("revoke execute on function pg_control_system() from public")
        place.rows("update head set server_started = 'epoch'")
        dsn = place.dsn.replace("postgres@", "nobody_special@")
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            assert await lives.recognise(connection, place.outbox.shape) == (None, 1)
    finally:
        place.rows("grant execute on function pg_control_system() to public")
        place.rows("drop owned by nobody_special; drop role nobody_special")


def test_a_log_that_is_in_use_when_lives_arrive_knows_its_server_before_any_relay_has_run(database: str) -> None:
    """A server that is restored or promoted right after the upgrade is noticed, too."""
    shape = shop_outbox().shape
    with psycopg.connect(database, autocommit=True) as connection:
        migrate_up_to(connection, shape, 4)
        connection.execute(f"update {shape.schema}.head set position = 20".encode())
        migrate.up(connection, shape)
        row = connection.execute(
            f"select system_identifier, timeline, database_oid, head_oid from {shape.schema}.life".encode()
        ).fetchone()
    assert row is not None
    assert None not in row
