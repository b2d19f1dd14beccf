"""The slices that a dispatcher opens while it reads: several at once, lost or closed, and in odd programs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.adapt import Loader
from psycopg.pq import Format

from aftercommit.consumer import Dispatcher, early_slice
from aftercommit.consumer.runner import Runner
from aftercommit.event.envelope import Event, Record
from aftercommit.postgres.arrays import number_array
from aftercommit.postgres.shape import LANES
from aftercommit.relay.due_reader import DueReader
from aftercommit.relay.plan import Marks
from aftercommit.relay.transport import Untried
from tests.support.consuming import Ledger, outbox_records, terminate
from tests.support.shop import OrderPaid, OrderPlaced, Shop

HOUR = 3600.0
ME = "early"
OPEN = "select pid from pg_stat_activity where application_name like '%(slice)' and state = 'idle in transaction'"


@pytest.fixture
def ledger(shop: Shop) -> Ledger:
    return Ledger(shop)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open slice waits for as long as a test wants."""
    monkeypatch.setattr(early_slice, "UNUSED_SECONDS", HOUR)
    monkeypatch.setattr(early_slice, "PAUSE_SECONDS", 0.0)


def untried(lane: int | None = None, after: int = 0) -> Untried:
    return Untried(number_array(range(LANES) if lane is None else [lane]), after)


@asynccontextmanager
async def dispatching(shop: Shop, connections: int = 1) -> AsyncIterator[tuple[Dispatcher, Runner]]:
    """A dispatcher with so many idle connections, and the runner of its first consumer."""
    dispatcher = Dispatcher(shop.outbox, shop.database)
    async with AsyncExitStack() as stack:
        for _ in range(connections):
            await stack.enter_async_context(dispatcher._connections.lend())
    assert dispatcher._first is not None
    yield dispatcher, dispatcher._first
    await dispatcher.close()


async def read_another(shop: Shop, dispatcher: Dispatcher, number: int) -> list[Record]:
    """Place an order of its own, and read it."""
    shop.place(f"o-{number}", number)
    ((lane, seq),) = shop.rows("select lane, seq from outbox order by seq desc limit 1")
    return await dispatcher.read_few(untried(lane, seq - 1))


async def test_a_retry_that_drops_open_slices_disturbs_no_other_batch(shop: Shop, ledger: Ledger) -> None:
    """It asks for corrected payloads first, while two carriers have read and deliver."""
    shop.outbox.consumer(ME, concurrency=3).on(OrderPlaced)(ledger.write)
    async with dispatching(shop, connections=4) as (dispatcher, _):
        shop.place("o-1", 1)
        (retry,) = [msgspec.structs.replace(each, again=True) for each in outbox_records(shop)]
        shop.rows("update outbox set next_retry_at = now()")
        batches = [[retry], await read_another(shop, dispatcher, 2), await read_another(shop, dispatcher, 3)]
        assert [len(batch) for batch in batches] == [1, 1, 1]
        assert await asyncio.gather(*map(dispatcher.dispatch, batches)) == [[], [], []]
    assert sorted(ledger.numbers()) == [1, 2, 3]


async def test_an_event_that_is_read_again_after_its_session_has_ended_leaves_no_slot_in_use(
    shop: Shop, ledger: Ledger
) -> None:
    shop.outbox.consumer(ME, concurrency=2).on(OrderPlaced)(ledger.write)
    async with dispatching(shop, connections=2) as (dispatcher, runner):
        shop.place("o-1", 1)
        assert len(await dispatcher.read_few(untried())) == 1
        ((pid,),) = shop.rows(OPEN)
        terminate(shop, pid)
        records = await dispatcher.read_few(untried())
        assert len(records) == 1
        assert await dispatcher.dispatch(records) == []
        assert (runner._slots._value, dispatcher._connections._limit.used) == (2, 0)
    assert ledger.numbers() == [1]


async def test_close_waits_for_a_slice_that_has_just_expired(shop: Shop, ledger: Ledger) -> None:
    shop.outbox.consumer(ME, concurrency=2).on(OrderPlaced)(ledger.write)
    async with dispatching(shop, connections=3) as (dispatcher, runner):
        for number in (1, 2):
            assert await read_another(shop, dispatcher, number)
        first, second = runner.early._reads.values()
        runner.early._expire_read(first)
        asyncio.get_running_loop().call_soon(runner.early._expire_read, second)
    assert first.connection.closed
    assert second.connection.closed
    assert shop.rows(OPEN) == []


async def test_under_serializable_the_outbox_is_not_read_in_the_transaction_of_the_handler(
    shop: Shop, ledger: Ledger
) -> None:
    """A writer that reads what the handler writes, and publishes, would be in a cycle with it."""
    consumer = shop.outbox.consumer(ME, retry_count=0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        with shop.connect() as writer:
            writer.execute("select count(*) from public.ledger")
            shop.outbox.publish(writer, OrderPaid("o-9", 1), tenant_id="acme")
        await ledger.write(event, connection)

    shop.rows(
        f"alter database {shop.value('select current_database()')} set default_transaction_isolation to serializable"
    )
    async with dispatching(shop) as (dispatcher, _):
        shop.place("o-1", 1)
        assert await dispatcher.read_few(untried()) == []
        assert await dispatcher.dispatch(outbox_records(shop)) == []
    assert ledger.numbers() == [1]


async def test_a_session_that_has_lost_its_statements_prepares_them_again(shop: Shop, ledger: Ledger) -> None:
    shop.outbox.consumer(ME).on(OrderPlaced)(ledger.write)
    async with dispatching(shop) as (dispatcher, _):
        for number, loss in enumerate(("select 1", "deallocate all", "discard all", "select 1")):
            await dispatcher._connections._idle[0].execute(loss.encode())
            records = await read_another(shop, dispatcher, number)
            assert len(records) == 1, loss
            assert await dispatcher.dispatch(records) == []
    assert ledger.numbers() == [0, 1, 2, 3]


class Text(Loader):
    """A loader of a program that wants texts."""

    def load(self, data: Any) -> str:
        """The text."""
        return bytes(data).decode()


@pytest.mark.parametrize("name", ["uuid", "timestamptz", "int8", "int4", "int2"])
async def test_loaders_of_the_program_do_not_change_the_event(shop: Shop, name: str) -> None:
    """They are for its handlers."""
    consumer = shop.outbox.consumer(ME)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        """Nothing to do."""

    shop.place("o-1", 1)
    before = psycopg.adapters.get_loader(psycopg.adapters.types[name].oid, Format.TEXT)
    assert before is not None
    psycopg.adapters.register_loader(name, Text)
    try:
        async with dispatching(shop) as (dispatcher, _), await shop.database.connect() as reading:
            usual = await DueReader(shop.outbox, Marks(), batch_size=10, loads=True).read(reading, range(LANES))
            records = await dispatcher.read_few(untried())
            assert records == usual.events
            assert await dispatcher.dispatch(records) == []
    finally:
        psycopg.adapters.register_loader(name, before)
