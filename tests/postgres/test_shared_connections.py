"""Connections that several services share, one statement at a time."""

import asyncio
from typing import Any

import psycopg
import pytest

from aftercommit.errors import DatabaseUnavailable
from aftercommit.postgres import elastic_limit, shared
from aftercommit.postgres.handler_connections import ConsumerConnections
from aftercommit.postgres.shared import ConnectionPool, SharedConnection, SharedConnections, exclusive
from tests.support.shop import Shop

ASLEEP = """
    select count(*)::int from pg_stat_activity
    where datname = current_database() and state = 'active' and query like 'select pg_sleep(%'
"""


async def value(connection: psycopg.AsyncConnection[Any], query: str) -> Any:
    """The first value of a query."""
    row = await (await connection.execute(query.encode())).fetchone()
    return row[0] if row else None


async def pid(connection: psycopg.AsyncConnection[Any]) -> int:
    """The server process that answers."""
    return int(await value(connection, "select pg_backend_pid()"))


async def test_statements_of_many_services_take_turns_on_one_connection(shop: Shop) -> None:
    pool = ConnectionPool(shop.database, 1)
    services = [SharedConnection(pool) for _ in range(20)]
    pids = await asyncio.gather(*(pid(service) for service in services for _ in range(5)))
    assert len(set(pids)) == 1
    numbers = await asyncio.gather(*(value(each, f"select {number}") for number, each in enumerate(services)))
    assert numbers == list(range(20))
    await pool.renew()


async def test_statements_of_one_service_keep_their_order(shop: Shop) -> None:
    pool = ConnectionPool(shop.database, 2)
    service = SharedConnection(pool)
    shop.rows("create table public.steps (id bigint generated always as identity, step int)")
    slow = "insert into public.steps (step) select 1 from pg_sleep(0.2)"
    await asyncio.gather(service.execute(slow.encode()), service.execute(b"insert into public.steps (step) values (2)"))
    assert shop.rows("select step from public.steps order by id") == [(1,), (2,)]
    await pool.renew()


async def test_who_is_cut_off_in_a_statement_leaves_neither_its_connection_nor_its_answer(shop: Shop) -> None:
    pool = ConnectionPool(shop.database, 1)
    before = await pid(SharedConnection(pool))
    cut = asyncio.create_task(value(SharedConnection(pool), "select pg_sleep(60)::text || 'not yours'"))
    await shop.value_becomes(ASLEEP, 1)
    waiting = asyncio.create_task(value(SharedConnection(pool), "select 'mine'"))
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    assert await asyncio.wait_for(waiting, 60) == "mine"
    assert await pid(SharedConnection(pool)) != before
    await shop.value_becomes(ASLEEP, 0)
    await pool.renew()


async def test_a_statement_that_fails_leaves_its_connection_to_the_next(shop: Shop) -> None:
    pool = ConnectionPool(shop.database, 1)
    service = SharedConnection(pool)
    before = await pid(service)
    with pytest.raises(psycopg.errors.DivisionByZero):
        await service.execute(b"select 1 / 0")
    assert await pid(service) == before
    await pool.renew()


async def test_a_transaction_that_is_left_open_does_not_reach_the_next(shop: Shop) -> None:
    pool = ConnectionPool(shop.database, 1)
    service = SharedConnection(pool)
    before = await pid(service)
    async with exclusive(service) as own:
        await own.execute("begin")
    assert await pid(service) != before
    await pool.renew()


async def test_a_shared_connection_has_no_transaction(shop: Shop) -> None:
    service = SharedConnection(ConnectionPool(shop.database, 1))
    with pytest.raises(AttributeError):
        async with service.transaction():
            pass


async def test_after_a_broken_session_the_next_one_has_new_connections(shop: Shop) -> None:
    """Also those that others were using: after a failover they may lead to the old server."""
    connections = SharedConnections(shop.database)
    async with connections:
        other = connections.control()
        async with exclusive(connections.control()) as lent:
            before = {await pid(other), lent.info.backend_pid}
            with pytest.raises(DatabaseUnavailable):
                async with connections:
                    raise DatabaseUnavailable("lost")
        async with exclusive(connections.control()) as one, exclusive(connections.control()) as two:
            assert not before & {one.info.backend_pid, two.info.backend_pid}


async def test_those_who_wait_get_an_error_where_no_connection_can_be_made(shop: Shop) -> None:
    """And the places of those who failed are free again."""
    pool = ConnectionPool(shop.database, 1)
    database, pool._database = pool._database, type(pool._database)("host=/nowhere")
    failed = await asyncio.gather(*(pid(SharedConnection(pool)) for _ in range(5)), return_exceptions=True)
    assert [type(each) for each in failed] == [DatabaseUnavailable] * 5
    pool._database = database
    await pid(SharedConnection(pool))
    await pool.renew()


async def test_one_that_hangs_costs_a_connection_and_delays_nobody(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_limit, "STUCK_SECONDS", 0.05)
    pool = ConnectionPool(shop.database, 2)
    hanging = [asyncio.create_task(SharedConnection(pool).execute(b"select pg_sleep(600)")) for _ in range(2)]
    await shop.value_becomes(ASLEEP, 2)
    for _ in range(20):
        await asyncio.wait_for(pid(SharedConnection(pool)), 60)
    for task in hanging:
        task.cancel()
    await asyncio.wait(hanging)
    assert pool._limit.used == 0
    await pool.renew()


async def test_statements_of_many_outboxes_stay_prepared(shop: Shop) -> None:
    pool = ConnectionPool(shop.database, 1)
    service = SharedConnection(pool)
    count = 4 * 100
    assert count < shared.PREPARED
    for number in range(count):
        await service.execute(f"select {number}".encode(), prepare=True)
    assert await value(service, "select count(*)::int from pg_prepared_statements") == count
    await pool.renew()


async def test_handlers_of_both_kinds_together_keep_no_more_connections_than_may_be_in_use(shop: Shop) -> None:
    """Blocking handlers have blocking connections, and those that are idle make way."""
    connections = ConsumerConnections(shop.database, 2)
    for _ in range(2):
        async with connections.lend(), connections.lend():
            assert len(connections._idle_sync) == 0
        with connections.lend_sync(), connections.lend_sync():
            assert len(connections._idle) == 0
    with connections.lend_sync():
        async with connections.lend():
            assert (len(connections._idle), len(connections._idle_sync)) == (0, 0)
    assert (len(connections._idle), len(connections._idle_sync)) == (1, 1)
    await connections.close()
