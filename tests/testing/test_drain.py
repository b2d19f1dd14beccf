"""drain(): relay and consumers until nothing is left to do, from the log and behind the bus."""

from typing import Any

import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer import Park, Retry
from aftercommit.errors import DeclarationError, DrainFailed, DrainNeverEnded
from aftercommit.event.envelope import Event
from aftercommit.testing import AsyncWorld, RecordingTransport, World
from tests.support.shop import OrderPaid, OrderPlaced, shop_outbox
from tests.testing.till import LEDGER, write_ledger, write_ledger_blocking

TRANSPORTS = ["log", "bus"]


def ledger(world: World) -> list[tuple[Any, ...]]:
    with world.connect(autocommit=True) as connection:
        return connection.execute(LEDGER).fetchall()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("declare", [write_ledger, write_ledger_blocking])
def test_everything_is_appended_and_handled_once(aftercommit_world: World, transport: Any, declare: Any) -> None:
    declare(aftercommit_world.outbox)
    ids = aftercommit_world.publish(OrderPlaced("o-1"), OrderPlaced("o-2"), OrderPaid("o-1", 3), tenant_id="acme")
    drained = aftercommit_world.drain(transport=transport)
    assert drained.appended == 3
    assert [attempt.event_id for attempt in drained.handled] == list(ids[:2])
    assert {attempt.consumer for attempt in drained.handled} == {"ledger"}
    assert (drained.failed, drained.parked, drained.retrying, drained.crashes) == ((), (), (), ())
    assert sorted(ledger(aftercommit_world)) == [("o-1", ""), ("o-2", "")]
    again = aftercommit_world.drain(transport=transport)
    assert (again.appended, again.attempts) == (0, ())


def test_a_divided_consumer_is_drained_like_any_other(aftercommit_world: World) -> None:
    handled: list[str] = []
    consumer = aftercommit_world.outbox.consumer("divided", lanes=8)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        handled.append(event.payload.order_id)

    names = [f"o-{number}" for number in range(20)]
    aftercommit_world.publish(*map(OrderPlaced, names), tenant_id="acme")
    assert len(aftercommit_world.drain().handled) == 20
    assert handled == names
    assert aftercommit_world.drain().attempts == ()


@pytest.mark.thorough
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_handlers_publish_is_drained_too(aftercommit_world: World, transport: Any) -> None:
    outbox = aftercommit_world.outbox

    @outbox.on(OrderPlaced, consumer="till")
    async def pay(event: Event[OrderPlaced], connection: Any) -> None:
        await outbox.publish(connection, OrderPaid(event.payload.order_id, 7), tenant_id="acme")

    paid: list[str] = []

    @outbox.on(OrderPaid, consumer="mail")
    async def thank(event: Event[OrderPaid]) -> None:
        paid.append(event.payload.order_id)

    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    assert aftercommit_world.drain(transport=transport).appended == 2
    assert paid == ["o-1"]
    (event,) = aftercommit_world.assert_published(OrderPaid, payload={"amount": 7})
    assert event.causation_id == aftercommit_world.published()[0].event_id


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_handlers_error_is_the_cause_of_what_drain_raises(aftercommit_world: World, transport: Any) -> None:
    aftercommit_world.outbox.backoff = Constant(3600)
    consumer = aftercommit_world.outbox.consumer("till", retry_count=1, backoff=Constant(3600))

    @consumer.on(OrderPlaced)
    async def fail(event: Event[OrderPlaced]) -> None:
        raise ZeroDivisionError("no price")

    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    with pytest.raises(DrainFailed, match=r"'till' failed on order\.placed .* ZeroDivisionError: no price") as caught:
        aftercommit_world.drain(transport=transport)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert [letter.status for letter in caught.value.drained.retrying] == ["retrying"]
    assert aftercommit_world.drain(transport=transport).attempts == (), "a retry waits for its time"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_errors_can_be_looked_at_instead(aftercommit_world: World, transport: Any) -> None:
    consumer = aftercommit_world.outbox.consumer("till")

    @consumer.on(OrderPlaced)
    async def choose(event: Event[OrderPlaced]) -> Any:
        return Park("unwanted") if event.payload.note == "bad" else None

    aftercommit_world.publish(OrderPlaced("o-1", note="bad"), OrderPlaced("o-2"), tenant_id="acme")
    drained = aftercommit_world.drain(transport=transport, raise_errors=False)
    (parked,) = drained.parked
    assert (parked.consumer, parked.error) == ("till", "unwanted")
    assert [str(attempt.error) for attempt in drained.failed] == ["unwanted"]
    assert len(drained.handled) == 1
    assert aftercommit_world.dead_letters() == (parked,)
    aftercommit_world.drain(transport=transport)


@pytest.mark.thorough
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_retries_are_brought_forward_until_they_succeed(aftercommit_world: World, transport: Any) -> None:
    calls: list[int] = []
    aftercommit_world.outbox.backoff = Constant(3600)
    consumer = aftercommit_world.outbox.consumer("till", retry_count=3, backoff=Constant(3600))

    @consumer.on(OrderPlaced)
    def fail_twice(event: Event[OrderPlaced]) -> Any:
        calls.append(event.attempt)
        if len(calls) == 1:
            raise ValueError("first")
        return Retry(after=7200) if len(calls) == 2 else None

    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    drained = aftercommit_world.drain(transport=transport, through_retries=True)
    assert len(calls) == 3
    assert len(drained.failed) == 2
    assert len(drained.handled) == 1
    assert (drained.retrying, drained.parked) == ((), ())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_retries_are_brought_forward_until_they_are_used_up(aftercommit_world: World, transport: Any) -> None:
    aftercommit_world.outbox.max_attempts = 2
    consumer = aftercommit_world.outbox.consumer("till", retry_count=2)

    @consumer.on(OrderPlaced)
    async def fail(event: Event[OrderPlaced]) -> None:
        raise ValueError("always")

    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    with pytest.raises(DrainFailed, match="parked"):
        aftercommit_world.drain(transport=transport, through_retries=True)
    (letter,) = aftercommit_world.dead_letters()
    assert letter.status == "parked"


@pytest.mark.parametrize("ordering", ["relaxed", "strict"])
def test_brought_forward_retries_keep_the_order_of_an_aggregate(aftercommit_world: World, ordering: Any) -> None:
    seen: list[int] = []
    failing = {0}
    consumer = aftercommit_world.outbox.consumer("till", retry_count=5, ordering=ordering)

    @consumer.on(OrderPlaced)
    async def note(event: Event[OrderPlaced]) -> None:
        if event.payload.number in failing:
            failing.clear()
            raise ValueError("once")
        seen.append(event.payload.number)

    aftercommit_world.publish(*(OrderPlaced("o-1", number) for number in range(4)), tenant_id="acme")
    aftercommit_world.drain(through_retries=True)
    last = {number: index for index, number in enumerate(seen)}
    assert sorted(last) == [0, 1, 2, 3]
    if ordering == "strict":
        assert seen == [0, 1, 2, 3]


@pytest.mark.thorough
def test_a_story_without_end_is_bounded(aftercommit_world: World) -> None:
    outbox = aftercommit_world.outbox

    @outbox.on(OrderPlaced, consumer="echo")
    async def again(event: Event[OrderPlaced], connection: Any) -> None:
        await outbox.publish(connection, OrderPlaced(event.payload.order_id), tenant_id="acme")

    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    with pytest.raises(DrainNeverEnded, match="after 5 rounds there is still work"):
        aftercommit_world.drain(rounds=5)


def test_a_handler_that_hangs_is_bounded(aftercommit_world: World) -> None:
    import asyncio

    @aftercommit_world.outbox.on(OrderPlaced, consumer="hangs")
    async def hang(event: Event[OrderPlaced]) -> None:
        await asyncio.Event().wait()

    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    with pytest.raises(DrainNeverEnded, match=r"within 0\.5 s: a handler hangs"):
        aftercommit_world.drain(timeout=0.5)


@pytest.mark.thorough
def test_only_the_named_consumers_run(aftercommit_world: World) -> None:
    write_ledger(aftercommit_world.outbox, "one", start="earliest")
    write_ledger(aftercommit_world.outbox, "two", start="earliest")
    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    assert aftercommit_world.drain(consumers=[]).appended == 1
    assert [each.consumer for each in aftercommit_world.drain(consumers=["two"]).handled] == ["two"]
    assert [each.consumer for each in aftercommit_world.drain().handled] == ["one"]
    with pytest.raises(DeclarationError, match="'three' is not declared: declared are one, two"):
        aftercommit_world.drain(consumers=["three"])
    with pytest.raises(DeclarationError, match="with the bus"):
        aftercommit_world.drain(transport="bus", consumers=["one"])
    with pytest.raises(DeclarationError, match="transport 'pigeon' is not known"):
        aftercommit_world.drain(transport="pigeon")  # type: ignore[arg-type]


def test_a_transport_of_your_own_gets_the_events_and_consumers_follow_the_log(aftercommit_world: World) -> None:
    write_ledger(aftercommit_world.outbox)
    transport = RecordingTransport()
    ids = aftercommit_world.publish(OrderPlaced("o-1"), OrderPaid("o-1", 1), tenant_id="acme")
    aftercommit_world.drain(transport=transport)
    assert transport.event_ids == list(ids)
    assert ledger(aftercommit_world) == [("o-1", "")]


def test_batch_handlers_are_watched_event_by_event(aftercommit_world: World) -> None:
    consumer = aftercommit_world.outbox.consumer("batches", retry_count=0)

    @consumer.on(OrderPlaced, batch=True)
    async def fold(events: list[Event[OrderPlaced]]) -> None:
        if any(event.payload.note == "bad" for event in events):
            raise ValueError("bad")

    aftercommit_world.publish(OrderPlaced("a"), OrderPlaced("b", note="bad"), OrderPlaced("c"), tenant_id="acme")
    drained = aftercommit_world.drain(raise_errors=False)
    assert {each.event.aggregate_id for each in drained.handled if each.event} == {"a", "c"}
    assert [letter.error for letter in drained.parked] == ["bad"]


async def test_in_an_event_loop_it_is_awaited(aftercommit_async_world: AsyncWorld, aftercommit_world: World) -> None:
    write_ledger(aftercommit_async_world.outbox)
    await aftercommit_async_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    assert len((await aftercommit_async_world.drain()).handled) == 1
    with pytest.raises(DeclarationError, match="use the fixture aftercommit_async_world"):
        aftercommit_world.drain()


def test_a_paused_consumer_is_left_alone(aftercommit_world: World) -> None:
    write_ledger(aftercommit_world.outbox)
    aftercommit_world.drain(consumers=["ledger"])
    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    with aftercommit_world.connect(autocommit=True) as connection:
        connection.execute(
            "insert into shop.consumer (name, position, declared_by, paused) values ('ledger', 0, 'order.placed', true)"
        )
    assert aftercommit_world.drain().handled == ()
    with aftercommit_world.connect(autocommit=True) as connection:
        connection.execute("update shop.consumer set paused = false")
    assert len(aftercommit_world.drain().handled) == 1


def test_an_outbox_that_was_not_migrated_is_named_with_the_remedy(database: str) -> None:
    from aftercommit.errors import SchemaNotMigrated

    with pytest.raises(SchemaNotMigrated, match=r"no outbox in schema 'shop'.*migrate"):
        World(shop_outbox(), database).drain()
