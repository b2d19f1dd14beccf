"""Relaxed order: a failed event is recorded in its slice, what it wrote is undone; its neighbours are left alone."""

import asyncio
from collections import Counter
from typing import Any

import psycopg
import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer import Retry, handler_calls
from aftercommit.event.envelope import Event
from tests.support.consuming import Ledger, checkpoint, handle_all, inbox, letters, numbered, place_in_log
from tests.support.shop import OrderPlaced, Shop

STATES = "(payload->>'number')::int, status, attempts"
TENTHS = [(number, "parked", 1) for number in range(0, 300, 10)]


def several(count: int) -> list[tuple[str, int]]:
    """Events of seven orders."""
    return [(f"o-{number % 7}", number) for number in range(count)]


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_failing_tenth_undoes_few_of_its_neighbours(
    shop: Shop, is_async: bool, concurrency: int, writes: bool
) -> None:
    """Each failing event is called once; the others are called again now and then, not over and over."""
    ledger, calls = Ledger(shop), Counter[int]()
    consumer = shop.outbox.consumer("index", retry_count=0, concurrency=concurrency)

    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        calls[event.payload.number] += 1
        if writes or event.payload.number % 10:
            await ledger.write(event, connection)
        if event.payload.number % 10 == 0:
            raise ValueError("bad")

    def handle_sync(event: Event[OrderPlaced], connection: Any) -> None:
        calls[event.payload.number] += 1
        if writes or event.payload.number % 10:
            ledger.write_sync(event, connection)
        if event.payload.number % 10 == 0:
            raise ValueError("bad")

    consumer.on(OrderPlaced)(handle if is_async else handle_sync)
    place_in_log(shop, *several(300))
    await handle_all(shop, consumer)
    assert sorted(ledger.numbers()) == [number for number in range(300) if number % 10]
    assert letters(shop, STATES) == TENTHS
    assert {calls[number] for number in range(0, 300, 10)} == {1}
    assert calls.total() <= (3 if writes else 1) * 300
    assert (inbox(shop, "index"), checkpoint(shop, "index")) == (270, 300)


async def test_a_database_error_is_undone_alone(shop: Shop) -> None:
    """The transaction is aborted until the slice goes back to its savepoint."""
    ledger = Ledger(shop)
    shop.rows("create unique index on public.ledger (number)")
    consumer = shop.outbox.consumer("index", retry_count=0)
    consumer.on(OrderPlaced)(ledger.write)
    place_in_log(shop, *numbered(40), *numbered(40, "o-2"), ("o-3", 40))
    await handle_all(shop, consumer)
    assert ledger.numbers() == list(range(41))
    assert {state for (state,) in letters(shop, "error_class")} == {"UniqueViolation"}
    assert len(letters(shop)) == 40
    assert inbox(shop, "index") == 41


async def test_what_an_earlier_handler_of_the_same_event_wrote_is_undone_too(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0)
    consumer.on(OrderPlaced, can_handle=lambda event: True)(ledger.write)

    @consumer.on(OrderPlaced, can_handle=lambda event: True)
    async def refuse(event: Event[OrderPlaced], connection: Any) -> None:
        if event.payload.number % 5 == 0:
            raise ValueError("bad")

    place_in_log(shop, *numbered(50))
    await handle_all(shop, consumer)
    assert ledger.numbers() == [number for number in range(50) if number % 5]
    assert len(letters(shop)) == 10


async def test_a_retry_that_a_handler_asks_for_is_recorded_in_its_slice(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", backoff=Constant(0.0))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> Retry | None:
        if event.payload.number == 7 and event.attempt == 1:
            return Retry(after=0.0)
        await ledger.write(event, connection)
        return None

    place_in_log(shop, *numbered(20))
    await handle_all(shop, consumer)
    assert sorted(ledger.numbers()) == list(range(20))
    assert letters(shop) == [("resolved", 1)]


@pytest.mark.parametrize("is_async", [True, False])
async def test_handlers_without_a_connection_share_commits_and_a_failure_repeats_no_call(
    shop: Shop, is_async: bool
) -> None:
    """Blocking ones have a transaction each: one that hangs takes its connection with it."""
    calls: list[int] = []
    consumer = shop.outbox.consumer("index", retry_count=0)

    def note(event: Event[OrderPlaced]) -> None:
        calls.append(event.payload.number)
        if event.payload.number % 10 == 5:
            raise ValueError("bad")

    async def note_async(event: Event[OrderPlaced]) -> None:
        note(event)

    consumer.on(OrderPlaced)(note_async if is_async else note)
    place_in_log(shop, *numbered(60))
    await handle_all(shop, consumer)
    assert calls == list(range(60))
    assert letters(shop, "(payload->>'number')::int") == [(number,) for number in range(5, 60, 10)]
    commits = shop.value("select count(distinct xmin::text)::int from processed_events")
    assert (inbox(shop, "index"), commits < 20) == (54, is_async)


async def test_a_handler_without_a_connection_that_hangs_repeats_no_call(shop: Shop) -> None:
    calls: list[int] = []
    consumer = shop.outbox.consumer("index", retry_count=0, timeout=0.5)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        calls.append(event.payload.number)
        if event.payload.number == 5:
            await asyncio.Event().wait()

    place_in_log(shop, *numbered(12))
    await handle_all(shop, consumer)
    assert calls == list(range(12))
    assert letters(shop, "(payload->>'number')::int, error_class") == [(5, "HandlerTimeout")]
    assert inbox(shop, "index") == 11


@pytest.mark.parametrize("with_inbox", [True, False])
@pytest.mark.parametrize("ordering", ["relaxed", "strict"])
async def test_a_slice_that_takes_long_commits_what_it_has(
    shop: Shop, ordering: Any, with_inbox: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops after its first event, and the events that it did not get to are handled once, in order."""
    if ordering == "strict" and not with_inbox:
        return
    monkeypatch.setattr(handler_calls, "STOP_SECONDS", 0.0)
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", ordering=ordering, inbox=with_inbox)
    consumer.on(OrderPlaced)(ledger.write)
    place_in_log(shop, *numbered(20))
    await handle_all(shop, consumer)
    assert ledger.numbers() == list(range(20))
    assert shop.value("select count(distinct xmin::text)::int from public.ledger") == 20
    assert checkpoint(shop, "index") == 20


async def test_a_session_that_a_handler_keeps_is_not_used_again(shop: Shop) -> None:
    """With the bare session it could write unseen while another event is at work."""
    kept: list[Any] = []
    pids: list[int] = []
    consumer = shop.outbox.consumer("index")

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        pids.append(connection.info.backend_pid)
        if event.payload.number == 0:
            kept.append(connection.pgconn)

    place_in_log(shop, ("o-1", 0))
    await handle_all(shop, consumer)
    place_in_log(shop, ("o-1", 1))
    await handle_all(shop, consumer)
    assert len(set(pids)) == 2


async def test_a_handler_that_spoils_the_session_for_our_last_statement_fails_alone(shop: Shop) -> None:
    """The slice records a failure when its handlers are done, and finds that it may not write."""
    ledger = Ledger(shop)
    shop.rows("create role spoiler; grant usage on schema public to spoiler; grant all on public.ledger to spoiler")
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        if event.payload.number == 2:
            raise ValueError("bad")
        await ledger.write(event, connection)
        if event.payload.number == 3:
            await connection.execute("set local role spoiler")

    place_in_log(shop, *numbered(6))
    try:
        await handle_all(shop, consumer)
    finally:
        shop.rows("drop owned by spoiler; drop role spoiler")
    assert sorted(ledger.numbers()) == [0, 1, 3, 4, 5]
    assert letters(shop, "(payload->>'number')::int, status") == [(2, "parked")]
