"""Bad days: events from the future, tables that are not there, rights that are missing, a database that is down."""

import asyncio
import logging
import math
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from aftercommit.consumer import Dispatcher, LogWorker, WorkerSettings
from aftercommit.consumer import pages as pages_module
from aftercommit.embedded import EmbeddedPostgres
from aftercommit.errors import (
    DeclarationError,
    MissingPrivilege,
    SchemaNotMigrated,
    SchemaTooNew,
)
from aftercommit.event.envelope import Event
from aftercommit.relay import RelaySettings
from aftercommit.schema import migrate
from aftercommit.testing.signals import Signals
from tests.support.consuming import (
    Ledger,
    append,
    checkpoint,
    handle_all,
    inbox,
    letters,
    numbered,
    place_in_log,
    settled,
    terminate,
    worker_on,
)
from tests.support.shop import OrderPaid, OrderPlaced, Shop, shop_outbox


async def test_an_event_of_a_newer_version_is_parked_and_later_ones_are_handled(shop: Shop) -> None:
    """It was written by code that is deployed after this; nothing crashes, and nothing is dropped."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=3, version_wait_seconds=0.0)
    consumer.on(OrderPlaced)(ledger.write)
    place_in_log(shop, *numbered(4))
    shop.rows("update log set schema_version = 7 where position = 2")
    await handle_all(shop, consumer)
    assert ledger.numbers() == [0, 2, 3]
    ((status, attempts, error_class, error),) = letters(shop, "status, attempts, error_class, error")
    assert (status, attempts, error_class) == ("parked", 1, "NewerVersion")
    assert "7" in error


async def test_an_unreadable_payload_is_parked(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=3)
    consumer.on(OrderPlaced)(ledger.write)
    place_in_log(shop, *numbered(3))
    shop.rows("""update log set payload = '{"order_id": 5}' where position = 2""")
    await handle_all(shop, consumer)
    assert ledger.numbers() == [0, 2]
    assert letters(shop) == [("parked", 1)]


async def test_an_undeclared_type_is_passed_over_by_who_names_types_and_parked_by_who_takes_all(shop: Shop) -> None:
    """Who declared to take everything must not lose what newer code began to publish."""
    typed = shop.outbox.consumer("typed", start="earliest")
    every = shop.outbox.consumer("every", start="earliest", version_wait_seconds=0.0)
    seen: list[str] = []

    @typed.on(OrderPlaced)
    async def one(event: Event[OrderPlaced]) -> None:
        seen.append(f"typed {event.payload.number}")

    @every.on(can_handle=lambda event: True)
    async def any_of_them(event: Event[Any]) -> None:
        seen.append(f"every {event.payload.number}")

    place_in_log(shop, *numbered(3))
    shop.rows("update log set event_type = 'order.shipped' where position = 2")
    await handle_all(shop, typed)
    await handle_all(shop, every, signals=Signals(), wait_for=None)
    assert seen == ["typed 0", "typed 2", "every 0", "every 2"]
    assert letters(shop, "consumer_name, status, error_class") == [("every", "parked", "NewerVersion")]


async def test_a_consumer_without_handlers_is_refused(shop: Shop) -> None:
    consumer = shop.outbox.consumer("index")
    with pytest.raises(DeclarationError, match="'index' has no handlers"):
        LogWorker(shop.outbox, consumer, shop.database)
    with pytest.raises(DeclarationError, match="'index' has no handlers"):
        Dispatcher(shop.outbox, shop.database)


async def test_a_consumer_without_an_inbox_is_refused_behind_the_bus(shop: Shop) -> None:
    """There is no checkpoint that could say what was handled."""
    shop.outbox.consumer("index", inbox=False).on(OrderPlaced)(Ledger(shop).write)
    with pytest.raises(DeclarationError, match="drop inbox=False, or let the consumer follow the log"):
        Dispatcher(shop.outbox, shop.database)


async def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(DeclarationError, match="page_size >= 1 and lease_seconds > 0"):
        WorkerSettings(page_size=0)
    for seconds in (0, -1, math.inf, math.nan):
        with pytest.raises(DeclarationError, match="page_size >= 1 and lease_seconds > 0"):
            WorkerSettings(lease_seconds=seconds)
        with pytest.raises(DeclarationError, match="lease_seconds > 0"):
            RelaySettings(lease_seconds=seconds)


async def test_tables_that_are_missing_or_newer_end_the_worker_with_the_remedy(shop: Shop, database: str) -> None:
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(Ledger(shop).write)
    with pytest.raises(SchemaNotMigrated, match="aftercommit migrate up"):
        async with worker_on(Shop(database, shop.outbox), consumer):
            pytest.fail("worked without tables")
    shop.rows("insert into migration (version, name, checksum) values (9999, 'of the future', '')")
    with pytest.raises(SchemaTooNew, match="at migration 9999"):
        async with worker_on(shop, consumer):
            pytest.fail("worked on tables of the future")


@pytest.mark.parametrize("missing", ["consumer", "processed_events"])
async def test_a_missing_privilege_ends_the_worker_with_the_remedy(shop: Shop, missing: str) -> None:
    """On the control connection and on the handlers': no event is blamed for it."""
    consumer = shop.outbox.consumer("index", retry_count=0)
    consumer.on(OrderPlaced)(Ledger(shop).write)
    place_in_log(shop, ("o-1", 1))
    role = f"app_{uuid4().hex[:8]}"
    with shop.connect(autocommit=True) as connection:
        connection.execute(f"create role {role} login".encode())
        for statement in migrate.grants(shop.outbox.shape, role):
            connection.execute(statement.encode())
        connection.execute(f"revoke all on shop.{missing} from {role}".encode())
    separator = "&" if "?" in shop.dsn else "?"
    limited = Shop(f"{shop.dsn}{separator}user={role}".replace("postgres@", ""), shop.outbox)
    try:
        with pytest.raises(MissingPrivilege, match=f"'{role}' lacks a privilege .*{missing}.* migrate grants {role}"):
            async with worker_on(limited, consumer, wait_for="consumer.handled"):
                pytest.fail("worked without the right")
    finally:
        shop.rows(f"drop owned by {role}; drop role {role}")
    assert letters(shop) == []


async def test_a_database_that_takes_no_writes_is_waited_for(shop: Shop) -> None:
    """After a failover the old primary may answer for a while, read-only."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(ledger.write)
    place_in_log(shop, *numbered(3))
    name = shop.value("select current_database()")
    shop.rows(f"alter database {name} set default_transaction_read_only = on")
    async with worker_on(shop, consumer, wait_for="database.lost"):
        assert "takes no writes" in str(shop.signals.details["database.lost"][0]["error"])
        with psycopg.connect(shop.dsn, autocommit=True, options="-c default_transaction_read_only=off") as connection:
            connection.execute(f"alter database {name} reset default_transaction_read_only".encode())
        await settled(shop, "index")
    assert ledger.numbers() == [0, 1, 2]


@pytest.mark.thorough
@pytest.mark.parametrize("compressible", [True, False])
async def test_a_page_is_bounded_by_bytes_and_nothing_is_skipped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, compressible: bool
) -> None:
    """40 payloads of 500 KB, small ones between them; each page holds what fits, counted as it arrives."""
    limit = 1_200_000
    monkeypatch.setattr(pages_module, "MAX_PAGE_BYTES", limit)
    ledger = Ledger(shop)
    sizes: list[int] = []
    consumer = shop.outbox.consumer("index")

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await connection.execute(
            "insert into public.ledger (order_id, number) values (%s, %s)",
            (event.payload.order_id, event.payload.number),
        )

    original = pages_module.Pages.read

    async def measured(self: pages_module.Pages, *arguments: Any) -> Any:
        records, upto = await original(self, *arguments)
        sizes.append(sum(len(record.payload) for record in records))
        return records, upto

    monkeypatch.setattr(pages_module.Pages, "read", measured)
    for number in range(0, 80, 2):
        text = "x" * 500_000 if compressible else os.urandom(250_000).hex()
        shop.publish(OrderPlaced("o-1", number, text), OrderPlaced("o-1", number + 1))
    append(shop)
    await handle_all(shop, consumer)
    assert ledger.numbers() == list(range(80))
    assert max(sizes) < limit + 501_000
    assert sum(sizes) > 40 * 500_000
    assert len(sizes) < 40


async def test_a_page_that_was_cut_does_not_step_over_events_of_other_types(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions between the events of a typed consumer belong to nobody; the cut is after its last event."""
    monkeypatch.setattr(pages_module, "MAX_PAGE_BYTES", 1)
    seen: list[int] = []
    consumer = shop.outbox.consumer("paid")

    @consumer.on(OrderPaid)
    async def handle(event: Event[OrderPaid]) -> None:
        seen.append(event.payload.amount)

    for amount in range(5):
        shop.publish(OrderPlaced("o-1", amount), OrderPaid("o-1", amount), OrderPlaced("o-1", amount))
    append(shop)
    await handle_all(shop, consumer)
    assert seen == [0, 1, 2, 3, 4]
    assert checkpoint(shop, "paid") == 15


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server that may be stopped; what it has committed it keeps."""
    folder: Path = tmp_path_factory.mktemp("server")
    version = int(os.environ.get("AFTERCOMMIT_TEST_POSTGRES") or 18)
    settings = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB"}
    with EmbeddedPostgres(folder, version=version, settings=settings) as server:
        yield server


@pytest.fixture
def own_shop(own_server: EmbeddedPostgres) -> Shop:
    """A shop on that server, in a database of its own."""
    own_server.start()
    name = f"shop_{uuid4().hex[:8]}"
    with psycopg.connect(own_server.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    dsn = own_server.dsn_for(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, shop_outbox().shape)
    return Shop(dsn)


def restart(server: EmbeddedPostgres) -> None:
    """Crash the server and start it again."""
    server.stop("immediate")
    server.start()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["async", "sync", "side by side", "without inbox"])
async def test_a_restart_of_the_database_in_the_middle_changes_no_effect(
    own_server: EmbeddedPostgres, own_shop: Shop, kind: str
) -> None:
    shop = own_shop
    ledger = Ledger(shop)
    crashed, arrived = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    consumer = shop.outbox.consumer(
        "index", retry_count=0, concurrency=3 if kind == "side by side" else 1, inbox=kind != "without inbox"
    )
    if kind == "sync":

        @consumer.on(OrderPlaced)
        def handle_sync(event: Event[OrderPlaced], connection: Any) -> None:
            ledger.write_sync(event, connection)
            if event.payload.number == 70 and not crashed.is_set():
                loop.call_soon_threadsafe(arrived.set)
                asyncio.run_coroutine_threadsafe(crashed.wait(), loop).result(60)
    else:

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: Any) -> None:
            await ledger.write(event, connection)
            if event.payload.number == 70 and not crashed.is_set():
                arrived.set()
                await crashed.wait()

    place_in_log(shop, *numbered(100), *numbered(50, "o-2"))
    async with worker_on(shop, consumer):
        await asyncio.wait_for(arrived.wait(), 60)
        await asyncio.to_thread(restart, own_server)
        crashed.set()
        await settled(shop, "index")
    assert ledger.numbers("o-1") == list(range(100))
    assert ledger.numbers("o-2") == list(range(50))
    assert letters(shop) == []
    assert inbox(shop, "index") == (0 if kind == "without inbox" else 150)


@pytest.mark.thorough
async def test_an_event_that_crashes_the_database_server_again_and_again_is_parked(
    own_server: EmbeddedPostgres, own_shop: Shop
) -> None:
    """Twice may be chance; from then on each start is counted beforehand."""
    shop = own_shop
    ledger = Ledger(shop)
    arrived: asyncio.Queue[asyncio.Event] = asyncio.Queue()
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)
        if event.payload.number == 3:
            crashed = asyncio.Event()
            arrived.put_nowait(crashed)
            await crashed.wait()

    place_in_log(shop, *numbered(6))
    async with worker_on(shop, consumer):
        for _ in range(3):
            crashed = await asyncio.wait_for(arrived.get(), 60)
            await asyncio.to_thread(own_server.stop, "immediate")
            crashed.set()
            await shop.signals.next("database.lost")
            await asyncio.to_thread(own_server.start)
        await settled(shop, "index")
    assert ledger.numbers() == [0, 1, 2, 4, 5]
    assert letters(shop, "(payload->>'number')::int, status, error_class") == [(3, "parked", "HandlerNeverFinished")]


@pytest.mark.thorough
async def test_a_database_that_is_down_at_the_start_is_said_once_and_waited_for(
    own_server: EmbeddedPostgres, own_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop = own_shop
    caplog.set_level(logging.INFO)
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(ledger.write)
    place_in_log(shop, *numbered(3))
    await asyncio.to_thread(own_server.stop)
    async with worker_on(shop, consumer, wait_for=None):
        await shop.signals.wait("database.lost", 4)
        await asyncio.to_thread(own_server.start)
        await settled(shop, "index")
    assert ledger.numbers() == [0, 1, 2]
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in said] == ["database_is_unavailable"]
    assert "Check DATABASE_URL" in said[0].__dict__["error"]
    assert caplog.messages.count("database_is_back") == 1


@pytest.mark.thorough
async def test_a_worker_can_be_stopped_while_the_database_is_down(own_server: EmbeddedPostgres, own_shop: Shop) -> None:
    consumer = own_shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(Ledger(own_shop).write)
    async with worker_on(own_shop, consumer) as worker:
        await asyncio.to_thread(own_server.stop)
        await own_shop.signals.wait("database.lost", 2)
        await asyncio.wait_for(worker.stop(), 60)
    await asyncio.to_thread(own_server.start)


async def test_events_in_memory_are_not_handled_on_another_server(shop: Shop) -> None:
    """A connection breaks in the middle of a page, and another server answers: it may not have the rest of the page."""
    ledger, breaks = Ledger(shop), True
    consumer = shop.outbox.consumer("index", start="earliest")

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        nonlocal breaks
        if breaks and event.payload.number == 3:
            breaks = False
            # As it would be after a failover: the lease was taken on a server that was started at another time.
            worker._followers["index"].parts.runner.server_started = datetime(2020, 1, 1, tzinfo=UTC)
            await asyncio.to_thread(terminate, shop, connection.info.backend_pid)
        await ledger.write(event, connection)

    place_in_log(shop, *numbered(6))
    async with worker_on(shop, consumer) as worker:
        await shop.value_becomes("select position::int from consumer", 6)
        assert shop.signals.counts["consumer.active"] == 2
    assert ledger.numbers() == list(range(6))
