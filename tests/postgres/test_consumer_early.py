"""A slice is opened while the relay still appends its events. A wrong guess must change nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aftercommit import Engine
from aftercommit.backoff import Constant
from aftercommit.consumer import WorkerSettings, early_slice, log_worker, news
from aftercommit.consumer.early_slice import EarlySlice
from aftercommit.consumer.slice_executor import SliceExecutor
from aftercommit.event.envelope import Event
from aftercommit.outbox.handlers import Consumer
from aftercommit.relay.carrier_loop import CarrierLoop
from aftercommit.relay.settle import Settlement
from tests.support.consuming import Ledger, checkpoint, inbox, letters, terminate
from tests.support.shop import OrderPaid, OrderPlaced, Shop

HOUR = 3600.0
ME = "early"
OPEN = "select pid from pg_stat_activity where application_name like '%(slice)' and state = 'idle in transaction'"


class Watch:
    """Holds up the relay at its statement, and notes which slices were opened early and which of them were used."""

    def __init__(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        self._shop = shop
        self.gate, self.opened, self.used = asyncio.Event(), asyncio.Queue[bool](), list[bool]()
        self.gate.set()
        self.asleep, self.left_events = asyncio.Event(), False
        sleeping = CarrierLoop._sleep

        async def sleep(this: CarrierLoop, seconds: float) -> None:
            self.left_events = self.left_events or self._is_waiting
            self.asleep.set()
            await sleeping(this, seconds)
            self.asleep.clear()

        monkeypatch.setattr(CarrierLoop, "_sleep", sleep)
        appending, beginning = Settlement._append, EarlySlice.open
        opening, taking = EarlySlice._open, EarlySlice.take

        async def append(*arguments: Any) -> Any:
            if self._is_waiting:
                await self.gate.wait()
            return await appending(*arguments)

        def begin(*arguments: Any, **options: Any) -> None:
            if self._is_waiting:
                beginning(*arguments, **options)

        async def open_(*arguments: Any) -> Any:
            opened = await opening(*arguments)
            self.opened.put_nowait(opened is not None)
            return opened

        async def take(this: EarlySlice, *arguments: Any) -> Any:
            was_opening = this._opening is not None
            opened = await taking(this, *arguments)
            if was_opening:
                self.used.append(opened is not None)
            return opened

        monkeypatch.setattr(Settlement, "_append", append)
        monkeypatch.setattr(EarlySlice, "open", begin)
        monkeypatch.setattr(EarlySlice, "_open", open_)
        monkeypatch.setattr(EarlySlice, "take", take)

    async def hold(self) -> None:
        """Hold up the statement by which the relay takes the next event."""
        await self.asleep.wait()
        self.gate.clear()

    @property
    def _is_waiting(self) -> bool:
        """Whether an event is in the outbox. Otherwise a late bell has woken the relay."""
        return bool(self._shop.value("select exists (select from outbox)"))


@pytest.fixture
def watch(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Nobody looks on its own account, and an open slice waits for as long as a test wants."""
    monkeypatch.setattr(log_worker, "POLL", HOUR)
    monkeypatch.setattr(news, "EXPECT_SECONDS", HOUR)
    monkeypatch.setattr(early_slice, "UNUSED_SECONDS", HOUR)
    monkeypatch.setattr(early_slice, "PAUSE_SECONDS", 0.0)
    return Watch(shop, monkeypatch)


@pytest.fixture
def ledger(shop: Shop) -> Ledger:
    return Ledger(shop)


def declare(shop: Shop, ledger: Ledger, **options: Any) -> Consumer:
    consumer = shop.outbox.consumer(ME, start="earliest", **options)
    consumer.on(OrderPlaced)(ledger.write)
    return consumer


@asynccontextmanager
async def at_rest(shop: Shop, watch: Watch) -> AsyncIterator[Engine]:
    """A relay and a consumer that has handled event number 0, and has a connection."""
    settings = WorkerSettings(lease_seconds=HOUR)
    async with Engine(shop.outbox, shop.database, worker_settings=settings, probe=shop.signals) as engine:
        await shop.signals.wait("listener.working")
        await shop.signals.wait("relay.ready")
        await shop.signals.wait("consumer.idle")
        await place(shop, watch, 0)
        yield engine


async def place(shop: Shop, watch: Watch, number: int) -> None:
    """Place an order, until it is handled and relay and consumer rest."""
    counts = dict(shop.signals.counts)
    shop.place("o-1", number)
    await rest(shop, watch, counts)


async def rest(shop: Shop, watch: Watch, counts: dict[str, int]) -> None:
    """Until relay and consumer have worked since then, and rest."""
    await shop.value_becomes("select count(*)::int from outbox", 0)
    await shop.signals.wait("relay.idle", counts.get("relay.idle", 0) + 1)
    await watch.asleep.wait()
    await shop.value_becomes("select bool_and(position = (select position from head)) from consumer", expected=True)
    await shop.signals.wait("consumer.idle", counts["consumer.idle"] + 1)


async def test_the_transaction_is_open_before_the_event_comes(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger)
    async with at_rest(shop, watch):
        counts = dict(shop.signals.counts)
        await watch.hold()
        shop.place("o-1", 1)
        assert await watch.opened.get()
        assert len(shop.rows(OPEN)) == 1
        assert ledger.numbers() == [0], "no handler is called before the event is in the log"
        watch.gate.set()
        await rest(shop, watch, counts)

    assert watch.used == [True]
    assert ledger.numbers() == [0, 1]
    assert inbox(shop, ME) == 2


async def test_another_event_that_comes_first_is_not_skipped(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    """Another relay has appended an event at the position that the guess was made for."""
    declare(shop, ledger)
    async with at_rest(shop, watch):
        counts = dict(shop.signals.counts)
        await watch.hold()
        shop.place("o-1", 2)
        assert await watch.opened.get()
        shop.rows(
            """
            with tip as (update head set position = position + 1 returning position)
            insert into log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version,
                             occurred_at, correlation_id, payload, retry_count, created_at, tenant_id)
            select tip.position, clock_timestamp(), gen_random_uuid(), seq + 1000, lane, aggregate_type, aggregate_id,
                   event_type, schema_version, occurred_at, correlation_id, replace(payload::text, '2', '1')::json,
                   0, created_at, tenant_id
            from outbox, tip
            returning position
            """
        )
        watch.gate.set()
        await rest(shop, watch, counts)

    assert watch.used == [False]
    assert ledger.numbers() == [0, 1, 2]
    assert checkpoint(shop, ME) == 3


async def test_an_event_before_it_that_does_not_come_moves_no_checkpoint_too_far(
    shop: Shop, ledger: Ledger, watch: Watch
) -> None:
    """The event comes at an earlier position than expected; the one after it would be skipped."""
    declare(shop, ledger)
    async with at_rest(shop, watch):
        counts = dict(shop.signals.counts)
        await watch.hold()
        shop.publish(OrderPaid(order_id="o-1", amount=1), OrderPlaced(order_id="o-1", number=1))
        assert await watch.opened.get()
        shop.rows("delete from outbox where event_type = 'order.paid' returning id")
        watch.gate.set()
        await rest(shop, watch, counts)
        await place(shop, watch, 2)

    assert watch.used[0] is False
    assert ledger.numbers() == [0, 1, 2]
    assert checkpoint(shop, ME) == 3


async def test_events_that_come_besides_the_expected_one_are_handled(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger)
    async with at_rest(shop, watch):
        counts = dict(shop.signals.counts)
        await watch.hold()
        shop.place("o-1", 1)
        assert await watch.opened.get()
        shop.place("o-1", 2)
        watch.gate.set()
        await rest(shop, watch, counts)

    assert watch.used[0] is False
    assert ledger.numbers() == [0, 1, 2]
    assert inbox(shop, ME) == 3


async def test_an_expected_event_that_does_not_come_leaves_nothing(
    shop: Shop, ledger: Ledger, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(shop, ledger)
    async with at_rest(shop, watch):
        monkeypatch.setattr(early_slice, "UNUSED_SECONDS", 0.01)
        await watch.hold()
        shop.place("o-1", 1)
        assert await watch.opened.get()
        shop.rows("delete from outbox returning id")
        await shop.value_becomes(f"select count(*)::int from ({OPEN}) open", 0)
        watch.gate.set()
        await place(shop, watch, 2)

    assert ledger.numbers() == [0, 2]
    assert inbox(shop, ME) == 2


async def test_an_event_that_the_inbox_knows_is_not_handled_again(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger)
    async with at_rest(shop, watch):
        counts = dict(shop.signals.counts)
        await watch.hold()
        with shop.connect() as connection:
            event = OrderPlaced(order_id="o-1", number=1)
            known = shop.outbox.publish(connection, event, tenant_id="acme").event_id
            row = (known, ME)
            connection.execute("insert into shop.processed_events (event_id, consumer_name) values (%s, %s)", row)
        assert await watch.opened.get()
        watch.gate.set()
        await rest(shop, watch, counts)
        await place(shop, watch, 2)

    assert watch.used[0] is True
    assert ledger.numbers() == [0, 2]


async def test_an_event_that_can_handle_refuses_moves_the_checkpoint_at_once(
    shop: Shop, ledger: Ledger, watch: Watch
) -> None:
    """The open slice has the row of the consumer, which the checkpoint is in."""
    consumer = shop.outbox.consumer(ME, start="earliest")
    consumer.on(OrderPlaced, can_handle=lambda event: event.payload.number != 1)(ledger.write)
    async with at_rest(shop, watch):
        await place(shop, watch, 1)
        await place(shop, watch, 2)

    assert ledger.numbers() == [0, 2]
    assert checkpoint(shop, ME) == 3


async def test_an_event_of_another_type_opens_nothing(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger)
    async with at_rest(shop, watch):
        counts = dict(shop.signals.counts)
        await watch.hold()
        shop.publish(OrderPaid(order_id="o-1", amount=1))
        assert await watch.opened.get() is False
        watch.gate.set()
        await rest(shop, watch, counts)

    assert inbox(shop, ME) == 1


async def test_a_handler_that_fails_is_called_once_and_its_writes_are_undone(
    shop: Shop, ledger: Ledger, watch: Watch
) -> None:
    consumer = shop.outbox.consumer(ME, start="earliest", retry_count=0, backoff=Constant(HOUR))
    calls: list[int] = []

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        calls.append(event.payload.number)
        await ledger.write(event, connection)
        if event.payload.number == 1:
            raise ValueError("no")

    async with at_rest(shop, watch):
        await watch.hold()
        shop.place("o-1", 1)
        assert await watch.opened.get()
        watch.gate.set()
        await shop.value_becomes("select count(*)::int from dead_letter_events", 1)

    assert watch.used[0] is True
    assert calls == [0, 1]
    assert ledger.numbers() == [0]
    assert inbox(shop, ME) == 1
    assert letters(shop, "attempts") == [(1,)]


async def test_a_slice_whose_session_was_ended_is_opened_again(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger)
    async with at_rest(shop, watch):
        counts = dict(shop.signals.counts)
        await watch.hold()
        shop.place("o-1", 1)
        assert await watch.opened.get()
        ((pid,),) = shop.rows(OPEN)
        terminate(shop, pid)
        watch.gate.set()
        await rest(shop, watch, counts)

    assert ledger.numbers() == [0, 1]
    assert inbox(shop, ME) == 2


async def test_a_worker_that_stops_leaves_no_open_slice(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    declare(shop, ledger)
    async with at_rest(shop, watch):
        await watch.hold()
        shop.place("o-1", 1)
        assert await watch.opened.get()
        watch.gate.set()

    assert shop.rows(OPEN) == []
    assert set(ledger.numbers()) >= {0}
    assert inbox(shop, ME) == len(ledger.numbers())


async def test_an_append_that_is_quicker_leaves_the_slice_open(
    shop: Shop, ledger: Ledger, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement that opens it finds the event in the log, and no longer in the outbox."""
    declare(shop, ledger)
    opening = SliceExecutor.open_early

    async def open_late(*arguments: Any) -> Any:
        await shop.value_becomes("select count(*)::int from outbox", 0)
        return await opening(*arguments)

    number = 0
    async with at_rest(shop, watch):
        monkeypatch.setattr(SliceExecutor, "open_early", open_late)
        # With a late bell, the relay may take an event for which nobody has begun to open anything.
        while watch.opened.empty():
            number += 1
            await place(shop, watch, number)

    assert watch.opened.get_nowait()
    assert watch.used == [True]
    assert ledger.numbers() == list(range(number + 1))
    assert checkpoint(shop, ME) == number + 1


async def test_a_snapshot_from_before_the_append_is_not_used(shop: Shop, ledger: Ledger, watch: Watch) -> None:
    """Under REPEATABLE READ, the handler would not see its own event in the log."""
    seen: list[int] = []
    consumer = shop.outbox.consumer(ME, start="earliest")

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        row = await (await connection.execute("select count(*) from shop.log")).fetchone()
        seen.append(row[0])

    setting = "default_transaction_isolation = 'repeatable read'"
    with shop.connect(autocommit=True) as connection:
        connection.execute(f"alter database {connection.info.dbname} set {setting}".encode())
    async with at_rest(shop, watch):
        await watch.hold()
        counts = dict(shop.signals.counts)
        shop.place("o-1", 1)
        assert await watch.opened.get() is False
        watch.gate.set()
        await rest(shop, watch, counts)

    assert seen == [1, 2]


async def test_more_events_than_are_handed_over_are_taken_before_the_relay_sleeps(
    shop: Shop, ledger: Ledger, watch: Watch
) -> None:
    """The relay takes a few events first, because there were few before: it must not take that for all."""
    declare(shop, ledger)
    async with at_rest(shop, watch):
        await watch.asleep.wait()
        watch.left_events = False
        counts = dict(shop.signals.counts)
        shop.publish(*(OrderPlaced(order_id="o-1", number=number) for number in range(1, 41)))
        await rest(shop, watch, counts)

    assert not watch.left_events
    assert ledger.numbers() == list(range(41))
    assert checkpoint(shop, ME) == 41
