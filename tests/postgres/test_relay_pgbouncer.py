"""Behind PgBouncer in transaction mode: everything works except LISTEN, which is found out and said."""

import logging
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer import LogWorker, WorkerSettings
from aftercommit.event.envelope import Event
from aftercommit.postgres import listen
from aftercommit.postgres.database import Database
from aftercommit.postgres.listen import Listener
from aftercommit.relay import Relay, RelaySettings, carrier_loop, control, doorbell
from aftercommit.relay.transports import LogTransport
from tests.support.pgbouncer import PgBouncer
from tests.support.recording import RecordingTransport
from tests.support.relays import holds, listening_relay_on, relay_on
from tests.support.shop import OrderPlaced, Shop

pytestmark = pytest.mark.needs("pgbouncer")


@pytest.fixture
def bouncer(shop: Shop, tmp_path: Path) -> Iterator[PgBouncer]:
    with PgBouncer(shop.dsn, tmp_path) as running:
        yield running


@pytest.fixture
def pooled(shop: Shop, bouncer: PgBouncer) -> Database:
    """The shop's database as services see it through the pooler."""
    return Database(bouncer.dsn)


def publish_in_turns(shop: Shop, dsn: str) -> int:
    """Every statement of publish, on connections that share the pool with each other; how many events there are."""
    connections = [psycopg.connect(dsn, prepare_threshold=None) for _ in range(8)]
    try:
        for number in range(40):
            connection = connections[number % len(connections)]
            shop.outbox.publish(connection, OrderPlaced("one", number), tenant_id="acme")
            connection.commit()
        shop.outbox.publish(connections[0], [OrderPlaced("many", n) for n in range(10)], tenant_id="acme")
        connections[0].commit()
        first = shop.outbox.publish(connections[1], OrderPlaced("once"), tenant_id="acme", idempotency_key="k")
        connections[1].commit()
        again = shop.outbox.publish(connections[2], OrderPlaced("once"), tenant_id="acme", idempotency_key="k")
        connections[2].commit()
        assert again.duplicate
        assert again.event_ids == first.event_ids
        shop.outbox.publish(connections[3], OrderPlaced("never"), tenant_id="acme")
        connections[3].rollback()
    finally:
        for connection in connections:
            connection.close()
    return 51


async def test_publish_and_relay_work_through_a_transaction_pooler(shop: Shop, pooled: Database) -> None:
    """All statements of publish, two relays with leases and retries, on pooled connections alone."""
    shop.outbox.backoff = Constant(0.05)
    stumbling = RecordingTransport(lambda r: RuntimeError("once") if r.retry_count == 0 else None)
    # So long that no lease runs out while the machine stands still: what is taken over is tried differently.
    other, settings = Shop(shop.dsn), RelaySettings(lease_seconds=600.0, batch_size=7, carriers=2)
    other.outbox.backoff = Constant(0.05)
    async with (
        relay_on(shop, database=pooled, transport=stumbling, settings=settings) as first,
        relay_on(other, database=pooled, transport=stumbling, settings=settings) as second,
    ):
        # Nobody tells them of each other here, so each has to be told to look round.
        first.lanes.tick_now.set()
        await shop.value_becomes("select count(*) from lane where relay is null", 32)
        second.lanes.tick_now.set()
        await holds(second.lanes, 32)
        count = publish_in_turns(shop, pooled.dsn)
        await shop.value_becomes("select count(*) from log", count)
    log = shop.log()
    assert [position for position, _, _ in log] == list(range(1, count + 1))
    assert {order for _, order, _ in log} == {"one", "many", "once"}
    assert shop.value("select count(*) from dead_letter_events where status = 'resolved'") == count
    assert shop.value("select count(*) from lane where relay is null") == 64


async def test_asyncpg_publishes_through_a_transaction_pooler(shop: Shop, pooled: Database) -> None:
    """With its statement cache off, as PgBouncer asks for."""
    connection = await asyncpg.connect(pooled.dsn, statement_cache_size=0)
    try:
        for number in range(5):
            async with connection.transaction():
                await shop.outbox.publish(connection, OrderPlaced("o-1", number), tenant_id="acme")
    finally:
        await connection.close()
    assert shop.value("select count(*) from outbox") == 5


async def test_a_listener_behind_a_pooler_finds_out_that_it_hears_nothing_and_the_relay_polls(
    shop: Shop, pooled: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LISTEN succeeds there and nothing arrives: said once, with the remedy, and events flow meanwhile."""
    monkeypatch.setattr(listen, "PROVING_SECONDS", 0.5)
    caplog.set_level(logging.INFO)
    listener = Listener(pooled, shop.signals)
    relay = Relay(shop.outbox, pooled, LogTransport(), listener=listener, probe=shop.signals)
    async with listener, relay:
        await shop.signals.wait("listener.deaf")
        assert not listener.working
        for number in range(5):
            shop.place("o-1", number)
            await shop.signals.wait_total("relay.appended", number + 1)
        assert shop.value("select count(*) from relay where listening") == 0
    (said,) = [record for record in caplog.records if record.getMessage() == "notifications_do_not_arrive"]
    assert "listen_dsn" in said.__dict__["remedy"]


async def test_a_direct_listen_dsn_brings_the_bell_back(
    shop: Shop, pooled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything goes through the pooler but the one connection that listens; nobody polls."""
    monkeypatch.setattr(doorbell, "POLL", 600.0)
    monkeypatch.setattr(carrier_loop, "FIRST_LOOK", 600.0)
    monkeypatch.setattr(control, "MARK_INTERVAL", 600.0)
    monkeypatch.setattr(control, "REST_INTERVAL", 600.0)
    database = Database(pooled.dsn, listen_dsn=shop.dsn)
    async with listening_relay_on(shop, database=database, settings=RelaySettings(lease_seconds=600.0)):
        await shop.value_becomes("select count(*) from relay where listening", 1)
        with psycopg.connect(pooled.dsn, prepare_threshold=None) as writer:
            for number in range(10):
                shop.outbox.publish(writer, OrderPlaced("o-1", number), tenant_id="acme")
                writer.commit()
                await shop.signals.wait_total("relay.appended", number + 1)


async def test_consumers_work_through_a_transaction_pooler(shop: Shop, pooled: Database) -> None:
    """A worker's lease, inbox, checkpoint and effects, with a handler that fails once."""
    shop.rows("create table public.effect (event_id uuid, number int)")
    tried: set[int] = set()

    @shop.outbox.on(OrderPlaced, consumer="effects")
    async def write(event: Event[OrderPlaced], connection: psycopg.AsyncConnection) -> None:
        if event.payload.number == 7 and event.payload.number not in tried:
            tried.add(7)
            raise RuntimeError("once more")
        await connection.execute("insert into public.effect values (%s, %s)", (event.event_id, event.payload.number))

    consumer = shop.outbox.consumers["effects"]
    consumer.backoff = Constant(0.05)
    shop.publish(*(OrderPlaced(f"o-{number % 3}", number) for number in range(30)))
    worker = LogWorker(shop.outbox, consumer, pooled, settings=WorkerSettings(lease_seconds=2.0), probe=shop.signals)
    async with relay_on(shop, database=pooled), worker:
        await shop.value_becomes("select count(*) from public.effect", 30)
    assert sorted(number for (number,) in shop.rows("select number from public.effect")) == list(range(30))
    assert shop.value("select count(distinct event_id) from public.effect") == 30
