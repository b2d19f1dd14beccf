"""What a relay does not do: write while there is nothing to write, or step over a row that somebody touches."""

import asyncio

import pytest

from aftercommit.errors import SchemaDrift
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transports import LogTransport
from aftercommit.schema.requirement import require_schema
from tests.support.shop import OrderPlaced, Shop


async def test_an_idle_relay_does_not_touch_the_head_of_the_log(shop: Shop) -> None:
    """Nor does it wake the readers of the log for nothing."""
    settings = RelaySettings(lease_seconds=2.0)
    relay = Relay(shop.outbox, shop.database, LogTransport(), settings=settings, probe=shop.signals)
    async with relay:
        shop.place("o-1", 1)
        await shop.signals.wait_total("relay.appended", 1)
        before = shop.rows("select position, ts, xmin::text from head")
        for _ in range(5):
            await shop.signals.next("relay.idle")
        assert shop.rows("select position, ts, xmin::text from head") == before


async def test_a_row_that_somebody_changes_during_the_sweep_is_found_by_the_next_one(shop: Shop) -> None:
    """Its place has changed, so the sweep leaves it alone, and the watermark must not pass it."""
    relay = Relay(shop.outbox, shop.database, LogTransport())
    first = shop.place("o-1", 1)
    shop.place("o-2", 2)
    connection = await shop.database.connect()
    try:
        await relay.lanes.tick(connection)
        relay._marks.observe(2, ())
        carrier = relay.carrier()
        with shop.connect() as operator:
            operator.execute("update shop.outbox set correlation_id = 'by hand' where id = %s", (first,))
            sweeping = carrier.sweep(connection, relay.lanes.held)
            task = asyncio.create_task(sweeping)
            waiting = "datname = current_database() and wait_event_type = 'Lock'"
            await shop.value_becomes(f"select count(*) from pg_stat_activity where {waiting}", 1)
            operator.commit()
        assert (await task).count == 1
        assert (await carrier.sweep(connection, relay.lanes.held)).count == 1
    finally:
        await connection.close()
    assert sorted(order for _, order, _ in shop.log()) == ["o-1", "o-2"]


async def test_a_due_retry_goes_while_the_relay_is_behind(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay sweeps new events in bulk and asks now and then whether a retry is due, however many are left."""
    relay = Relay(shop.outbox, shop.database, LogTransport(), settings=RelaySettings(batch_size=4))
    retried = shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(40)))[30]
    connection = await shop.database.connect()
    try:
        await relay.lanes.tick(connection)
        carrier = relay.carrier()
        for _ in range(3):
            assert (await carrier.carry_due(connection, relay.lanes.held)).more
        shop.rows(
            "update outbox set retry_count = 1, last_error = 'x', next_retry_at = clock_timestamp() where id = %s",
            [retried],
        )
        monkeypatch.setattr(carrier.reader, "_retries_at", 0.0)
        assert (await carrier.carry_due(connection, relay.lanes.held)).more
        assert shop.value("select count(*) from log where id = %s", [retried]) == 1
        assert shop.value("select count(*) from outbox") == 24
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ({}, "does not declare"),
        ({"tenant_id": int}, "character varying"),
        ({"tenant_id": str, "region": str}, "'region' is declared .* missing"),
    ],
)
async def test_a_program_whose_scope_differs_from_the_tables_refuses_to_start(shop: Shop, scope, words) -> None:
    """Before the first event, with the name of the column and what to do."""
    outbox = Outbox("shop", scope=scope)
    outbox.declare("order.placed", OrderPlaced, aggregate="order", key="order_id")
    with pytest.raises(SchemaDrift, match=words):
        async with Relay(outbox, Database(shop.dsn), LogTransport()) as relay:
            await relay.wait()
    connection = await shop.database.connect()
    await require_schema(connection, shop.outbox.shape)
    await connection.close()
