"""At the edges: large payloads, the end of a partition, streams with numbers of their own, a replaced server."""

import asyncio
import random
from dataclasses import replace

import pytest

from aftercommit.relay import Relay, RelaySettings, due_reader, sweeper
from aftercommit.schema.partitions import POSITIONS_PER_PARTITION
from tests.support.recording import RecordingTransport
from tests.support.relays import relay_on
from tests.support.shop import OrderPlaced, Shop, shop_outbox

# Long enough for PostgreSQL to compress what can be compressed.
KILOBYTES = 70_000


def noise(seed: int) -> str:
    """Text that no compression makes much smaller."""
    return random.Random(seed).randbytes(KILOBYTES // 2).hex()


@pytest.mark.parametrize("compressible", [True, False])
async def test_a_batch_is_bounded_by_the_bytes_of_its_payloads(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, compressible: bool
) -> None:
    """Sixty payloads of 70 kB go in several batches, in order; what counts is their size in memory."""
    bound = 300_000
    monkeypatch.setattr(due_reader, "MAX_BATCH_BYTES", bound)
    for start in range(0, 60, 10):
        notes = {n: "x" * KILOBYTES if compressible else noise(n) for n in range(start, start + 10)}
        shop.publish(*(OrderPlaced(f"o-{number % 7}", number, note) for number, note in notes.items()))
    transport = RecordingTransport()
    async with relay_on(shop, transport=transport, settings=RelaySettings(lease_seconds=5.0)):
        await shop.signals.wait_total("relay.appended", 60)
    batches = [detail["count"] for detail in shop.signals.details["relay.deliver"]]
    assert max(batches) * KILOBYTES <= bound + KILOBYTES
    assert len(batches) >= 12
    assert [number for _, _, number in shop.log()] == list(range(60))


async def test_one_payload_larger_than_the_bound_goes_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound never leaves an event behind."""
    monkeypatch.setattr(due_reader, "MAX_BATCH_BYTES", 10)
    ids = [shop.place("o-1", number, note="x" * 500) for number in range(5)]
    transport = RecordingTransport()
    async with relay_on(shop, transport=transport):
        await shop.signals.wait_total("relay.appended", 5)
    assert transport.ids == ids
    assert [detail["count"] for detail in shop.signals.details["relay.deliver"]] == [1] * 5


async def test_streams_of_numbered_types_count_up_without_gaps_under_two_relays(shop: Shop) -> None:
    """Late commits, two relays and interleaved types: stream_seq is 1..n per order, and others have none."""
    numbered = shop_outbox(numbered=("order",))
    numbered.declare("note.taken")
    shops = [replace(shop, outbox=numbered), Shop(shop.dsn, outbox=numbered)]
    settings = RelaySettings(lease_seconds=1.0, batch_size=7)
    async with relay_on(shops[0], settings=settings), relay_on(shops[1], settings=settings):
        for round_number in range(20):
            with shop.connect() as slow, shop.connect() as quick:
                numbered.publish(slow, [OrderPlaced(f"s-{n % 5}", round_number) for n in range(10)], tenant_id="acme")
                numbered.publish(quick, [OrderPlaced(f"q-{n % 5}", round_number) for n in range(10)], tenant_id="acme")
                note = numbered.registry.resolve("note.taken").draft({"text": "x"}, aggregate_id="s-0")
                numbered.publish(quick, note, tenant_id="acme")
                quick.commit()
                slow.commit()
            await asyncio.sleep(0)
        await shop.value_becomes("select count(*) from log", 420)
    for order in [f"{kind}-{number}" for kind in "sq" for number in range(5)]:
        numbers = shop.rows(
            "select stream_seq from log where aggregate_type = 'order' and aggregate_id = %s order by position", [order]
        )
        assert [number for (number,) in numbers] == list(range(1, 41))
    assert shop.rows("select distinct stream_seq from log where aggregate_type <> 'order'") == [(None,)]
    assert shop.value("select count(*) from stream") == 10
    assert shop.rows("select distinct aggregate_type, seq from stream") == [("order", 40)]
    assert shop.value(
        "select bool_and(s.ts = (select ts from log l where l.aggregate_id = s.aggregate_id and l.stream_seq = s.seq)) "
        "from stream s"
    )


async def test_a_stream_goes_on_counting_after_a_refused_append(shop: Shop) -> None:
    """A relay that lost its lanes uses no number up."""
    numbered = replace(shop, outbox=shop_outbox(numbered=("order",)))
    shop.publish(*(OrderPlaced("o-1", number) for number in range(3)))
    zombie = Relay(numbered.outbox, shop.database, RecordingTransport(), settings=RelaySettings(lease_seconds=0.1))
    connection = await shop.database.connect()
    await zombie.lanes.tick(connection)
    batch = await zombie.carrier().read(connection, zombie.lanes.held)
    async with relay_on(numbered, settings=RelaySettings(lease_seconds=0.5)):
        await shop.signals.wait_total("relay.appended", 3)
        with pytest.raises(Exception, match="another relay took over"):
            await zombie.carrier().carry(connection, batch)
        numbered.place("o-1", 3)
        await shop.signals.wait_total("relay.appended", 4)
    await connection.close()
    assert shop.rows("select stream_seq, (payload->>'number')::int from log order by position") == [
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 3),
    ]


def at_the_end_of_a_partition(shop: Shop, partition: int, left: int) -> int:
    """As if so many events had been published before; the position of the last one."""
    position = (partition + 1) * POSITIONS_PER_PARTITION - left
    shop.rows("update head set position = %s", [position])
    return position


async def test_appending_goes_on_across_the_end_of_a_partition_while_new_ones_are_made(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper works all the while; the log has no gap where one partition ends and the next begins."""
    monkeypatch.setattr(sweeper, "INTERVAL", 0.01)
    start = at_the_end_of_a_partition(shop, partition=0, left=25)
    async with relay_on(shop, settings=RelaySettings(lease_seconds=2.0, batch_size=10)):
        for number in range(60):
            shop.place("o-1", number)
        await shop.signals.wait_total("relay.appended", 60)
        await shop.value_becomes("select to_regclass('shop.log_000003') is not null", True)
    assert [position for position, _, _ in shop.log()] == list(range(start + 1, start + 61))
    assert [number for _, _, number in shop.log()] == list(range(60))
    assert shop.value("select count(*) from shop.log_000000") == 25
    assert shop.value("select count(*) from shop.log_000001") == 35


@pytest.mark.parametrize("retried", [False, True])
async def test_where_no_partition_is_left_the_append_makes_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, retried: bool
) -> None:
    """The sweeper was kept from its work; nothing fails for that, and no position is lost."""

    async def kept_from_work(self: object, stopping: asyncio.Event) -> None:
        await stopping.wait()

    monkeypatch.setattr(sweeper.Sweeper, "keep", kept_from_work)
    start = at_the_end_of_a_partition(shop, partition=2, left=3)
    shop.publish(*(OrderPlaced("o-1", number) for number in range(10)))
    if retried:
        shop.rows("update outbox set retry_count = 1, next_retry_at = clock_timestamp(), last_error = 'x'")
    async with relay_on(shop, transport=RecordingTransport()):
        await shop.signals.wait_total("relay.appended", 10)
    assert [position for position, _, _ in shop.log()] == list(range(start + 1, start + 11))
    assert shop.value("select count(*) from shop.log_000003") == 7


async def test_a_lock_on_the_log_keeps_the_sweeper_waiting_and_not_the_relay(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Partitions could not be made in time: said, and tried again later."""
    shop.rows(
        "create or replace function make_partitions() returns setof text language plpgsql as "
        "$$ begin raise lock_not_available using message = 'in the way'; end $$"
    )
    keeper = sweeper.Sweeper(shop.outbox.shape, shop.database)
    assert keeper.sweep() == []
    assert [record.getMessage() for record in caplog.records] == ["log_partitions_not_made"]
    async with relay_on(shop):
        shop.place()
        await shop.signals.wait_total("relay.appended", 1)


async def test_a_server_put_back_to_an_earlier_state_behind_the_connection_is_noticed(shop: Shop) -> None:
    """Behind a pooler a failover is not felt as a lost connection; what counts up again must not be stepped over."""
    async with relay_on(shop) as relay:
        shop.publish(*(OrderPlaced("before", number) for number in range(50)))
        await shop.signals.wait_total("relay.appended", 50)
        await shop.signals.until(lambda: relay._marks.resolved >= 50, "the marks did not follow")
        shop.place("before", 50)
        await shop.signals.wait_total("relay.appended", 51)
        shop.rows("select setval('shop.outbox_seq_seq', 10)")
        await shop.signals.wait("relay.ready", 2)
        shop.place("after", 0)
        await shop.signals.wait_total("relay.appended", 52)
    assert shop.value("select seq from log where aggregate_id = 'after'") == 11
