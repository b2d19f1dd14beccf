"""Handle it once: what the stations and catalog documents ask of consumers (S4, S5, S6, S8, K3)."""

import asyncio
from typing import Any
from uuid import UUID

import psycopg
import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer import Dispatcher
from aftercommit.event.correlation import correlation, current_story
from aftercommit.event.envelope import Event
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transports import LogTransport
from tests.support.consuming import (
    BLOCKED_AT_INBOX,
    Ledger,
    append,
    bus_on,
    checkpoint,
    handle_all,
    inbox,
    kill,
    letters,
    numbered,
    outbox_records,
    place_in_log,
    settled,
    terminate,
    worker_on,
)
from tests.support.shop import OrderPaid, OrderPlaced, Shop, shop_outbox


class Gate:
    """A handler that stands still after its write, until it is let go."""

    def __init__(self, ledger: Ledger) -> None:
        """Closed."""
        self.ledger = ledger
        self.calls = 0
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()
        self.pid = 0

    async def __call__(self, event: Event[OrderPlaced], connection: Any) -> None:
        """Write, then wait at the gate."""
        self.calls += 1
        await self.ledger.write(event, connection)
        self.pid = connection.info.backend_pid
        self.arrived.set()
        await self.opened.wait()


@pytest.mark.contract("S4")
async def test_the_inbox_record_and_the_handlers_writes_become_visible_together(shop: Shop) -> None:
    """S4: while the handler is at work neither is there, after its commit both are."""
    ledger = Ledger(shop)
    gate = Gate(ledger)
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(gate)
    (event_id,) = place_in_log(shop, ("o-1", 7))
    async with worker_on(shop, consumer):
        await asyncio.wait_for(gate.arrived.wait(), 60)
        assert (ledger.numbers(), inbox(shop, "index"), checkpoint(shop, "index")) == ([], 0, 0)
        gate.opened.set()
        await shop.signals.wait_total("consumer.handled", 1)
    assert ledger.numbers() == [7]
    assert shop.rows("select event_id, consumer_name from processed_events") == [(event_id, "index")]
    assert checkpoint(shop, "index") == 1


@pytest.mark.contract("S4")
@pytest.mark.parametrize("through", ["bus", "log"])
async def test_a_connection_lost_inside_a_handler_leaves_neither_record_nor_effect(shop: Shop, through: str) -> None:
    """S4: the transaction dies after the write; nothing is left of it, and the next delivery has the one effect."""
    ledger = Ledger(shop)
    gate = Gate(ledger)
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(gate)
    shop.place("o-1", 1)
    if through == "log":
        append(shop)
    async with worker_on(shop, consumer) if through == "log" else bus_on(shop):
        await asyncio.wait_for(gate.arrived.wait(), 60)
        await asyncio.to_thread(terminate, shop, gate.pid)
        assert (ledger.numbers(), inbox(shop, "index")) == ([], 0)
        gate.opened.set()
        await shop.signals.wait_total("consumer.handled" if through == "log" else "relay.appended", 1)
    assert gate.calls == 2
    assert (ledger.numbers(), inbox(shop, "index")) == ([1], 1)
    assert letters(shop) == []


@pytest.mark.contract("S4")
async def test_an_error_at_commit_leaves_neither_record_nor_effect(shop: Shop) -> None:
    """S4: a constraint that is checked at COMMIT fails the event whose handler had returned already."""
    ledger = Ledger(shop)
    shop.rows("alter table public.ledger add constraint once unique (number) deferrable initially deferred")
    consumer = shop.outbox.consumer("index", retry_count=0)
    consumer.on(OrderPlaced)(ledger.write)
    ids = place_in_log(shop, ("o-1", 1), ("o-2", 1), ("o-3", 2))
    await handle_all(shop, consumer)
    assert ledger.orders() == ["o-1", "o-3"]
    assert letters(shop, "event_id, status, error_class") == [(ids[1], "parked", "UniqueViolation")]
    handled = {event_id for (event_id,) in shop.rows("select event_id from processed_events")}
    assert handled == {ids[0], ids[2]}


@pytest.mark.contract("S4")
async def test_two_deliveries_of_one_event_at_once_have_one_effect(shop: Shop) -> None:
    """S4: the first is held inside its transaction, the second waits at the inbox, and then skips."""
    ledger = Ledger(shop)
    gate = Gate(ledger)
    shop.outbox.consumer("index").on(OrderPlaced)(gate)
    shop.place("o-1", 1)
    records = outbox_records(shop)
    first, second = (Dispatcher(shop.outbox, shop.database) for _ in range(2))
    try:
        one = asyncio.create_task(first.dispatch(records))
        await asyncio.wait_for(gate.arrived.wait(), 60)
        two = asyncio.create_task(second.dispatch(records))
        await shop.value_becomes(BLOCKED_AT_INBOX, 1)
        assert gate.calls == 1
        gate.opened.set()
        assert (await one, await two) == ([], [])
    finally:
        await first.close()
        await second.close()
    assert gate.calls == 1
    assert (ledger.numbers(), inbox(shop, "index")) == ([1], 1)


@pytest.mark.contract("S4")
async def test_the_second_of_two_deliveries_takes_over_when_the_first_fails(shop: Shop) -> None:
    """S4: the first holds the inbox row and is undone; the second, which waited for it, has the effect."""
    ledger = Ledger(shop)
    gate = Gate(ledger)
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await gate(event, connection)
        if gate.calls == 1:
            raise RuntimeError("the first delivery fails")

    shop.place("o-1", 1)
    records = outbox_records(shop)
    first, second = (Dispatcher(shop.outbox, shop.database) for _ in range(2))
    try:
        one = asyncio.create_task(first.dispatch(records))
        await asyncio.wait_for(gate.arrived.wait(), 60)
        two = asyncio.create_task(second.dispatch(records))
        await shop.value_becomes(BLOCKED_AT_INBOX, 1)
        gate.opened.set()
        failed = await one
        assert [str(failure.error) for failure in failed] == ["the first delivery fails"]
        assert await two == []
    finally:
        await first.close()
        await second.close()
    assert (ledger.numbers(), inbox(shop, "index")) == ([1], 1)


@pytest.mark.contract("S4")
async def test_the_bus_and_the_log_under_one_consumer_name_have_one_effect(shop: Shop) -> None:
    """S4: a dispatcher is inside the handler; the log worker of the same name waits at the inbox, then skips."""
    ledger = Ledger(shop)
    gate = Gate(ledger)
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(gate)
    shop.place("o-1", 1)
    records = outbox_records(shop)
    append(shop)
    dispatcher = Dispatcher(shop.outbox, shop.database)
    dispatching = asyncio.create_task(dispatcher.dispatch(records))
    try:
        await asyncio.wait_for(gate.arrived.wait(), 60)
        async with worker_on(shop, consumer):
            await shop.value_becomes(BLOCKED_AT_INBOX, 1)
            gate.opened.set()
            await shop.signals.wait_total("consumer.handled", 1)
        assert await dispatching == []
    finally:
        await dispatcher.close()
    assert gate.calls == 1
    assert (ledger.numbers(), inbox(shop, "index"), checkpoint(shop, "index")) == ([1], 1, 1)


@pytest.mark.contract("S4")
async def test_an_event_delivered_again_is_skipped_by_who_handled_it_alone(shop: Shop) -> None:
    """S4: the record is per consumer."""
    ledger = Ledger(shop)
    calls: list[str] = []
    for name in ("index", "mail"):

        async def handle(event: Event[OrderPlaced], connection: Any, name: str = name) -> None:
            calls.append(name)
            await ledger.write(event, connection)

        shop.outbox.consumer(name).on(OrderPlaced)(handle)
    shop.place("o-1", 1)
    records = outbox_records(shop)
    index_alone = Dispatcher(shop.outbox, shop.database, [shop.outbox.consumers["index"]])
    everybody = Dispatcher(shop.outbox, shop.database)
    try:
        await index_alone.dispatch(records)
        await everybody.dispatch(records)
        await everybody.dispatch(records)
    finally:
        await index_alone.close()
        await everybody.close()
    assert calls == ["index", "mail"]
    assert (inbox(shop, "index"), inbox(shop, "mail")) == (1, 1)


@pytest.mark.contract("S5")
async def test_a_handlers_error_fails_the_outbox_record_and_leaves_a_dead_letter(shop: Shop) -> None:
    """S5: one attempt allowed: the row is failed, the letter tells the error, and a retry counts it up."""
    shop.outbox = shop_outbox(max_attempts=1)
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    async def refuse(event: Event[OrderPlaced]) -> None:
        raise ValueError(f"no room for {event.payload.order_id}")

    event_id = shop.place("o-1", 1)
    async with bus_on(shop):
        await shop.signals.wait("relay.failed")
        assert shop.rows("select id, status, retry_count, last_error from outbox") == [
            (event_id, "failed", 1, "no room for o-1")
        ]
        columns = "event_id, consumer_name, event_type, payload->>'order_id', error, error_class, status, attempts"
        assert letters(shop, columns) == [
            (event_id, "index", "order.placed", "o-1", "no room for o-1", "ValueError", "parked", 1)
        ]
        ((first_seen, last_seen),) = letters(shop, "first_seen_at, last_seen_at")
        shop.rows("update outbox set status = 'pending', next_retry_at = now(), retry_count = 0")
        await shop.signals.wait("relay.failed", 2)
    ((first_again, last_again, attempts, history),) = letters(shop, "first_seen_at, last_seen_at, attempts, history")
    assert first_again == first_seen
    assert last_again > last_seen
    assert attempts == 2
    assert [entry["error"] for entry in history] == ["no room for o-1"] * 2


@pytest.mark.contract("S5")
async def test_attempts_count_up_over_the_relays_retries_until_the_event_is_delivered(shop: Shop) -> None:
    """S5: two deliveries fail, the third succeeds: the letter has counted two and is resolved."""
    shop.outbox = shop_outbox(max_attempts=5, backoff=Constant(0.0))
    consumer = shop.outbox.consumer("index", retry_count=0)
    calls = 0

    @consumer.on(OrderPlaced)
    async def recover(event: Event[OrderPlaced]) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ValueError(f"call {calls}")

    shop.place("o-1", 1)
    async with bus_on(shop):
        await shop.signals.wait_total("relay.appended", 1)
        await shop.value_becomes("select status from dead_letter_events", "resolved")
    ((attempts, error, history),) = letters(shop, "attempts, error, history")
    assert (calls, attempts, error) == (3, 2, "call 2")
    assert [entry["error"] for entry in history] == ["call 1", "call 2"]


@pytest.mark.contract("S6")
async def test_events_behind_a_failed_one_go_on_through_the_bus(shop: Shop) -> None:
    """S6: the same aggregate and others, published before and after the failure."""
    shop.outbox = shop_outbox(max_attempts=1)
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)
        if event.payload.number == 1:
            raise ValueError("bad")

    shop.publish(OrderPlaced("o-1", 0), OrderPlaced("o-1", 1), OrderPlaced("o-1", 2), OrderPlaced("o-2", 3))
    async with bus_on(shop):
        await shop.signals.wait_total("relay.appended", 3)
        shop.place("o-1", 4)
        await shop.signals.wait_total("relay.appended", 4)
    assert ledger.numbers("o-1") == [0, 2, 4]
    assert ledger.numbers("o-2") == [3]
    assert shop.rows("select status, (payload->>'number')::int from outbox") == [("failed", 1)]


@pytest.mark.contract("S6")
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_events_behind_a_failed_one_go_on_from_the_log(shop: Shop, concurrency: int) -> None:
    """S6: one event of the middle fails for good; everything else is handled once and in order."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0, concurrency=concurrency)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)
        if event.payload.number == 5:
            raise ValueError("bad")

    place_in_log(shop, *numbered(20), *[("o-2", number) for number in range(100, 110)])
    await handle_all(shop, consumer)
    assert ledger.numbers("o-1") == [number for number in range(20) if number != 5]
    assert ledger.numbers("o-2") == list(range(100, 110))
    assert letters(shop, "status, attempts, (payload->>'number')::int") == [("parked", 1, 5)]
    assert checkpoint(shop, "index") == 30


@pytest.mark.contract("K3")
async def test_the_dispatcher_chooses_by_type_by_predicate_and_by_catch_all(shop: Shop) -> None:
    """K3: can_handle decides which consumer gets what, and nobody gets what is not theirs."""
    got: dict[str, list[str]] = {name: [] for name in ("placed", "large", "everything", "both")}

    def note(name: str, *types: Any, **options: Any) -> None:
        async def handle(event: Event[Any]) -> None:
            got[name].append(f"{event.type} {event.payload.order_id}")

        shop.outbox.consumer(name).on(*types, **options)(handle)

    note("placed", OrderPlaced)
    note("large", OrderPaid, can_handle=lambda event: event.payload.amount > 100)
    note("everything", can_handle=lambda event: True)
    note("both", OrderPlaced, OrderPaid)
    shop.publish(OrderPlaced("o-1"), OrderPaid("o-1", 50), OrderPaid("o-2", 500))
    async with bus_on(shop):
        await shop.signals.wait_total("relay.appended", 3)
    everything = ["order.placed o-1", "order.paid o-1", "order.paid o-2"]
    assert got == {
        "placed": ["order.placed o-1"],
        "large": ["order.paid o-2"],
        "everything": everything,
        "both": everything,
    }


@pytest.mark.contract("K3")
@pytest.mark.parametrize("retry_count", [0, 2])
async def test_every_consumer_gets_retry_count_plus_one_attempts_and_fails_alone(shop: Shop, retry_count: int) -> None:
    """K3: behind the bus; the one that succeeded is not called again when the relay delivers the event again."""
    shop.outbox = shop_outbox(max_attempts=2, backoff=Constant(0.0))
    calls: dict[str, list[int]] = {"good": [], "bad": []}
    good = shop.outbox.consumer("good", retry_count=retry_count, backoff=Constant(0.0))
    bad = shop.outbox.consumer("bad", retry_count=retry_count, backoff=Constant(0.0))

    @good.on(OrderPlaced)
    async def succeed(event: Event[OrderPlaced]) -> None:
        calls["good"].append(event.attempt)

    @bad.on(OrderPlaced)
    async def fail(event: Event[OrderPlaced]) -> None:
        calls["bad"].append(event.attempt)
        raise ValueError("never")

    shop.place("o-1", 1)
    async with bus_on(shop):
        await shop.signals.wait("relay.failed", 2)
    assert calls["good"] == [1]
    assert calls["bad"] == [*range(1, retry_count + 2)] * 2
    assert letters(shop, "consumer_name, status, attempts") == [("bad", "parked", len(calls["bad"]))]
    assert (inbox(shop, "good"), inbox(shop, "bad")) == (1, 0)


@pytest.mark.contract("K3")
@pytest.mark.parametrize(("retry_count", "concurrency"), [(0, 1), (2, 1), (2, 4)])
async def test_a_log_consumer_gets_retry_count_plus_one_attempts_and_then_parks(
    shop: Shop, retry_count: int, concurrency: int
) -> None:
    """K3: the letter is retrying until the last attempt, and parked after it."""
    attempts: list[int] = []
    seen: list[str] = []
    consumer = shop.outbox.consumer("index", retry_count=retry_count, backoff=Constant(0.0), concurrency=concurrency)

    @consumer.on(OrderPlaced)
    async def fail(event: Event[OrderPlaced]) -> None:
        attempts.append(event.attempt)
        if len(attempts) > 1:
            seen.extend(str(status) for (status,) in await asyncio.to_thread(letters, shop, "status"))
        raise ValueError(f"attempt {event.attempt}")

    place_in_log(shop, ("o-1", 1))
    await handle_all(shop, consumer)
    assert attempts == list(range(1, retry_count + 2))
    assert seen == ["retrying"] * retry_count
    ((status, counted, error, history),) = letters(shop, "status, attempts, error, history")
    assert (status, counted, error) == ("parked", retry_count + 1, f"attempt {retry_count + 1}")
    assert [entry["error"] for entry in history] == [f"attempt {number}" for number in attempts]
    assert inbox(shop, "index") == 0


@pytest.mark.contract("S8")
async def test_one_correlation_runs_through_three_hops_and_each_names_its_cause(shop: Shop) -> None:
    """S8: what a handler publishes on its connection belongs to the story of the event that it handles."""
    seen: list[tuple[str | None, UUID | None]] = []
    on_placed = shop.outbox.consumer("on-placed")
    on_paid = shop.outbox.consumer("on-paid")

    @on_placed.on(OrderPlaced, can_handle=lambda event: event.payload.note != "the end")
    async def pay(event: Event[OrderPlaced], connection: Any) -> None:
        seen.append(current_story())
        await shop.outbox.publish(connection, OrderPaid(event.payload.order_id, 5), tenant_id="acme")

    @on_paid.on(OrderPaid)
    def finish(event: Event[OrderPaid], connection: Any) -> None:
        seen.append(current_story())
        shop.outbox.publish(connection, OrderPlaced("o-2", 2, note="the end"), tenant_id="acme")

    relay = Relay(
        shop.outbox, shop.database, LogTransport(), settings=RelaySettings(lease_seconds=2.0), probe=shop.signals
    )
    async with relay, worker_on(shop, on_placed), worker_on(shop, on_paid, wait_for=None):
        with correlation("story-1"):
            shop.place("o-1", 1)
        await shop.signals.wait_total("relay.appended", 3)
    rows = shop.rows("select event_type, correlation_id, causation_id, id from log order by position")
    ids = [row[3] for row in rows]
    assert [row[:3] for row in rows] == [
        ("order.placed", "story-1", None),
        ("order.paid", "story-1", ids[0]),
        ("order.placed", "story-1", ids[1]),
    ]
    assert seen == [("story-1", ids[0]), ("story-1", ids[1])]
    assert current_story() == (None, None)


@pytest.mark.contract("S8")
async def test_an_event_published_by_a_handler_is_committed_or_undone_with_it(shop: Shop) -> None:
    """S8: the handler that fails has published nothing; the one that succeeds has, once."""
    consumer = shop.outbox.consumer("pay", retry_count=1, backoff=Constant(0.0))

    @consumer.on(OrderPlaced)
    async def pay(event: Event[OrderPlaced], connection: Any) -> None:
        await shop.outbox.publish(connection, OrderPaid(event.payload.order_id, event.attempt), tenant_id="acme")
        if event.attempt == 1:
            raise ValueError("the first attempt is undone")

    (event_id,) = place_in_log(shop, ("o-1", 1))
    await handle_all(shop, consumer)
    rows = shop.rows("select (payload->>'amount')::int, causation_id, correlation_id from outbox")
    assert rows == [(2, event_id, str(event_id))]


@pytest.mark.contract("S4")
async def test_a_worker_that_dies_before_commit_leaves_nothing_and_the_next_has_the_effect_once(shop: Shop) -> None:
    """S4: the task is killed inside the handler; a second worker under the same name takes over after the lease."""
    ledger = Ledger(shop)
    gate = Gate(ledger)
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(gate)
    place_in_log(shop, ("o-1", 1))
    async with worker_on(shop, consumer, lease_seconds=0.3) as dying:
        await asyncio.wait_for(gate.arrived.wait(), 60)
        await kill(dying)
    assert (ledger.numbers(), inbox(shop, "index")) == ([], 0)
    gate.opened.set()
    async with worker_on(shop, consumer, lease_seconds=0.3, wait_for=None):
        await settled(shop, "index")
    assert (ledger.numbers(), inbox(shop, "index")) == ([1], 1)


@pytest.mark.contract("S4")
async def test_an_unhandled_event_has_no_inbox_record_even_when_its_error_came_from_the_database(shop: Shop) -> None:
    """S4: the error of a statement undoes the record with the rest."""
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    async def divide(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("select 1 / 0")

    place_in_log(shop, ("o-1", 1))
    await handle_all(shop, consumer)
    assert inbox(shop, "index") == 0
    assert letters(shop, "status, error_class, error") == [("parked", "DivisionByZero", "division by zero")]
