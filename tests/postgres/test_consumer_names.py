"""A consumer's name is its identity: doubles, strangers and renames are found out before anything is lost."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer import LogWorker, WorkerSettings
from aftercommit.consumer.names import forget, known_consumers, rename, set_paused
from aftercommit.errors import AftercommitError, ConsumerNameTaken, ConsumerRenamed, DuplicateDeclaration
from aftercommit.event.envelope import Event
from aftercommit.outbox.handlers import Consumer
from aftercommit.testing.signals import Signals
from tests.support.consuming import (
    Ledger,
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
from tests.support.shop import OrderPaid, OrderPlaced, Shop, shop_outbox

# Of those who are to be found alive, however long the machine stands still.
LONG = 600.0


@pytest.fixture
async def control(shop: Shop) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """An operator's connection."""
    connection = await shop.database.connect()
    yield connection
    await connection.close()


async def one_program(event: Event[OrderPlaced]) -> None:
    """A handler."""


async def another_program(event: Event[OrderPaid]) -> None:
    """A handler of other events, that lives elsewhere."""


async def one_program_renamed(event: Event[OrderPlaced]) -> None:
    """The first handler, as the next deployment calls it."""


def declare(shop: Shop, name: str, handler: Any = one_program, **options: Any) -> Consumer:
    """A consumer of this name in a declaration of its own, as another process would have it."""
    shop.outbox = shop_outbox()
    consumer = shop.outbox.consumer(name, **options)
    consumer.on(OrderPaid if handler is another_program else OrderPlaced)(handler)
    return consumer


def test_one_name_declared_twice_in_one_program_is_refused() -> None:
    outbox = shop_outbox()
    outbox.consumer("index")
    with pytest.raises(DuplicateDeclaration, match="'index' is declared twice"):
        outbox.consumer("index")


async def test_a_different_program_alive_under_the_name_is_refused(shop: Shop) -> None:
    async with worker_on(shop, declare(shop, "index", one_program), lease_seconds=LONG):
        stranger = declare(shop, "index", another_program)
        with pytest.raises(ConsumerNameTaken, match=r"takes order.placed.*takes order.paid"):
            async with worker_on(shop, stranger, signals=Signals()):
                pytest.fail("two programs under one name")
    async with worker_on(shop, stranger, signals=Signals()):
        pass


@pytest.mark.thorough
async def test_a_handler_renamed_by_a_rolling_deployment_stands_by_and_takes_over(shop: Shop) -> None:
    """The name is the identity: the same events under a new function are the same consumer."""
    signals = Signals()
    async with worker_on(shop, declare(shop, "index", one_program), lease_seconds=LONG) as old:
        new = LogWorker(shop.outbox, declare(shop, "index", one_program_renamed), shop.database, probe=signals)
        async with new:
            await signals.wait("consumer.standing_by")
            await old.stop()
            await signals.wait("consumer.active")


async def test_a_different_program_that_takes_the_name_over_is_found_out_by_the_one_that_stands_by(
    shop: Shop,
) -> None:
    """When it registered, that one was not at work yet; while standing by it finds out."""
    signals = Signals()
    hold = signals.hold("consumer.standing_by")
    same = declare(shop, "index", one_program)
    async with worker_on(shop, same, lease_seconds=LONG) as first:
        settings = WorkerSettings(lease_seconds=0.3)
        standby = LogWorker(shop.outbox, same, shop.database, settings=settings, probe=signals)
        await standby.start()
        await hold.wait()
        await first.stop()
        async with worker_on(shop, declare(shop, "index", another_program), lease_seconds=LONG, signals=Signals()):
            hold.release()
            with pytest.raises(ConsumerNameTaken, match="Choose another name"):
                await standby.wait()


async def test_a_new_consumer_beside_one_that_lost_its_declaration_must_say_whether_it_was_renamed(
    shop: Shop, control: psycopg.AsyncConnection[Any]
) -> None:
    """It would begin from the first event again; the message names the three remedies, and each of them works."""
    place_in_log(shop, *numbered(5))
    await handle_all(shop, declare(shop, "index"))
    renamed = declare(shop, "search")
    with pytest.raises(ConsumerRenamed) as problem:
        async with worker_on(shop, renamed, signals=Signals()):
            pytest.fail("started from the first event")
    message = str(problem.value)
    assert "'search' has no checkpoint, while 'index' (position 5) is no longer declared" in message
    assert "aftercommit consumers rename index search" in message
    assert "start='earliest') or start='latest'" in message
    assert "aftercommit consumers forget index" in message
    async with worker_on(shop, declare(shop, "new", start="latest"), signals=Signals()):
        pass
    await rename(control, shop.outbox.shape, "index", "search")
    shop.rows("delete from consumer where name = 'new'")
    async with worker_on(shop, declare(shop, "search"), signals=Signals()) as worker:
        assert worker.position == 5


async def test_a_worker_whose_checkpoint_was_removed_ends_instead_of_standing_by_for_ever(shop: Shop) -> None:
    consumer = declare(shop, "index")
    worker = LogWorker(shop.outbox, consumer, shop.database, probe=shop.signals)
    await worker.start()
    await shop.signals.wait("consumer.idle")
    shop.rows("delete from consumer")
    place_in_log(shop, ("o-1", 1))
    with pytest.raises(ConsumerRenamed, match="'index' is gone: it was renamed or forgotten"):
        await worker.wait()


async def test_renaming_takes_checkpoint_inbox_and_dead_letters_along(
    shop: Shop, control: psycopg.AsyncConnection[Any]
) -> None:
    """Nothing is handled twice under the new name, and what had failed is retried under it."""
    seen: list[tuple[str, int]] = []
    mended = False

    def handler(name: str) -> Any:
        async def handle(event: Event[OrderPlaced]) -> None:
            seen.append((name, event.payload.number))
            if event.payload.number == 1 and not mended:
                raise ValueError("bad")

        return handle

    place_in_log(shop, *numbered(3))
    await handle_all(shop, declare(shop, "index", handler("old"), retry_count=0))
    await rename(control, shop.outbox.shape, "index", "search")
    assert (inbox(shop, "index"), inbox(shop, "search")) == (0, 2)
    assert letters(shop, "consumer_name, status") == [("search", "parked")]
    mended = True
    shop.rows("update dead_letter_events set status = 'retrying', next_retry_at = now()")
    shop.rows("update consumer set position = 0")
    await handle_all(shop, declare(shop, "search", handler("new")))
    assert seen == [("old", 0), ("old", 1), ("old", 2), ("new", 1)]


async def test_a_rename_is_refused_while_somebody_works_or_the_new_name_has_a_past(
    shop: Shop, control: psycopg.AsyncConnection[Any]
) -> None:
    place_in_log(shop, *numbered(2))
    await handle_all(shop, declare(shop, "other", start="earliest"))
    async with worker_on(shop, declare(shop, "index", start="earliest"), lease_seconds=LONG):
        with pytest.raises(ConsumerNameTaken, match="stop that worker first"):
            await rename(control, shop.outbox.shape, "index", "search")
        with pytest.raises(ConsumerNameTaken, match="stop that worker first"):
            await forget(control, shop.outbox.shape, "index")
        await shop.signals.wait_total("consumer.handled", 4)
    with pytest.raises(ConsumerNameTaken, match="aftercommit consumers forget other"):
        await rename(control, shop.outbox.shape, "index", "other")
    await forget(control, shop.outbox.shape, "other")
    await rename(control, shop.outbox.shape, "index", "other")
    assert [each.name for each in await known_consumers(control, shop.outbox.shape)] == ["other"]


async def test_forgetting_removes_the_past_and_a_consumer_of_that_name_begins_anew(
    shop: Shop, control: psycopg.AsyncConnection[Any]
) -> None:
    ledger = Ledger(shop)

    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)
        if event.payload.number == 1:
            raise ValueError("bad")

    options = {"retry_count": 1, "backoff": Constant(3600.0)}
    place_in_log(shop, *numbered(3))
    async with worker_on(shop, declare(shop, "index", handle, **options)):
        await shop.signals.wait_total("consumer.handled", 3)
    await forget(control, shop.outbox.shape, "index")
    assert inbox(shop, "index") == 0
    assert letters(shop) == [("discarded", 1)]
    async with worker_on(shop, declare(shop, "index", handle, **options)):
        await shop.signals.wait_total("consumer.handled", 6)
    assert ledger.numbers() == [0, 2, 0, 2]
    assert letters(shop, "status, attempts, attempts_before") == [("retrying", 2, 1)]


async def test_a_consumer_that_only_ever_worked_behind_the_bus_can_be_forgotten(
    shop: Shop, control: psycopg.AsyncConnection[Any]
) -> None:
    declare(shop, "index")
    shop.place("o-1", 1)
    async with bus_on(shop):
        await shop.signals.wait_total("relay.appended", 1)
    assert inbox(shop, "index") == 1
    await forget(control, shop.outbox.shape, "index")
    assert inbox(shop, "index") == 0


async def test_an_unknown_name_is_told_with_the_known_ones(shop: Shop, control: psycopg.AsyncConnection[Any]) -> None:
    await handle_all(shop, declare(shop, "index"))
    expected = "consumer 'idnex' has no checkpoint: known consumers are index"
    for attempt in (
        forget(control, shop.outbox.shape, "idnex"),
        rename(control, shop.outbox.shape, "idnex", "search"),
        set_paused(control, shop.outbox.shape, "idnex", True),
    ):
        with pytest.raises(AftercommitError, match=expected):
            await attempt


@pytest.mark.parametrize(("start", "expected"), [("earliest", [0, 1, 2, 3]), ("latest", [3]), (None, [0, 1, 2, 3])])
async def test_a_new_consumer_starts_where_it_says(shop: Shop, start: Any, expected: list[int]) -> None:
    ledger = Ledger(shop)
    place_in_log(shop, *numbered(3))
    consumer = declare(shop, "index", ledger.write, start=start)
    async with worker_on(shop, consumer):
        await shop.signals.wait("consumer.idle")
        place_in_log(shop, ("o-1", 3))
        await settled(shop, "index")
    assert ledger.numbers() == expected


async def test_start_is_for_the_first_time_only(shop: Shop) -> None:
    ledger = Ledger(shop)
    await handle_all(shop, declare(shop, "index", ledger.write, start="latest"))
    place_in_log(shop, *numbered(3))
    await handle_all(shop, declare(shop, "index", ledger.write, start="latest"))
    assert ledger.numbers() == [0, 1, 2]


async def test_a_new_consumer_begins_at_the_first_event_that_is_still_kept(shop: Shop) -> None:
    """Retention has dropped a long past; it is not walked through in vain."""
    ledger = Ledger(shop)
    place_in_log(shop, *numbered(6))
    shop.rows("delete from log where position <= 4")
    async with worker_on(shop, declare(shop, "index", ledger.write)) as worker:
        assert worker.position == 4
        await settled(shop, "index")
    assert ledger.numbers() == [4, 5]


async def test_what_the_database_knows_of_a_consumer_can_be_listed(
    shop: Shop, control: psycopg.AsyncConnection[Any]
) -> None:
    place_in_log(shop, *numbered(3))
    async with worker_on(shop, declare(shop, "index"), lease_seconds=LONG) as worker:
        await settled(shop, "index")
        (known,) = await known_consumers(control, shop.outbox.shape)
        assert (known.name, known.position, known.paused, known.alive) == ("index", 3, False, True)
        assert "order.placed" in known.declared_by.split()
        assert known.worker == worker._leases.worker
    (known,) = await known_consumers(control, shop.outbox.shape)
    assert (known.worker, known.alive) == (None, False)
    await set_paused(control, shop.outbox.shape, "index", True)
    async with worker_on(shop, declare(shop, "index"), signals=Signals(), wait_for="consumer.paused"):
        await asyncio.sleep(0)
    assert checkpoint(shop, "index") == 3
