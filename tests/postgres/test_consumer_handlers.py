"""What a handler may do and what it may not: every misuse fails clearly, costs its own event, and loses nothing."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from aftercommit.backoff import Constant
from aftercommit.consumer.calls import HandlerCall
from aftercommit.consumer.threads import GivenUp, Watch
from aftercommit.event.envelope import Event
from aftercommit.outbox.handlers import Consumer
from tests.support.consuming import (
    Ledger,
    append,
    bus_on,
    checkpoint,
    handle_all,
    inbox,
    letters,
    numbered,
    place_in_log,
    settled,
    worker_on,
)
from tests.support.shop import OrderPaid, OrderPlaced, Shop

pytestmark = pytest.mark.newest

BAD = 3
# Seconds that no handler takes which does not hang, though the machine may stand still for a while.
ENOUGH = 3.0


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_handlers_may_be_async_or_blocking(shop: Shop, kind: str) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(ledger.write if kind == "async" else ledger.write_sync)
    place_in_log(shop, *numbered(100))
    await handle_all(shop, consumer, page_size=30)
    assert ledger.numbers() == list(range(100))
    assert (inbox(shop, "index"), checkpoint(shop, "index")) == (100, 100)


async def test_a_handler_without_a_connection_is_not_called_again_because_its_neighbour_failed(shop: Shop) -> None:
    """What it does outside the database cannot be undone, so it shares a transaction with nobody."""
    called: list[int] = []
    consumer = shop.outbox.consumer("mail", retry_count=0)

    @consumer.on(OrderPlaced)
    async def send(event: Event[OrderPlaced]) -> None:
        called.append(event.payload.number)
        if event.payload.number == BAD:
            raise ValueError("bounced")

    place_in_log(shop, *numbered(6))
    await handle_all(shop, consumer)
    assert called == [0, 1, 2, 3, 4, 5]
    assert letters(shop, "status, (payload->>'number')::int") == [("parked", BAD)]


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_batch_handler_gets_lists_in_order(shop: Shop, concurrency: int) -> None:
    ledger = Ledger(shop)
    sizes: list[int] = []
    consumer = shop.outbox.consumer("index", concurrency=concurrency)

    @consumer.on(OrderPlaced, batch=True)
    async def write(events: list[Event[OrderPlaced]], connection: Any) -> None:
        sizes.append(len(events))
        for event in events:
            await ledger.write(event, connection)

    place_in_log(shop, *numbered(60, "o-1"), *numbered(60, "o-2"))
    await handle_all(shop, consumer)
    assert ledger.numbers("o-1") == ledger.numbers("o-2") == list(range(60))
    assert max(sizes) > 1
    assert sum(sizes) == 120


async def test_one_bad_event_of_a_batch_is_isolated(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=1, backoff=Constant(0.0))

    @consumer.on(OrderPlaced, batch=True)
    def write(events: list[Event[OrderPlaced]], connection: Any) -> None:
        for event in events:
            ledger.write_sync(event, connection)
        if any(event.payload.number == BAD for event in events):
            raise ValueError("one of these is bad")

    place_in_log(shop, *numbered(12))
    await handle_all(shop, consumer)
    assert ledger.numbers() == [number for number in range(12) if number != BAD]
    assert letters(shop, "status, attempts, (payload->>'number')::int") == [("parked", 2, BAD)]


async def test_batch_and_single_handlers_of_one_consumer_keep_the_order_of_the_log(shop: Shop) -> None:
    seen: list[str] = []
    consumer = shop.outbox.consumer("mixed")

    @consumer.on(OrderPlaced, batch=True)
    async def placed(events: list[Event[OrderPlaced]], connection: Any) -> None:
        seen.append("placed " + ",".join(str(event.payload.number) for event in events))

    @consumer.on(OrderPaid)
    async def paid(event: Event[OrderPaid], connection: Any) -> None:
        seen.append(f"paid {event.payload.amount}")

    shop.publish(
        OrderPlaced("o-1", 1), OrderPlaced("o-1", 2), OrderPaid("o-1", 3), OrderPlaced("o-1", 4), OrderPaid("o-1", 5)
    )
    append(shop)
    await handle_all(shop, consumer)
    assert seen == ["placed 1,2", "paid 3", "placed 4", "paid 5"]


async def test_several_handlers_of_one_consumer_share_the_events_transaction(shop: Shop) -> None:
    """Both conditions hold for one event: both handlers run, and when the second fails the first is undone."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0)
    consumer.on(OrderPlaced, can_handle=lambda event: event.payload.number >= 0)(ledger.write)

    @consumer.on(OrderPlaced, can_handle=lambda event: event.payload.number >= 2)
    async def refuse(event: Event[OrderPlaced], connection: Any) -> None:
        raise ValueError("too large")

    place_in_log(shop, *numbered(4))
    await handle_all(shop, consumer)
    assert ledger.numbers() == [0, 1]
    assert letters(shop, "status, (payload->>'number')::int") == [("parked", 2), ("parked", 3)]


def commit_async(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)
        if event.payload.number == BAD:
            await connection.commit()


def commit_sync(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
        ledger.write_sync(event, connection)
        if event.payload.number == BAD:
            connection.commit()


def rollback_async(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)
        if event.payload.number == BAD:
            await connection.rollback()


def raise_rollback_async(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)
        if event.payload.number == BAD:
            raise psycopg.Rollback


def raise_rollback_sync(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
        ledger.write_sync(event, connection)
        if event.payload.number == BAD:
            raise psycopg.Rollback


def swallow_async(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)
        if event.payload.number == BAD:
            with contextlib.suppress(psycopg.Error):
                await connection.execute("select 1 / 0")


def swallow_sync(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
        ledger.write_sync(event, connection)
        if event.payload.number == BAD:
            with contextlib.suppress(psycopg.Error):
                connection.execute("select 1 / 0")


def close_async(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)
        if event.payload.number == BAD:
            await connection.close()


def close_sync(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
        ledger.write_sync(event, connection)
        if event.payload.number == BAD:
            connection.close()


def stop_iteration(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
        ledger.write_sync(event, connection)
        if event.payload.number == BAD:
            next(iter(()))


def await_cancelled(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)
        if event.payload.number == BAD:
            task = asyncio.create_task(asyncio.sleep(10))
            task.cancel()
            await task


def time_out_by_itself(consumer: Consumer, ledger: Ledger) -> None:
    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)
        if event.payload.number == BAD:
            raise TimeoutError("the shipping service did not answer")


MISUSES: list[tuple[Callable[[Consumer, Ledger], None], str, str]] = [
    (commit_async, "MisusedConnection", "leave COMMIT and ROLLBACK to the consumer"),
    (commit_sync, "MisusedConnection", "leave COMMIT and ROLLBACK to the consumer"),
    (rollback_async, "MisusedConnection", "leave COMMIT and ROLLBACK to the consumer"),
    (raise_rollback_async, "MisusedConnection", "return Retry(after=…) or Park(reason)"),
    (raise_rollback_sync, "MisusedConnection", "return Retry(after=…) or Park(reason)"),
    (swallow_async, "SwallowedDatabaseError", "with connection.transaction():"),
    (swallow_sync, "SwallowedDatabaseError", "with connection.transaction():"),
    (close_async, "MisusedConnection", "leave the connection open"),
    (close_sync, "MisusedConnection", "leave the connection open"),
    (stop_iteration, "StopIteration", "StopIteration"),
    (await_cancelled, "HandlerCancelled", "waited for something cancelled"),
    (time_out_by_itself, "TimeoutError", "the shipping service did not answer"),
]


@pytest.mark.parametrize(("declare", "error_class", "text"), MISUSES, ids=[each[0].__name__ for each in MISUSES])
@pytest.mark.thorough
async def test_a_handlers_misuse_fails_its_event_clearly_and_loses_nothing(
    shop: Shop, declare: Callable[[Consumer, Ledger], None], error_class: str, text: str
) -> None:
    """The events around it are handled once, in one transaction with it or not."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0)
    declare(consumer, ledger)
    place_in_log(shop, *numbered(8))
    await handle_all(shop, consumer)
    assert ledger.numbers() == [number for number in range(8) if number != BAD]
    ((number, status, found, error),) = letters(shop, "(payload->>'number')::int, status, error_class, error")
    assert (number, status, found) == (BAD, "parked", error_class)
    assert text in error
    assert inbox(shop, "index") == 7


@pytest.mark.parametrize("kind", ["async", "sync", "without inbox", "bus"])
async def test_a_handler_that_sends_commit_itself_is_found_out_and_the_events_behind_it_are_not_lost(
    shop: Shop, kind: str
) -> None:
    """The early COMMIT took the inbox rows of the whole slice with it; those of unhandled events are taken back."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0, inbox=kind != "without inbox")
    if kind == "sync":

        @consumer.on(OrderPlaced)
        def handle_sync(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
            ledger.write_sync(event, connection)
            if event.payload.number == BAD:
                connection.execute("commit")
    else:

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
            await ledger.write(event, connection)
            if event.payload.number == BAD:
                await connection.execute("commit")

    shop.publish(*(OrderPlaced("o-1", number) for number in range(8)))
    if kind == "bus":
        async with bus_on(shop):
            await shop.signals.wait_total("relay.appended", 7)
    else:
        append(shop)
        await handle_all(shop, consumer)
    assert ledger.numbers() == list(range(8))
    assert letters(shop, "(payload->>'number')::int, status, error_class") == [
        (BAD, "parked", "HandlerEndedTransaction")
    ]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_savepoint_in_a_handler_undoes_what_is_inside_it_alone(shop: Shop, kind: str) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index")
    if kind == "async":

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
            await ledger.write(event, connection)
            try:
                async with connection.transaction():
                    await ledger.write(event, connection)
                    await connection.execute("select 1 / 0")
            except psycopg.errors.DivisionByZero:
                await connection.execute("update public.ledger set note = 'mended'")
    else:

        @consumer.on(OrderPlaced)
        def handle_sync(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
            ledger.write_sync(event, connection)
            try:
                with connection.transaction():
                    ledger.write_sync(event, connection)
                    connection.execute("select 1 / 0")
            except psycopg.errors.DivisionByZero:
                connection.execute("update public.ledger set note = 'mended'")

    place_in_log(shop, *numbered(3))
    await handle_all(shop, consumer)
    assert shop.rows("select number, note from public.ledger order by id") == [(n, "mended") for n in range(3)]
    assert letters(shop) == []


@pytest.mark.parametrize("binary", [False, True])
async def test_what_a_handler_sets_on_its_connection_does_not_reach_the_next(shop: Shop, binary: bool) -> None:
    """Other row types than tuples would make our own statements read nonsense, and skip events."""
    found: list[Any] = []
    consumer = shop.outbox.consumer("index")

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        row = "select 1 as one, '{\"a\": 2}'::json as two"
        found.append(await (await connection.execute(row, binary=binary)).fetchone())
        connection.row_factory = dict_row
        connection.cursor_factory = psycopg.AsyncClientCursor

    place_in_log(shop, *numbered(40))
    await handle_all(shop, consumer)
    assert found == [(1, {"a": 2})] * 40
    assert inbox(shop, "index") == 40


async def test_a_deferred_constraint_violated_at_commit_fails_its_event_alone(shop: Shop) -> None:
    ledger = Ledger(shop)
    shop.rows(
        "create table public.known (number int primary key);"
        "insert into public.known select n from generate_series(0, 9) n where n <> 3;"
        "alter table public.ledger add foreign key (number) references public.known deferrable initially deferred"
    )
    consumer = shop.outbox.consumer("index", retry_count=1, backoff=Constant(0.0))
    consumer.on(OrderPlaced)(ledger.write_sync)
    place_in_log(shop, *numbered(10))
    await handle_all(shop, consumer)
    assert ledger.numbers() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert letters(shop, "(payload->>'number')::int, status, attempts, error_class") == [
        (3, "parked", 2, "ForeignKeyViolation")
    ]


@pytest.mark.thorough
async def test_an_async_handler_that_takes_too_long_is_ended_and_undone(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0, timeout=ENOUGH)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)
        if event.payload.number == 1:
            await asyncio.Event().wait()
        if event.payload.number == 2:
            await connection.execute("select pg_sleep(60)")

    place_in_log(shop, *numbered(4))
    await handle_all(shop, consumer)
    assert ledger.numbers() == [0, 3]
    rows = letters(shop, "(payload->>'number')::int, status, error_class, error")
    assert [row[:3] for row in rows] == [(1, "parked", "HandlerTimeout"), (2, "parked", "HandlerTimeout")]
    assert f"took longer than {ENOUGH:g} s: raise the consumer's timeout or make it quicker" in rows[0][3]


@pytest.mark.thorough
async def test_a_blocking_handler_that_hangs_is_cut_off_and_the_consumer_goes_on(shop: Shop) -> None:
    """In Python or in a statement, several times over: what each wrote is undone, and late ones can write no more."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0, timeout=ENOUGH)
    freed = threading.Event()
    late: list[BaseException | None] = []

    @consumer.on(OrderPlaced)
    def handle(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
        ledger.write_sync(event, connection)
        if event.payload.number in (1, 2, 3):
            freed.wait(60)
            try:
                ledger.write_sync(event, connection)
            except psycopg.Error as problem:
                late.append(problem)
        if event.payload.number == 4:
            connection.execute("select pg_sleep(60)")

    place_in_log(shop, *numbered(6))
    try:
        async with worker_on(shop, consumer):
            await settled(shop, "index")
            assert ledger.numbers() == [0, 5]
            rows = letters(shop, "(payload->>'number')::int, status, error_class")
            assert rows == [(number, "parked", "HandlerTimeout") for number in (1, 2, 3, 4)]
            busy = (
                "select count(*)::int from pg_stat_activity where datname = current_database() and query ~ 'pg_sleep'"
            )
            await shop.value_becomes(busy.replace("query ~", "pid <> pg_backend_pid() and query ~"), 0)
    finally:
        freed.set()
    for thread in threading.enumerate():
        if thread.name == "aftercommit handler":
            await asyncio.to_thread(thread.join, 60)
    assert len(late) == 3
    assert ledger.numbers() == [0, 5]


def test_a_slice_that_was_given_up_cannot_go_on_although_its_handler_returned_at_the_last_moment() -> None:
    """Otherwise it might commit while its event is recorded as failed."""
    watch = Watch()
    call = HandlerCall(handler=None, event=None, place=0)  # type: ignore[arg-type]
    watch.enter(call)
    assert watch.give_up_after(60.0) is None
    assert watch.give_up_after(-1.0) is call
    with pytest.raises(GivenUp):
        watch.enter(None)


async def test_events_of_different_aggregates_are_handled_side_by_side(shop: Shop) -> None:
    """Three handlers wait for each other: with fewer at once none would ever go on."""
    barrier = asyncio.Barrier(3)
    consumer = shop.outbox.consumer("index", concurrency=3, retry_count=0, timeout=60)

    @consumer.on(OrderPlaced)
    async def meet(event: Event[OrderPlaced], connection: Any) -> None:
        await barrier.wait()

    place_in_log(shop, ("o-1", 0), ("o-2", 0), ("o-3", 0))
    await handle_all(shop, consumer)
    assert letters(shop) == []
    assert (inbox(shop, "index"), checkpoint(shop, "index")) == (3, 3)


async def test_blocking_handlers_of_different_aggregates_run_side_by_side(shop: Shop) -> None:
    barrier = threading.Barrier(3, timeout=60)
    consumer = shop.outbox.consumer("index", concurrency=3, retry_count=0, timeout=60)

    @consumer.on(OrderPlaced)
    def meet(event: Event[OrderPlaced], connection: Any) -> None:
        barrier.wait()

    place_in_log(shop, ("o-1", 0), ("o-2", 0), ("o-3", 0))
    await handle_all(shop, consumer)
    assert letters(shop) == []
    assert inbox(shop, "index") == 3


@pytest.mark.thorough
@pytest.mark.parametrize("through", ["log", "bus"])
async def test_concurrency_is_a_limit_and_keeps_the_order_within_each_aggregate(shop: Shop, through: str) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", concurrency=4)
    at_once: list[int] = [0]
    running = 0

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        nonlocal running
        running += 1
        at_once.append(running)
        await ledger.write(event, connection)
        running -= 1

    events = [OrderPlaced(f"o-{index % 12}", index // 12) for index in range(240)]
    shop.publish(*events)
    if through == "log":
        append(shop)
        await handle_all(shop, consumer, page_size=100)
    else:
        async with bus_on(shop, carriers=4, batch_size=50):
            await shop.signals.wait_total("relay.appended", 240)
    for order in range(12):
        assert ledger.numbers(f"o-{order}") == list(range(20))
    assert 1 < max(at_once) <= 4


async def test_a_deadlock_in_a_shared_transaction_costs_no_event_an_attempt(shop: Shop) -> None:
    """Two events in one slice lock two accounts, somebody else in the other order: they go again, one by one."""
    shop.rows(
        "create table public.account (name text primary key, amount int default 0);"
        "insert into public.account values ('o-1'), ('o-2')"
    )
    shop.rows(f"alter database {shop.value('select current_database()')} set deadlock_timeout = '20ms'")
    consumer = shop.outbox.consumer("accounts", retry_count=0)
    first_is_locked, go_on = asyncio.Event(), asyncio.Event()

    @consumer.on(OrderPlaced)
    async def add(event: Event[OrderPlaced], connection: Any) -> None:
        if event.payload.order_id == "o-2":
            first_is_locked.set()
            await go_on.wait()
        await connection.execute(
            "update public.account set amount = amount + 1 where name = %s", (event.payload.order_id,)
        )

    place_in_log(shop, ("o-1", 1), ("o-2", 1))
    with shop.connect() as other:
        other.execute("set deadlock_timeout = '1h'")
        other.execute("update public.account set amount = amount + 10 where name = 'o-2'")
        async with worker_on(shop, consumer):
            await asyncio.wait_for(first_is_locked.wait(), 60)
            statement = "update public.account set amount = amount + 10 where name = 'o-1'"
            crossing = asyncio.create_task(asyncio.to_thread(other.execute, statement))
            pid = other.info.backend_pid
            await shop.value_becomes(f"select wait_event_type from pg_stat_activity where pid = {pid}", "Lock")
            go_on.set()
            await crossing
            other.commit()
            await settled(shop, "accounts")
    assert shop.rows("select amount from public.account order by name") == [(11,), (11,)]
    assert letters(shop) == []


async def test_a_handler_that_loses_its_connection_every_time_is_failed_in_the_end(shop: Shop) -> None:
    """Once is the database's fault; again and again, while others connect, is the handler's own."""
    ledger = Ledger(shop)
    calls: list[int] = []
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)
        if event.payload.number == BAD:
            calls.append(event.attempt)
            await connection.execute("select pg_terminate_backend(pg_backend_pid())")

    place_in_log(shop, *numbered(6))
    await handle_all(shop, consumer)
    assert ledger.numbers() == [0, 1, 2, 4, 5]
    assert letters(shop, "(payload->>'number')::int, status, error_class") == [(BAD, "parked", "ConnectionLost")]
    assert 3 <= len(calls) <= 4


async def test_a_handler_that_outstays_the_servers_patience_fails_its_event(shop: Shop) -> None:
    """The server ends a transaction that waits too long: that is the handler's failure, not an outage."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)
        if event.payload.number == BAD:
            await connection.execute("set local idle_in_transaction_session_timeout = 50")
            pid = connection.info.backend_pid
            await shop.value_becomes(f"select count(*)::int from pg_stat_activity where pid = {pid}", 0)

    place_in_log(shop, *numbered(6))
    await handle_all(shop, consumer)
    assert ledger.numbers() == [0, 1, 2, 4, 5]
    rows = letters(shop, "(payload->>'number')::int, status, error_class")
    assert rows == [(BAD, "parked", "IdleInTransactionSessionTimeout")]
