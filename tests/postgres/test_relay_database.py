"""The database goes away in every phase of the relay's work and comes back: nothing lost, gapless, in order."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from aftercommit.embedded import EmbeddedPostgres
from aftercommit.errors import DatabaseRefused, MissingPrivilege, SchemaNotMigrated
from aftercommit.postgres.database import Database
from aftercommit.postgres.resilience import is_lost
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transports import LogTransport
from aftercommit.schema import migrate
from aftercommit.testing.postgres import SETTINGS_FOR_TESTS, PostgresServerForTests
from tests.support.recording import RecordingTransport
from tests.support.relays import listening_relay_on, relay_on
from tests.support.shop import OrderPlaced, Shop, shop_outbox

# What was committed must be there after a crash; only the disk need not be waited for.
SETTINGS = {**SETTINGS_FOR_TESTS, "synchronous_commit": "on"}
RECOVERY_SECONDS = 5.0


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server that these tests may stop, in a folder that no other test run takes for abandoned meanwhile."""
    version = int(os.environ.get("AFTERCOMMIT_TEST_POSTGRES") or 18)
    with EmbeddedPostgres(tmp_path_factory.mktemp("server"), version=version, settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def databases(own_server: EmbeddedPostgres) -> Iterator[PostgresServerForTests]:
    """Databases on it."""
    with PostgresServerForTests(own_server.dsn) as server:
        server.template("shop", prepare=migrate_shop)
        yield server


def migrate_shop(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, shop_outbox().shape)


@pytest.fixture
def embedded(own_server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """The server, running again when the test is over."""
    yield own_server
    own_server.start()


@pytest.fixture
def crashing_shop(databases: PostgresServerForTests, embedded: EmbeddedPostgres) -> Shop:
    """A shop on the server that will be stopped."""
    return Shop(databases.clone("shop"))


@asynccontextmanager
async def outage(shop: Shop, embedded: EmbeddedPostgres, relay: Relay) -> AsyncIterator[None]:
    """The server is crashed now and started again at the end; the relay asks for it often enough to be back soon."""
    await asyncio.to_thread(embedded.stop, "immediate")
    yield
    await shop.signals.wait("database.lost", 2)
    await asyncio.to_thread(embedded.start)
    await shop.signals.wait("relay.ready", 2)
    assert relay._reconnect.maximum <= RECOVERY_SECONDS


def orders(numbers: range) -> list[OrderPlaced]:
    return [OrderPlaced(f"o-{number % 5}", number) for number in numbers]


def assert_whole(shop: Shop, count: int) -> None:
    """Gapless, nothing lost, nothing twice, every aggregate in its order."""
    log = shop.log()
    assert [position for position, _, _ in log] == list(range(1, count + 1))
    assert {number for _, _, number in log} == set(range(count))
    for order in {name for _, name, _ in log}:
        numbers = [number for _, name, number in log if name == order]
        assert numbers == sorted(numbers)


def outages_said(caplog: pytest.LogCaptureFixture, service: str = "relay") -> int:
    return sum(
        record.getMessage() == "database_is_unavailable" and record.__dict__["service"].startswith(service)
        for record in caplog.records
    )


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["relay.read", "relay.deliver", "relay.delivered", "relay.appended"])
async def test_a_crash_of_the_database_in_any_phase_loses_nothing(
    crashing_shop: Shop, embedded: EmbeddedPostgres, caplog: pytest.LogCaptureFixture, point: str
) -> None:
    """The relay stands in this phase when PostgreSQL is stopped; it finds back by itself."""
    shop, transport = crashing_shop, RecordingTransport()
    ids = list(shop.publish(*orders(range(20))))
    hold = shop.signals.hold(point)
    async with relay_on(shop, transport=transport, settings=RelaySettings(lease_seconds=1.0, batch_size=8)) as relay:
        await hold.wait()
        async with outage(shop, embedded, relay):
            hold.release()
        ids += shop.publish(*orders(range(20, 30)))
        await shop.value_becomes("select count(*) from log", 30)
    assert_whole(shop, 30)
    assert list(dict.fromkeys(transport.ids)) == ids
    assert outages_said(caplog) == 1
    assert shop.value("select count(*) from dead_letter_events") == 0


async def test_a_crash_while_the_relay_sleeps_and_a_writer_writes(
    crashing_shop: Shop, embedded: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """What was committed before is published; what was not has never happened, and what comes after is heard of."""
    shop = crashing_shop
    async with listening_relay_on(shop, settings=RelaySettings(lease_seconds=1.0)) as relay:
        await shop.value_becomes("select count(*) from relay where listening", 1)
        writer = shop.connect()
        shop.outbox.publish(writer, OrderPlaced("lost", 99), tenant_id="acme")
        async with outage(shop, embedded, relay):
            with pytest.raises(psycopg.OperationalError):
                writer.commit()
            writer.close()
        await shop.signals.wait("listener.working", 2)
        shop.publish(*orders(range(10)))
        await shop.signals.wait_total("relay.appended", 10)
    assert_whole(shop, 10)
    assert outages_said(caplog) == 1
    assert outages_said(caplog, "listener") == 1


async def test_a_crash_under_load_loses_nothing_that_was_committed(
    crashing_shop: Shop, embedded: EmbeddedPostgres
) -> None:
    """A writer goes on as long as it can; whatever its commits say is in the log in the end, once and in order."""
    shop = crashing_shop
    committed: list[int] = []

    def write() -> None:
        try:
            with shop.connect() as connection:
                for number in range(100_000):
                    shop.outbox.publish(connection, OrderPlaced("o-1", number), tenant_id="acme")
                    connection.commit()
                    committed.append(number)
        except psycopg.Error as problem:
            # A server that dies while it answers leaves answers behind that do not fit together.
            if not is_lost(problem):
                raise

    async with relay_on(shop, settings=RelaySettings(lease_seconds=1.0, batch_size=16)) as relay:
        writing = asyncio.create_task(asyncio.to_thread(write))
        await shop.signals.wait_total("relay.appended", 200)
        async with outage(shop, embedded, relay):
            await writing
        await shop.value_becomes("select count(*) from outbox", 0)
    numbers = [number for _, _, number in shop.log()]
    # The last one may have been committed without its writer hearing of it.
    assert numbers == list(range(len(numbers)))
    assert len(committed) <= len(numbers) <= len(committed) + 1


@pytest.mark.thorough
async def test_a_database_that_is_down_at_the_start_is_waited_for(
    crashing_shop: Shop, embedded: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, tried again with growing pauses, and then everything works."""
    caplog.set_level(logging.INFO)
    shop = crashing_shop
    shop.publish(*orders(range(5)))
    await asyncio.to_thread(embedded.stop, "fast")
    async with Relay(shop.outbox, shop.database, LogTransport(), probe=shop.signals):
        await shop.signals.wait("database.lost", 4)
        assert shop.signals.counts["relay.ready"] == 0
        await asyncio.to_thread(embedded.start)
        await shop.signals.wait_total("relay.appended", 5)
    assert outages_said(caplog) == 1
    assert [record.getMessage() for record in caplog.records].count("database_is_back") == 1


async def test_a_relay_can_be_stopped_while_the_database_is_down(
    crashing_shop: Shop, embedded: EmbeddedPostgres
) -> None:
    """Stopping does not wait for the database."""
    shop = crashing_shop
    async with relay_on(shop):
        await asyncio.to_thread(embedded.stop, "immediate")
        await shop.signals.wait("database.lost")


async def test_a_schema_that_is_not_migrated_ends_the_relay_with_the_remedy(database: str) -> None:
    """Waiting would not help, so wait() and stop() raise."""
    relay = Relay(shop_outbox(), Database(database), LogTransport())
    await relay.start()
    with pytest.raises(SchemaNotMigrated, match="aftercommit migrate up"):
        await relay.wait()
    with pytest.raises(SchemaNotMigrated, match="schema 'shop' does not exist"):
        await relay.stop()


async def test_a_database_that_does_not_exist_ends_the_relay(shop: Shop) -> None:
    """A typo in the URL is not an outage."""
    relay = Relay(shop.outbox, Database(make_conninfo(shop.dsn, dbname="typo")), LogTransport())
    await relay.start()
    with pytest.raises(DatabaseRefused, match="typo"):
        await relay.wait()


@pytest.mark.parametrize("lacking", ["delete on shop.outbox", "insert on shop.log", "update on shop.lane"])
async def test_a_missing_privilege_ends_the_relay_with_the_remedy(shop: Shop, lacking: str) -> None:
    """Wherever it is missed, the error says whose privilege it is and how to grant it."""
    # Roles are the whole server's, on which others may run this test too.
    role = f"weak_relay_{uuid4().hex[:8]}"
    with shop.connect(autocommit=True) as setup:
        setup.execute(f"create role {role} login".encode())
        setup.execute(f"grant usage on schema shop to {role}".encode())
        setup.execute(f"grant select, insert, update, delete on all tables in schema shop to {role}".encode())
        setup.execute(f"grant select on all sequences in schema shop to {role}".encode())
        setup.execute(f"grant execute on all functions in schema shop to {role}".encode())
        setup.execute(f"revoke {lacking} from {role}".encode())
    try:
        shop.place()
        relay = Relay(shop.outbox, Database(make_conninfo(shop.dsn, user=role)), LogTransport())
        await relay.start()
        with pytest.raises(MissingPrivilege, match=f"{role}.*migrate grants {role}"):
            await asyncio.wait_for(relay.wait(), 60)
    finally:
        with shop.connect(autocommit=True) as cleanup:
            cleanup.execute(f"drop owned by {role}".encode())
            cleanup.execute(f"drop role {role}".encode())
