"""Consumers that are more than connections share transactions, and each of them is as safe as alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aftercommit import Engine
from aftercommit.backoff import Constant
from aftercommit.consumer import WorkerSettings, calls, joint_slices, log_worker, news
from aftercommit.consumer.joint_slices import JointSlices
from aftercommit.event.envelope import Event
from aftercommit.outbox.handlers import Consumer
from tests.support.consuming import Ledger, checkpoint, inbox, letters, row_of
from tests.support.shop import OrderPaid, OrderPlaced, Shop

HOUR = 3600.0
COUNT, CONNECTIONS = 9, 2
WRITE = "insert into public.ledger (consumer, event_id, order_id, number, note) values (%s, %s, %s, %s, %s)"
Extra = Callable[[str, Event[OrderPlaced], Any], Awaitable[None]]


@pytest.fixture(autouse=True)
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker looks on its own account, and no handler is too slow unless a test wants it."""
    monkeypatch.setattr(log_worker, "POLL", HOUR)
    monkeypatch.setattr(news, "EXPECT_SECONDS", HOUR)
    monkeypatch.setattr(calls, "SLOW_CALL", HOUR)
    monkeypatch.setattr(joint_slices, "MOST_SECONDS", 30.0)


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many consumers were in each transaction that several shared."""
    found: list[int] = []
    handle = JointSlices._slice

    async def counted(self: JointSlices, members: Any, *arguments: Any) -> Any:
        result = await handle(self, members, *arguments)
        found.append(len(members))
        return result

    monkeypatch.setattr(JointSlices, "_slice", counted)
    return found


@pytest.fixture
def ledger(shop: Shop) -> Ledger:
    return Ledger(shop)


def declare(shop: Shop, extra: Extra | None = None, **options: Any) -> list[Consumer]:
    """Consumers that write a row for each event, and then do something else."""
    consumers = []
    for number in range(COUNT):
        consumer = shop.outbox.consumer(f"c{number}", start="earliest", **options)

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: Any, name: str = consumer.name) -> None:
            await connection.execute(WRITE, row_of(event, name))
            if extra is not None and event.payload.number > 0:
                await extra(name, event, connection)

        consumers.append(consumer)
    return consumers


@asynccontextmanager
async def warm_engine(shop: Shop, lease_seconds: float = HOUR) -> AsyncIterator[Engine]:
    """A relay and a worker whose consumers have all handled an event quickly, number 0."""
    settings = WorkerSettings(lease_seconds=lease_seconds, max_connections=CONNECTIONS)
    async with Engine(shop.outbox, shop.database, worker_settings=settings, probe=shop.signals) as engine:
        await shop.signals.wait("listener.working")
        await shop.signals.wait("relay.ready")
        await shop.signals.wait("consumer.active", len(shop.outbox.consumers))
        await shop.signals.wait("consumer.idle", len(shop.outbox.consumers))
        await place(shop, 0)
        yield engine


async def place(shop: Shop, number: int) -> None:
    """Place an order, until all consumers have handled it and rest."""
    count = len(shop.outbox.consumers)
    idle = shop.signals.counts["consumer.idle"]
    shop.place("o-1", number)
    await arrived(shop, number + 1, count)
    await shop.signals.wait("consumer.idle", idle + count)


async def arrived(shop: Shop, position: int, consumers: int = COUNT) -> None:
    """Until so many consumers have come so far, and rest."""
    count = f"select count(*)::int from consumer where position >= {position}"
    await shop.value_becomes(count, consumers)


def effects(shop: Shop, number: int) -> list[str]:
    """Who has written this number, once for each time."""
    rows = shop.rows("select consumer from public.ledger where number = %s order by consumer", (number,))
    return [consumer for (consumer,) in rows]


EVERYBODY = [f"c{number}" for number in range(COUNT)]


async def test_more_consumers_than_connections_share_transactions(
    shop: Shop, ledger: Ledger, shared: list[int]
) -> None:
    declare(shop)
    async with warm_engine(shop):
        for number in (1, 2, 3):
            await place(shop, number)
    assert sorted(shared) == [4, 4, 4, 5, 5, 5]
    for number in range(4):
        assert effects(shop, number) == EVERYBODY
    assert [inbox(shop, name) for name in EVERYBODY] == [4] * COUNT
    transactions = "select count(distinct xmin::text)::int from public.ledger where number = 3"
    assert shop.value(transactions) == CONNECTIONS


async def test_with_as_many_connections_each_has_its_own_transaction(
    shop: Shop, ledger: Ledger, shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(shop)
    monkeypatch.setattr(f"{__name__}.CONNECTIONS", COUNT)
    async with warm_engine(shop):
        await place(shop, 1)
    assert shared == []
    assert effects(shop, 1) == EVERYBODY


async def test_a_consumer_that_takes_other_events_moves_on_with_the_rest(
    shop: Shop, ledger: Ledger, shared: list[int]
) -> None:
    declare(shop)
    other = shop.outbox.consumer("other", start="earliest")

    @other.on(OrderPaid)
    async def handle(event: Event[OrderPaid], connection: Any) -> None:
        pytest.fail("it does not take this type")

    async with warm_engine(shop):
        for number in (1, 2):
            await place(shop, number)
    assert effects(shop, 2) == EVERYBODY
    assert inbox(shop, "other") == 0


async def test_one_that_fails_gets_a_letter_and_the_others_one_effect(
    shop: Shop, ledger: Ledger, shared: list[int]
) -> None:
    async def fail(name: str, event: Event[OrderPlaced], connection: Any) -> None:
        if name == "c4":
            raise ValueError("not today")

    declare(shop, fail, retry_count=0, backoff=Constant(HOUR))
    async with warm_engine(shop):
        await place(shop, 1)
        await place(shop, 2)
    others = [name for name in EVERYBODY if name != "c4"]
    assert effects(shop, 1) == effects(shop, 2) == others
    assert letters(shop, "consumer_name, attempts, error_class") == [("c4", 1, "ValueError")] * 2
    # With the first event its transaction was undone; with the second it was not asked to share.
    assert shared == [4, 4, 4]


async def test_one_that_is_slow_delays_the_others_a_moment_only(
    shop: Shop, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the effects of all others, which are in its transaction."""
    monkeypatch.setattr(joint_slices, "MOST_SECONDS", 0.1)
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def wait(name: str, event: Event[OrderPlaced], connection: Any) -> None:
        if name == "c0":
            waiting.set()
            await go_on.wait()

    declare(shop, wait)
    async with warm_engine(shop):
        shop.place("o-1", 1)
        await arrived(shop, 2, COUNT - 1)
        assert waiting.is_set()
        assert "c0" not in effects(shop, 1)
        go_on.set()
        await arrived(shop, 2)
    assert effects(shop, 1) == EVERYBODY
    assert letters(shop) == []


async def test_one_that_commits_takes_no_event_from_the_others(shop: Shop, ledger: Ledger, shared: list[int]) -> None:
    """Whatever was handled before it is recorded, and the rest is handled once, too."""

    async def commit(name: str, event: Event[OrderPlaced], connection: Any) -> None:
        if name == "c4":
            await connection.execute("commit")

    declare(shop, commit)
    async with warm_engine(shop):
        shop.place("o-1", 1)
        await arrived(shop, 2)
    assert effects(shop, 1) == EVERYBODY
    assert [inbox(shop, name) for name in EVERYBODY] == [2] * COUNT


async def test_one_that_changes_a_setting_changes_it_for_nobody_else(
    shop: Shop, ledger: Ledger, shared: list[int]
) -> None:
    seen: list[tuple[str, str]] = []

    async def change(name: str, event: Event[OrderPlaced], connection: Any) -> None:
        row = await (await connection.execute("show work_mem")).fetchone()
        seen.append((name, row[0]))
        if name == "c0":
            await connection.execute("set local work_mem to '77MB'")

    declare(shop, change)
    async with warm_engine(shop):
        shop.place("o-1", 1)
        await arrived(shop, 2)
    assert effects(shop, 1) == EVERYBODY
    last = dict(seen)
    assert "77MB" not in last.values()


@pytest.mark.parametrize(
    "change",
    [
        "update consumer set token = gen_random_uuid(), leased_until = now() + interval '1 hour' where name = 'c4'",
        "update consumer set paused = true where name = 'c4'",
    ],
)
async def test_one_that_was_taken_over_or_paused_handles_nothing_and_the_others_do(
    shop: Shop, ledger: Ledger, shared: list[int], change: str
) -> None:
    declare(shop)
    async with warm_engine(shop):
        shop.rows(change)
        shop.place("o-1", 1)
        await arrived(shop, 2, COUNT - 1)
    assert effects(shop, 1) == [name for name in EVERYBODY if name != "c4"]
    assert checkpoint(shop, "c4") == 1


async def test_one_whose_row_is_locked_does_not_make_the_others_wait(shop: Shop, ledger: Ledger) -> None:
    """As by an operator who is about to move its checkpoint."""
    declare(shop)
    async with warm_engine(shop):
        with shop.connect() as operator:
            operator.execute("select from shop.consumer where name = 'c4' for update")
            shop.place("o-1", 1)
            await arrived(shop, 2, COUNT - 1)
        await arrived(shop, 2)
    assert effects(shop, 1) == EVERYBODY


async def test_an_event_that_one_has_handled_before_is_not_handled_again(
    shop: Shop, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(shop)
    begin = JointSlices._handle

    async def late(self: JointSlices, group: Any, reading: Any) -> None:
        known = "insert into processed_events (event_id, consumer_name) select id, 'c4' from log where position = 2"
        shop.rows(f"{known} on conflict do nothing")
        await begin(self, group, reading)

    monkeypatch.setattr(JointSlices, "_handle", late)
    async with warm_engine(shop):
        shop.place("o-1", 1)
        await arrived(shop, 2)
    assert effects(shop, 1) == [name for name in EVERYBODY if name != "c4"]


async def test_an_event_that_becomes_known_while_handlers_work_is_not_handled_twice(shop: Shop, ledger: Ledger) -> None:
    """A replay, or a restored backup: the inbox row appears after the look at the inbox."""

    async def meanwhile(name: str, event: Event[OrderPlaced], connection: Any) -> None:
        if name == "c0" and not inserted:
            inserted.append(1)
            known = "insert into processed_events (event_id, consumer_name) values (%s, 'c4')"
            shop.rows(known, (event.event_id,))

    inserted: list[int] = []
    declare(shop, meanwhile)
    async with warm_engine(shop):
        shop.place("o-1", 1)
        await arrived(shop, 2)
    assert effects(shop, 1) == [name for name in EVERYBODY if name != "c4"]


async def test_a_handler_without_a_connection_is_called_once_although_another_one_fails(
    shop: Shop, ledger: Ledger
) -> None:
    """It would be in the transaction of the one that fails, and before it."""

    async def fail(name: str, event: Event[OrderPlaced], connection: Any) -> None:
        if name == "c5":
            raise ValueError("not today")

    called: list[int] = []
    outside = shop.outbox.consumer("outside", start="earliest")

    @outside.on(OrderPlaced)
    async def call(event: Event[OrderPlaced]) -> None:
        called.append(event.payload.number)

    declare(shop, fail, retry_count=0, backoff=Constant(HOUR))
    async with warm_engine(shop):
        shop.place("o-1", 1)
        await arrived(shop, 2, COUNT + 1)
    assert called == [0, 1]


async def test_when_time_is_up_those_that_were_handled_are_kept_and_the_rest_goes_alone(
    shop: Shop, ledger: Ledger, shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    async def count(name: str, event: Event[OrderPlaced], connection: Any) -> None:
        called.append(name)

    declare(shop, count)
    async with warm_engine(shop):
        monkeypatch.setattr("aftercommit.consumer.handler_calls.STOP_SECONDS", -1.0)
        shop.place("o-1", 1)
        await arrived(shop, 2)
    assert effects(shop, 1) == EVERYBODY
    assert sorted(called) == EVERYBODY
    assert sorted(shared) == [4, 5]


async def test_a_lost_connection_costs_nobody_an_event(shop: Shop, ledger: Ledger) -> None:
    lost: list[int] = []

    async def lose(name: str, event: Event[OrderPlaced], connection: Any) -> None:
        if name == "c2" and not lost:
            lost.append(connection.info.backend_pid)
            shop.rows("select pg_terminate_backend(%s, 5000)", (lost[0],))

    declare(shop, lose)
    async with warm_engine(shop):
        shop.place("o-1", 1)
        await arrived(shop, 2)
    assert lost
    assert effects(shop, 1) == EVERYBODY
    assert letters(shop) == []


async def test_a_stop_in_the_middle_ends_what_was_begun(shop: Shop, ledger: Ledger) -> None:
    async def stop(name: str, event: Event[OrderPlaced], connection: Any) -> None:
        stopping.set()

    stopping = asyncio.Event()
    declare(shop, stop)
    async with warm_engine(shop) as engine:
        shop.place("o-1", 1)
        await stopping.wait()
        await engine.stop()
    handled = [name for name in EVERYBODY if checkpoint(shop, name) == 2]
    assert handled
    assert effects(shop, 1) == handled
