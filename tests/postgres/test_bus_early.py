"""Behind the bus, one statement reads a few new events and opens the transaction of their consumer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest

from aftercommit import Engine, Outbox
from aftercommit.backoff import Constant
from aftercommit.consumer import Dispatcher, early_slice
from aftercommit.consumer.early_slice import EarlySlice
from aftercommit.event.envelope import Event, Record
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.arrays import number_array
from aftercommit.postgres.records import FEW_BYTES, FEW_EVENTS
from aftercommit.postgres.shape import LANES
from aftercommit.relay import RelaySettings, carrier_loop, doorbell, due_reader
from aftercommit.relay.carrier_loop import CarrierLoop
from aftercommit.relay.due_reader import DueReader
from aftercommit.relay.plan import Marks
from aftercommit.relay.transport import Untried
from aftercommit.schema import migrate
from tests.support.consuming import Ledger, inbox, letters, terminate
from tests.support.shop import OrderPaid, OrderPlaced, Shop

HOUR = 3600.0
ME = "early"
OPEN = "select pid from pg_stat_activity where application_name like '%(slice)' and state = 'idle in transaction'"


FORGET = """
    with gone as (delete from public.ledger where number > 0 returning event_id)
    delete from processed_events handled using gone where handled.event_id = gone.event_id
"""


class Watch:
    """Notes how many events each statement has read that also opened a slice, and which slices were used.

    While `gate` is clear, the relay waits between the reading and the delivery.
    """

    def __init__(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read, self.used = asyncio.Queue[int](), list[bool]()
        self.asleep, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()
        sleeping, reading, taking = CarrierLoop._sleep, EarlySlice.read, EarlySlice.take
        ordinary = DueReader.read

        async def sleep(this: CarrierLoop, seconds: float) -> None:
            self.asleep.set()
            await sleeping(this, seconds)
            self.asleep.clear()

        async def read(*arguments: Any, **options: Any) -> Any:
            # Otherwise a late bell has woken the relay.
            is_waiting = shop.value("select exists (select from outbox)")
            rows = await reading(*arguments, **options)
            if is_waiting or rows:
                self.read.put_nowait(len(rows))
            if rows:
                await self.gate.wait()
            return rows

        async def take(this: EarlySlice, *arguments: Any) -> Any:
            was_open = bool(this._reads)
            opened = await taking(this, *arguments)
            if was_open:
                self.used.append(opened is not None)
            return opened

        async def read_as_always(*arguments: Any) -> Any:
            batch = await ordinary(*arguments)
            self.as_always += len(batch.events)
            return batch

        self.as_always = 0
        monkeypatch.setattr(CarrierLoop, "_sleep", sleep)
        monkeypatch.setattr(EarlySlice, "read", read)
        monkeypatch.setattr(EarlySlice, "take", take)
        monkeypatch.setattr(DueReader, "read", read_as_always)


@pytest.fixture
def watch(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Only the bell wakes the relay, and an open slice waits for as long as a test wants."""
    monkeypatch.setattr(doorbell, "POLL", HOUR)
    monkeypatch.setattr(carrier_loop, "FIRST_LOOK", HOUR)
    monkeypatch.setattr(due_reader, "RETRY_LOOK", HOUR)
    monkeypatch.setattr(due_reader, "IDLE_RETRY_LOOK", HOUR)
    monkeypatch.setattr(early_slice, "UNUSED_SECONDS", HOUR)
    monkeypatch.setattr(early_slice, "PAUSE_SECONDS", 0.0)
    return Watch(shop, monkeypatch)


@pytest.fixture
def ledger(shop: Shop) -> Ledger:
    return Ledger(shop)


def declare(shop: Shop, ledger: Ledger, name: str = ME, **options: Any) -> Consumer:
    consumer = shop.outbox.consumer(name, **options)
    consumer.on(OrderPlaced)(ledger.write)
    return consumer


@asynccontextmanager
async def at_rest(shop: Shop, watch: Watch, **options: Any) -> AsyncIterator[None]:
    """A bus that has delivered event number 0: its consumer has a connection."""
    settings = RelaySettings(**{"carriers": 1, **options})
    async with Engine(shop.outbox, shop.database, transport="bus", relay_settings=settings, probe=shop.signals):
        await shop.signals.wait("listener.working")
        await shop.signals.wait("relay.ready")
        await watch.asleep.wait()
        shop.place("o-1", 0)
        await delivered(shop, watch)
        watch.as_always = 0
        while not watch.read.empty():
            watch.read.get_nowait()
        watch.used.clear()
        yield


async def delivered(shop: Shop, watch: Watch) -> None:
    await shop.value_becomes("select count(*)::int from outbox", 0)
    await watch.asleep.wait()


async def published(shop: Shop, watch: Watch, *events: Any) -> int:
    """Publish until a statement reads that opens, or would open, a slice; how many events it has read.

    A late bell may wake the relay before. Then it reads the events on its own connection, and they are published again.
    """
    while True:
        shop.publish(*events)
        arrived, elsewhere = asyncio.create_task(watch.read.get()), asyncio.create_task(delivered(shop, watch))
        await asyncio.wait({arrived, elsewhere}, return_when=asyncio.FIRST_COMPLETED)
        if arrived.done():
            elsewhere.cancel()
            return arrived.result()
        arrived.cancel()
        shop.rows(FORGET)
        watch.as_always = 0
        watch.used.clear()


async def test_one_statement_reads_the_event_and_opens_the_transaction(
    shop: Shop, ledger: Ledger, watch: Watch
) -> None:
    declare(shop, ledger)
    async with at_rest(shop, watch):
        watch.gate.clear()
        assert await published(shop, watch, OrderPlaced("o-1", 1)) == 1
        assert len(shop.rows(OPEN)) == 1
        assert ledger.numbers() == [0]
        watch.gate.set()
        await delivered(shop, watch)

    assert watch.used == [True]
    assert watch.as_always == 0, "nothing was read a second time"
    assert ledger.numbers() == [0, 1]
    assert inbox(shop, ME) == 2


async def test_an_event_that_was_handled_before_is_not_handled_again(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    """A relay died between the commit of the handler and its own."""
    declare(shop, ledger)
    async with at_rest(shop, watch):
        with shop.connect() as connection:
            (event_id,) = shop.outbox.publish(connection, OrderPlaced("o-1", 1), tenant_id="acme").event_ids
            connection.execute(
                "insert into shop.processed_events (event_id, consumer_name) values (%s, %s)", (event_id, ME)
            )
        await delivered(shop, watch)

    assert ledger.numbers() == [0]
    assert shop.value("select count(*)::int from log") == 2


async def test_events_that_the_consumer_does_not_take_go_to_the_others(
    shop: Shop, ledger: Ledger, watch: Watch
) -> None:
    paid: list[int] = []
    declare(shop, ledger)
    other = shop.outbox.consumer("other")

    @other.on(OrderPaid)
    async def note(event: Event[OrderPaid]) -> None:
        paid.append(event.payload.amount)

    async with at_rest(shop, watch):
        assert await published(shop, watch, OrderPaid("o-1", 5)) == 0
        await delivered(shop, watch)
        assert await published(shop, watch, OrderPlaced("o-1", 1), OrderPaid("o-1", 6)) == 2
        await delivered(shop, watch)
        assert shop.rows(OPEN) == []

    assert ledger.numbers() == [0, 1]
    assert set(paid) == {5, 6}
    assert (inbox(shop, ME), inbox(shop, "other")) == (2, len(paid))


async def test_more_events_than_a_few_are_read_as_always(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger)
    numbers = range(1, FEW_EVENTS + 2)
    async with at_rest(shop, watch):
        assert await published(shop, watch, *(OrderPlaced("o-1", number) for number in numbers)) == 0
        await delivered(shop, watch)

    assert ledger.numbers() == [0, *numbers]


async def test_large_events_are_read_as_always(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger)
    async with at_rest(shop, watch):
        assert await published(shop, watch, OrderPlaced("o-1", 1, "x" * FEW_BYTES)) == 0
        await delivered(shop, watch)

    assert ledger.numbers() == [0, 1]


async def test_a_condition_that_does_not_hold_leaves_no_inbox_row(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    consumer = shop.outbox.consumer(ME)
    consumer.on(OrderPlaced, can_handle=lambda event: event.payload.number != 1)(ledger.write)
    async with at_rest(shop, watch):
        assert await published(shop, watch, OrderPlaced("o-1", 1)) == 1
        await delivered(shop, watch)
        assert await published(shop, watch, OrderPlaced("o-1", 1), OrderPlaced("o-1", 2)) == 2
        await delivered(shop, watch)

    assert watch.used == [False]
    assert ledger.numbers() == [0, 2]
    assert inbox(shop, ME) == 2
    assert shop.rows(OPEN) == []


async def test_a_handler_that_fails_is_called_once_per_attempt(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    calls: list[int] = []
    consumer = shop.outbox.consumer(ME, retry_count=1, backoff=Constant(0.0))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        calls.append(event.payload.number)
        await ledger.write(event, connection)
        if calls.count(1) == 1:
            raise ValueError("no")

    async with at_rest(shop, watch):
        shop.place("o-1", 1)
        await delivered(shop, watch)

    assert calls == [0, 1, 1]
    assert ledger.numbers() == [0, 1]
    assert letters(shop, "attempts") == []


async def test_a_session_that_was_ended_costs_no_attempt(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger, retry_count=0)
    async with at_rest(shop, watch):
        watch.gate.clear()
        assert await published(shop, watch, OrderPlaced("o-1", 1)) == 1
        ((pid,),) = shop.rows(OPEN)
        terminate(shop, pid)
        watch.gate.set()
        await delivered(shop, watch)

    assert ledger.numbers() == [0, 1]
    assert letters(shop, "attempts") == []


async def test_a_slice_that_nobody_uses_is_rolled_back(
    shop: Shop, ledger: Ledger, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay is held up between the reading and the delivery."""
    declare(shop, ledger)
    async with at_rest(shop, watch):
        monkeypatch.setattr(early_slice, "UNUSED_SECONDS", 0.001)
        watch.gate.clear()
        assert await published(shop, watch, OrderPlaced("o-1", 1)) == 1
        await shop.value_becomes(f"select count(*)::int from ({OPEN}) opened", 0)
        watch.gate.set()
        await delivered(shop, watch)

    assert watch.used == []
    assert ledger.numbers() == [0, 1]
    assert inbox(shop, ME) == 2


async def test_a_relay_that_is_cut_off_leaves_no_open_transaction(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger)
    async with at_rest(shop, watch, drain_seconds=0.0):
        watch.gate.clear()
        assert await published(shop, watch, OrderPlaced("o-1", 1)) == 1

    assert shop.rows(OPEN) == []
    assert ledger.numbers() == [0]
    assert shop.value("select count(*)::int from outbox") == 1


async def test_events_of_other_lanes_do_not_wait_for_one_that_was_read(
    shop: Shop, ledger: Ledger, watch: Watch
) -> None:
    """Several carriers of a relay give their events to the same consumer."""
    declare(shop, ledger, concurrency=2)
    async with at_rest(shop, watch, carriers=2):
        watch.gate.clear()
        while await published(shop, watch, OrderPlaced("o-1", 1)) == 0:
            """The bell of the beginning has woken the carrier of other lanes."""
        lane = shop.value("select lane % 2 from outbox")
        number = 1
        while shop.value("select count(distinct lane % 2)::int from outbox") == 1:
            number += 1
            shop.place(f"o-{number}", number)
        await shop.value_becomes(f"select bool_and(lane % 2 = {lane}) from outbox", expected=True)
        watch.gate.set()
        await delivered(shop, watch)

    assert True in watch.used
    assert set(ledger.numbers()) == set(range(number + 1))
    assert inbox(shop, ME) == len(ledger.numbers())


async def test_two_consumers_handle_an_event_side_by_side(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger)
    declare(shop, ledger, "other", concurrency=4)
    async with at_rest(shop, watch):
        for number in range(1, 4):
            shop.place("o-1", number)
            await delivered(shop, watch)

    assert sorted(ledger.numbers()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (inbox(shop, ME), inbox(shop, "other")) == (4, 4)


@dataclass(frozen=True)
class Weighed:
    """An event of a store with scope columns of several types."""

    name: str
    grams: float


async def test_the_event_is_the_same_either_way(shop: Shop, watch: Watch) -> None:
    """Envelope, payload, scope and audience, read on the consumer's connection and on the relay's."""
    scope: dict[str, type[Any]] = {"shop_id": UUID, "count": int, "name": str}
    outbox = Outbox("store", scope=scope, audience=True)
    outbox.declare("weighed", Weighed, aggregate="scale", key="name")

    @outbox.on(Weighed, consumer=ME)
    async def take(event: Event[Weighed], connection: Any) -> None:
        """Nothing to do."""

    with shop.connect(autocommit=True) as connection:
        migrate.up(connection, outbox.shape)
    dispatcher = Dispatcher(outbox, shop.database)
    reader = DueReader(outbox, Marks(), batch_size=10, loads=True)
    async with await shop.database.connect() as reading:
        first = await _weighed(outbox, reading, reader, 1.5)
        # Then the consumer has a connection.
        assert await dispatcher.dispatch(first) == []
        second = await _weighed(outbox, reading, reader, 1e300)
        assert await dispatcher.read_few(Untried(number_array(range(LANES)), first[0].seq)) == second[1:]
        await dispatcher.close()
    assert shop.rows(OPEN) == []


async def _weighed(outbox: Outbox, connection: Any, reader: DueReader, grams: float) -> list[Record]:
    """Publish an event, and read all that wait."""
    scope: dict[str, Any] = {"shop_id": uuid4(), "count": 2**40, "name": "\u00fc \\ \"'{,}\n%"}
    await outbox.publish(connection, Weighed("\u2603", grams), audience=["a", "{b}"], outside_transaction=True, **scope)
    batch = await reader.read(connection, range(LANES))
    return [event for event in batch.events if isinstance(event, Record)]
