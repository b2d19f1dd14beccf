"""Whatever a handler does to its connection, nothing is lost: E1."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from aftercommit.consumer import LogWorker
from aftercommit.consumer.conversation import Mark
from aftercommit.event.envelope import Event
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.database import Database
from aftercommit.postgres.statements import _texts
from tests.support.consuming import (
    Ledger,
    append,
    bus_on,
    checkpoint,
    handle_all,
    inbox,
    letters,
    settled,
    worker_on,
)
from tests.support.hostile import (
    ASYNC_ACTS,
    SYNC_ACTS,
    hang_beside_hanging_task,
    hang_beside_hanging_thread,
    keep_stream,
    start_hanging_task,
)
from tests.support.pgbouncer import PgBouncer
from tests.support.programs import REPOSITORY
from tests.support.shop import OrderPlaced, Shop, shop_outbox
from tests.support.sleeping import SLEEP

pytestmark = pytest.mark.newest

BAD = 2
EVENTS = 5
# A handler that does not hang takes less, though the machine may stand still for a while.
TIMEOUT = 3.0
ACTS = [*ASYNC_ACTS.items(), *SYNC_ACTS.items()]


def declare(consumer: Consumer, ledger: Ledger, act: Callable[..., Any], *, blocking: bool) -> None:
    """A handler that writes a row for each event, and then misuses the connection at one of them."""
    if not blocking:

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
            await ledger.write(event, connection)
            if event.payload.number == BAD:
                await act(connection)
    else:

        @consumer.on(OrderPlaced)
        def handle_sync(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
            ledger.write_sync(event, connection)
            if event.payload.number == BAD:
                act(connection)


async def consume(shop: Shop, consumer: Consumer, through: str) -> None:
    """Until each event has been handled or is a dead letter."""
    shop.publish(*(OrderPlaced("o-1", number) for number in range(EVENTS)))
    if through == "log":
        append(shop)
        await handle_all(shop, consumer)
    else:
        async with bus_on(shop):
            await shop.value_becomes("select count(*)::int from outbox where status = 'pending'", 0)


@pytest.mark.contract("E1")
@pytest.mark.parametrize("through", ["log", pytest.param("bus", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("act", "said"), ACTS, ids=[act.__name__ for act, _ in ACTS])
async def test_each_event_is_handled_once_or_ends_as_a_dead_letter(
    shop: Shop, act: Callable[..., Any], said: str | None, through: str
) -> None:
    shop = replace(shop, outbox=shop_outbox(max_attempts=1))
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0, timeout=TIMEOUT)
    declare(consumer, ledger, act, blocking=act in SYNC_ACTS)
    async with asyncio.timeout(60):
        await consume(shop, consumer, through)
    found = letters(shop, "(payload->>'number')::int, status, error")
    dead = [number for number, *_ in found]
    assert sorted([*ledger.numbers(), *dead]) == list(range(EVENTS))
    assert dead == ([] if said is None else [BAD])
    assert inbox(shop, "index") == EVENTS - len(dead)
    assert all(status == "parked" and (said or "") in error for _, status, error in found)


@pytest.mark.contract("E1")
async def test_a_standby_takes_over_from_a_worker_whose_handler_left_a_task_on_its_connection(shop: Shop) -> None:
    """The slice lets go of the consumer's row, `stop()` ends, and the standby handles what comes next."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0, timeout=TIMEOUT)
    declare(consumer, ledger, start_hanging_task, blocking=False)
    shop.publish(*(OrderPlaced("o-1", number) for number in range(EVENTS)))
    append(shop)
    async with (
        worker_on(shop, consumer, lease_seconds=1.0) as first,
        worker_on(shop, consumer, lease_seconds=1.0, wait_for="consumer.standing_by"),
    ):
        await settled(shop, "index")
        async with asyncio.timeout(20):
            await first.stop()
        shop.publish(OrderPlaced("o-1", EVENTS))
        append(shop)
        await settled(shop, "index")
    assert sorted(ledger.numbers()) == [0, 1, 3, 4, 5]
    assert checkpoint(shop, "index") == EVENTS + 1


@pytest.mark.contract("E1")
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_standby_takes_over_from_a_worker_that_was_killed_in_the_middle_of_a_long_statement(
    shop: Shop, concurrency: int
) -> None:
    """PostgreSQL goes on with a statement whose client is gone, and holds its locks, unless it was told to look."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", concurrency=concurrency)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
        await ledger.write(event, connection)

    shop.publish(OrderPlaced("o-1", 0))
    append(shop)
    command = [sys.executable, "-m", "tests.support.sleeping", shop.dsn, str(concurrency)]
    victim = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY)
    sleeping = f"query = '{SLEEP}' and datname = current_database()"
    await shop.value_becomes(f"select count(*)::int from pg_stat_activity where {sleeping}", 1)
    victim.kill()
    await victim.wait()
    async with asyncio.timeout(30):
        await handle_all(shop, consumer, lease_seconds=0.5)
    assert ledger.numbers() == [0]


@pytest.mark.contract("E1")
@pytest.mark.needs("pgbouncer")
@pytest.mark.parametrize("act", [start_hanging_task, keep_stream, hang_beside_hanging_task, hang_beside_hanging_thread])
async def test_behind_a_pooler_a_statement_that_outlives_its_handler_is_ended_too(
    shop: Shop, tmp_path: Path, act: Callable[..., Any]
) -> None:
    """A pooler forgets whose statement is to be cancelled when its client is gone; the server would hold the locks."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0, timeout=TIMEOUT)
    declare(consumer, ledger, act, blocking=act in SYNC_ACTS)
    shop.publish(*(OrderPlaced("o-1", number) for number in range(EVENTS)))
    append(shop)
    with PgBouncer(shop.dsn, tmp_path) as bouncer:
        async with asyncio.timeout(60), LogWorker(shop.outbox, consumer, Database(bouncer.dsn), probe=shop.signals):
            await settled(shop, "index")
    assert ledger.numbers() == [0, 1, 3, 4]
    assert letters(shop, "(payload->>'number')::int, status") == [(BAD, "parked")]


# What the handler sends, and what it does after that.
ENDS = (
    "commit; begin",
    "commit and chain",
    "commit|begin",
    "rollback; begin",
    "commit|raise",
    "commit; begin|fail",
    "commit|hang",
)


@pytest.mark.contract("E1")
@pytest.mark.parametrize("kind", ["async", "sync", "without inbox", "bus"])
@pytest.mark.parametrize("sent", ENDS)
@pytest.mark.thorough
async def test_a_handler_that_ends_the_transaction_as_text_costs_its_neighbours_nothing(
    shop: Shop, sent: str, kind: str
) -> None:
    """What it committed stays, its event is parked, and events whose inbox rows it committed too early come back."""
    shop = replace(shop, outbox=shop_outbox(max_attempts=1))
    ledger = Ledger(shop)
    inbox_kept = kind != "without inbox"
    consumer = shop.outbox.consumer("index", retry_count=0, timeout=TIMEOUT, inbox=inbox_kept, start="earliest")
    statements, _, then = sent.partition("|")
    then = {"begin": "begin", "fail": "select 1 / 0", "hang": "select pg_sleep(600)"}.get(then, then)

    async def act(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(statements.encode())
        if then == "raise":
            raise ValueError("after its commit")
        if then:
            with contextlib.suppress(psycopg.errors.DivisionByZero):
                await connection.execute(then.encode())

    def act_sync(connection: psycopg.Connection[Any]) -> None:
        connection.execute(statements.encode())
        if then == "raise":
            raise ValueError("after its commit")
        if then:
            with contextlib.suppress(psycopg.errors.DivisionByZero):
                connection.execute(then.encode())

    declare(consumer, ledger, act_sync if kind == "sync" else act, blocking=kind == "sync")
    async with asyncio.timeout(60):
        await consume(shop, consumer, "bus" if kind == "bus" else "log")
    committed = [] if statements.startswith("rollback") else [BAD]
    assert sorted(ledger.numbers()) == sorted({*range(EVENTS)} - {BAD} | {*committed})
    found = letters(shop, "(payload->>'number')::int, status, error_class")
    assert found == [(BAD, "parked", "HandlerEndedTransaction")]


@pytest.mark.contract("E1")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_handler_that_ends_the_transaction_is_found_out_where_a_pooler_hides_the_session_s_name(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    begin = Mark.begin

    def begin_unseen(mark: Mark, name: str, transaction: str, server: Any) -> None:
        begin(mark, name + " which the pooler does not report", transaction, server)

    monkeypatch.setattr(Mark, "begin", begin_unseen)
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0, timeout=TIMEOUT)

    async def act(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("commit; begin")

    def act_sync(connection: psycopg.Connection[Any]) -> None:
        connection.execute("commit; begin")

    declare(consumer, ledger, act_sync if kind == "sync" else act, blocking=kind == "sync")
    async with asyncio.timeout(60):
        await consume(shop, consumer, "log")
    assert sorted(ledger.numbers()) == list(range(EVENTS))
    assert letters(shop, "(payload->>'number')::int, status, error_class") == [
        (BAD, "parked", "HandlerEndedTransaction")
    ]


SESSION = """
    set work_mem = '3MB'; set role pg_monitor; set search_path to nowhere; listen mine;
    select pg_advisory_lock(7); select set_config('app.tenant', 'acme', false);
    declare kept cursor with hold for select 1; create temp table mine (n int)
"""
SEEN = """
    select current_setting('work_mem'), current_user = session_user, current_setting('search_path') <> 'nowhere',
           (select count(*) from pg_listening_channels()), coalesce(current_setting('app.tenant', true), ''),
           (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
           (select count(*) from pg_cursors),
           to_regclass('pg_temp.mine') is null
"""


@pytest.mark.contract("E1")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_a_handler_changes_in_its_session_does_not_reach_the_next_event(shop: Shop, kind: str) -> None:
    ledger = Ledger(shop)
    shop.rows("grant usage on schema public to public; grant all on public.ledger to public")
    consumer = shop.outbox.consumer("index", retry_count=0)
    note = "update public.ledger set note = %s where number = %s"
    if kind == "async":

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
            await ledger.write(event, connection)
            seen = await (await connection.execute(SEEN)).fetchone()
            if event.payload.number == BAD:
                connection.prepare_threshold = None
                await connection.execute(SESSION)
            else:
                await connection.execute(note, (str(seen), event.payload.number))
    else:

        @consumer.on(OrderPlaced)
        def handle_sync(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
            ledger.write_sync(event, connection)
            seen = connection.execute(SEEN).fetchone()
            if event.payload.number == BAD:
                connection.prepare_threshold = None
                connection.execute(SESSION)
            else:
                connection.execute(note, (str(seen), event.payload.number))

    await consume(shop, consumer, "log")
    assert ledger.numbers() == list(range(EVENTS))
    assert letters(shop) == []
    assert shop.rows("select distinct note from public.ledger where number <> %s", [BAD]) == [
        ("('4MB', True, True, 0, '', 0, 0, True)",)
    ]


@contextmanager
def leaked_work_mem(dsn: str, value: str) -> Iterator[None]:
    """Another client of the pooler has set this for the session, in each session of the pool."""
    with ExitStack() as clients:
        pool = [clients.enter_context(psycopg.connect(dsn, prepare_threshold=None)) for _ in range(5)]
        for client in pool:
            client.execute(f"set work_mem = '{value}'".encode())
        for client in pool:
            client.commit()
        yield


@pytest.mark.contract("E1")
@pytest.mark.needs("pgbouncer")
@pytest.mark.parametrize("changes", [False, True], ids=["changes nothing", "changes it too"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_settings_that_another_client_of_a_pooler_left_are_not_taken_for_the_handler_s(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, changes: bool
) -> None:
    caplog.set_level(logging.INFO, "aftercommit.consumer")
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0)
    note = "update public.ledger set note = current_setting('work_mem') where number = %s"
    change = "set local work_mem = '5MB'"
    if kind == "async":

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
            await ledger.write(event, connection)
            await connection.execute(note, [event.payload.number])
            if changes and event.payload.number == BAD:
                await connection.execute(change)
    else:

        @consumer.on(OrderPlaced)
        def handle_sync(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
            ledger.write_sync(event, connection)
            connection.execute(note, [event.payload.number])
            if changes and event.payload.number == BAD:
                connection.execute(change)

    shop.publish(*(OrderPlaced("o-1", number) for number in range(EVENTS)))
    append(shop)
    with PgBouncer(shop.dsn, tmp_path) as bouncer, leaked_work_mem(bouncer.dsn, "3MB"):
        async with asyncio.timeout(60), LogWorker(shop.outbox, consumer, Database(bouncer.dsn), probe=shop.signals):
            await settled(shop, "index")
    assert ledger.numbers() == list(range(EVENTS))
    assert letters(shop) == []
    assert shop.rows("select distinct note from public.ledger") == [("3MB",)]
    alone = [record for record in caplog.records if record.getMessage().startswith("events_handled_one_by_one")]
    assert len(alone) == changes
    assert (shop.rows("select count(distinct xmin::text)::int from public.ledger") == [(EVENTS,)]) is changes


@pytest.mark.contract("E1")
@pytest.mark.parametrize("with_inbox", [True, False], ids=["inbox", "no inbox"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_event_is_handled_once_when_only_tidying_up_after_its_commit_fails(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, kind: str, with_inbox: bool
) -> None:
    """The server has committed: nothing is tried again or reported, and the connection is not used again."""
    for name in ("commit_and_tidy", "tidy"):
        fails = "select 1 / (to_regclass('pg_temp.mine') is null)::int; discard temp"
        monkeypatch.setitem(_texts(), name, _texts()[name].replace("discard temp", fails))
    ledger = Ledger(shop)
    handled: list[int] = []
    sessions: list[int] = []
    consumer = shop.outbox.consumer("index", retry_count=1, inbox=with_inbox, start="earliest")
    leave = "create temp table mine (n int)"
    if kind == "async":

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
            handled.append(event.payload.number)
            sessions.append(connection.info.backend_pid)
            await ledger.write(event, connection)
            if event.payload.number == 0:
                await connection.execute(leave)
    else:

        @consumer.on(OrderPlaced)
        def handle_sync(event: Event[OrderPlaced], connection: psycopg.Connection[Any]) -> None:
            handled.append(event.payload.number)
            sessions.append(connection.info.backend_pid)
            ledger.write_sync(event, connection)
            if event.payload.number == 0:
                connection.execute(leave)

    async with worker_on(shop, consumer):
        for number in range(2):
            shop.publish(OrderPlaced("o-1", number))
            append(shop)
            await settled(shop, "index")
    assert (handled, ledger.numbers(), letters(shop)) == ([0, 1], [0, 1], [])
    assert sessions[0] != sessions[1]
