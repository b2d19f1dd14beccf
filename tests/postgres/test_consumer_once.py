"""Once, and the right one to blame: answers that never came, swallowed cancellations, commits sent by hand."""

import asyncio
import contextlib
from typing import Any

import psycopg
import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer import Dispatcher, LogWorker, WorkerSettings, opening
from aftercommit.consumer import pages as pages_module
from aftercommit.consumer.lease import Leases
from aftercommit.consumer.pages import LatestPage, Pages
from aftercommit.event.envelope import Event
from aftercommit.postgres.database import Database
from aftercommit.postgres.resilience import DatabaseService
from aftercommit.testing.fault_proxy import FaultProxy
from aftercommit.testing.signals import Signals
from tests.support.consuming import Ledger, handle_all, letters, numbered, outbox_records, place_in_log, worker_on
from tests.support.shop import OrderPlaced, Shop


@pytest.mark.parametrize("inbox", [True, False])
async def test_a_commit_whose_answer_is_lost_has_its_effect_once(shop: Shop, inbox: bool) -> None:
    """The slice is tried again; the inbox, or without one the checkpoint, says that it was done."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", inbox=inbox, start="earliest")
    place_in_log(shop, *numbered(3))
    async with FaultProxy(shop.dsn) as proxy:
        cuts = iter([True])

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
            await ledger.write(event, connection)
            if next(cuts, False):
                proxy.faults.cut_at_commit = True

        signals = Signals()
        settings = WorkerSettings(lease_seconds=1.0)
        async with LogWorker(shop.outbox, consumer, Database(proxy.dsn), settings=settings, probe=signals):
            await signals.wait("consumer.idle")
        assert proxy.commits_cut == 1
    assert ledger.numbers() == [0, 1, 2]


async def test_a_letter_whose_commit_was_not_answered_is_handled_once_without_an_inbox(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", inbox=False, start="earliest", retry_count=1, backoff=Constant(0.0))
    place_in_log(shop, *numbered(1))
    async with FaultProxy(shop.dsn) as proxy:
        attempts = iter(["fail", "cut"])

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
            attempt = next(attempts, "")
            if attempt == "fail":
                raise ValueError("not yet")
            await ledger.write(event, connection)
            if attempt == "cut":
                proxy.faults.cut_at_commit = True

        signals = Signals()
        settings = WorkerSettings(lease_seconds=1.0)
        async with LogWorker(shop.outbox, consumer, Database(proxy.dsn), settings=settings, probe=signals):
            await shop.value_becomes("select max(status) from dead_letter_events", "resolved")
            await signals.next("consumer.idle")
        assert proxy.commits_cut == 1
    assert ledger.numbers() == [0]


@pytest.mark.thorough
async def test_a_handler_that_swallows_its_timeout_is_blamed_itself(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0, timeout=3.0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        if event.payload.number == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await ledger.write(event, connection)

    place_in_log(shop, *numbered(4))
    await handle_all(shop, consumer)
    assert letters(shop, "(payload->>'number')::int, error_class") == [(1, "HandlerTimeout")]
    assert ledger.numbers() == [0, 2, 3]


async def test_what_was_handled_before_stays_in_the_inbox_when_a_handler_commits(shop: Shop) -> None:
    ledger, bad = Ledger(shop), {2}

    async def commit_at_one(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)
        if event.payload.number == 1:
            await connection.execute("commit")

    async def refuse_bad(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        if event.payload.number in bad:
            raise ValueError("bad")

    shop.outbox.consumer("one", retry_count=0).on(OrderPlaced)(commit_at_one)
    shop.outbox.consumer("two", retry_count=0).on(OrderPlaced)(refuse_bad)
    dispatcher = Dispatcher(shop.outbox, shop.database)
    shop.publish(OrderPlaced("o-2", 2))
    await dispatcher.dispatch(outbox_records(shop))
    bad.clear()
    shop.publish(OrderPlaced("o-1", 1))
    await dispatcher.dispatch(sorted(outbox_records(shop), key=lambda record: record.aggregate_id))
    await dispatcher.close()
    assert ledger.numbers() == [2, 1]


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_session_that_has_a_statement_already_is_used(shop: Shop, blocking: bool) -> None:
    """It has lost another statement, and what is known about all of them was forgotten."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(ledger.write_sync if blocking else ledger.write)
    async with worker_on(shop, consumer):
        for number in range(3):
            place_in_log(shop, ("o-1", number))
            await shop.signals.wait_total("consumer.handled", number + 1)
            opening._prepared.clear()
    assert ledger.numbers() == [0, 1, 2]


async def test_a_page_that_vanishes_while_it_is_read_is_an_empty_page(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention may be told to drop what nobody has read."""
    consumer = shop.outbox.consumer("index")
    consumer.on(OrderPlaced)(Ledger(shop).write)
    place_in_log(shop, *numbered(3))
    monkeypatch.setattr(pages_module, "MAX_PAGE_BYTES", -1)
    connection = await shop.database.connect()
    try:
        shop.rows("delete from log")
        lease = Leases(shop.outbox, [consumer], 5.0).all["index"]
        assert await Pages(shop.outbox, lease, 10, LatestPage(shop.outbox)).read(connection, 0, 3) == ([], 3)
    finally:
        await connection.close()


async def test_a_cancellation_that_meets_a_lost_database_ends_the_service() -> None:
    """A group of tasks that raises its own errors swallows the cancellation that caused them."""
    begun = asyncio.Event()

    class Losing(DatabaseService):
        name = "losing"

        async def session(self) -> None:
            async def child() -> None:
                begun.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise psycopg.OperationalError("terminated") from None

            async with asyncio.TaskGroup() as group:
                group.create_task(child())

    running = asyncio.create_task(Losing().run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)


@pytest.mark.parametrize("in_a_group", [False, True])
async def test_answers_that_do_not_fit_together_are_the_loss_of_the_database(in_a_group: bool) -> None:
    """psycopg: "received 2 results from command 'COMMIT'", of a server that died while it answered."""
    sessions = 0

    class Confused(DatabaseService):
        name = "confused"

        async def session(self) -> None:
            nonlocal sessions
            sessions += 1
            if sessions == 1:
                error = psycopg.InternalError("received 2 results from command 'COMMIT'")
                raise BaseExceptionGroup("tasks", [error]) if in_a_group else error
            self.stopping.set()

    await asyncio.wait_for(Confused().run(), 60)
    assert sessions == 2


async def test_an_internal_error_that_the_server_reports_is_raised() -> None:
    class Broken(DatabaseService):
        name = "broken"

        async def session(self) -> None:
            raise psycopg.errors.DataCorrupted("invalid page in block 7")

    with pytest.raises(psycopg.errors.DataCorrupted):
        await Broken().run()
