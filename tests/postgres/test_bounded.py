"""Questions to a server that does not answer end, and what it answers too late reaches nobody."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from aftercommit import Database
from aftercommit.errors import DatabaseSilent, DeclarationError
from aftercommit.feed.strands.connections import HistoryConnections
from aftercommit.http.errors import Problem
from aftercommit.postgres.bounded import BoundedConnection, Unanswered
from aftercommit.testing.fault_proxy import FaultProxy
from systems.host.http import RequestPool
from tests.feed.journal import until
from tests.support.pgbouncer import PgBouncer

# A stall of this machine must not look like a server that hangs where the test needs an answer.
LIMIT = 3.0
# Rows enough that some are on their way, and then one that waits for the lock.
SECRET = b"""
    select repeat('secret ', 2000) from generate_series(1, 20)
    union all
    select 'secret ' || pg_advisory_lock(42)::text
"""
OTHER = b"select 'mine'"


@pytest.fixture
def locked(database: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody who holds the lock for which the secret waits."""
    with psycopg.connect(database, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(42)")
        yield holder


@pytest.fixture
async def connections(database: str) -> AsyncIterator[HistoryConnections]:
    """One connection at most: whoever comes next gets the one that was there before, if it is kept."""
    connections = HistoryConnections(Database(database, answer_timeout=LIMIT), 1)
    yield connections
    await connections.close()


@pytest.mark.thorough
async def test_half_an_answer_is_never_read_by_the_next_who_asks(
    connections: HistoryConnections, locked: psycopg.Connection[Any]
):
    with pytest.raises(DatabaseSilent, match="did not answer within 3 s"):
        async with connections.answered():
            await connections.ask(SECRET, {})
    locked.execute("select pg_advisory_unlock(42)")
    assert await connections.ask(OTHER, {}) == [("mine",)]
    assert connections.unanswered == 1


async def test_half_an_answer_of_one_who_was_cancelled_is_never_read_by_the_next(
    connections: HistoryConnections, locked: psycopg.Connection[Any]
):
    asking = asyncio.create_task(connections.ask(SECRET, {}))
    await until(lambda: waiting_for_lock(locked))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    locked.execute("select pg_advisory_unlock(42)")
    assert await connections.ask(OTHER, {}) == [("mine",)]


@pytest.mark.thorough
async def test_half_an_answer_is_never_read_by_the_next_request_of_a_system(
    database: str, locked: psycopg.Connection[Any]
):
    pool = RequestPool(Database(database, answer_timeout=LIMIT), "tests", "send it again")
    async with pool.lifespan():
        with pytest.raises(Problem, match="did not answer within 3 seconds: send it again") as refused:
            async with pool.changing() as connection:
                await connection.execute(SECRET)
        assert refused.value.status == 503
        assert refused.value.details == {"outcome": "unknown"}
        locked.execute("select pg_advisory_unlock(42)")
        async with pool.reading() as connection:
            assert await (await connection.execute(OTHER)).fetchall() == [("mine",)]


@pytest.mark.thorough
async def test_the_server_is_told_that_nobody_waits_any_more(
    connections: HistoryConnections, locked: psycopg.Connection[Any]
):
    with pytest.raises(DatabaseSilent):
        async with connections.answered():
            await connections.ask(SECRET, {})
    # The lock is still held: without being told it would wait on.
    await until(lambda: not waiting_for_lock(locked))


@pytest.mark.needs("pgbouncer")
@pytest.mark.parametrize("gives_up", ["after the limit", "by cancelling"])
async def test_behind_a_pooler_the_server_is_told_too(
    database: str, locked: psycopg.Connection[Any], tmp_path: Path, gives_up: str
):
    """A pooler forgets a client that is gone: cut first, the statement would go on and hold its locks."""
    with PgBouncer(database, tmp_path) as bouncer:
        for _ in range(3):
            connection = await Database(bouncer.dsn, answer_timeout=LIMIT).connect(bounded=True)
            assert isinstance(connection, BoundedConnection)
            connection.answer_timeout = 1.0 if gives_up == "after the limit" else None
            asking = asyncio.create_task(connection.execute("select pg_advisory_lock(42)"))
            if gives_up == "by cancelling":
                await until(lambda: waiting_for_lock(locked))
                asking.cancel()
            with pytest.raises((Unanswered, asyncio.CancelledError)):
                await asking
            assert connection.closed
            await until(lambda: not waiting_for_lock(locked), 10)


@pytest.mark.thorough
async def test_waiting_for_a_connection_counts(connections: HistoryConnections, locked: psycopg.Connection[Any]):
    """Two readers, one connection: both are answered, although the second has asked the database nothing."""

    async def read() -> list[tuple[Any, ...]]:
        async with connections.answered():
            return await connections.ask(SECRET, {})

    answers = await asyncio.gather(read(), read(), return_exceptions=True)
    assert [type(answer) for answer in answers] == [DatabaseSilent, DatabaseSilent]


@pytest.mark.thorough
async def test_a_network_that_swallows_everything_is_not_waited_for(database: str):
    async with FaultProxy(database) as proxy:
        connections = HistoryConnections(Database(proxy.dsn, answer_timeout=LIMIT), 2)
        assert await connections.ask(OTHER, {}) == [("mine",)]
        proxy.faults.black_hole = True
        # On a connection that is there; and the way to a new one is as bad.
        for _ in range(2):
            with pytest.raises(DatabaseSilent):
                async with connections.answered():
                    await connections.ask(OTHER, {})
        proxy.heal()
        assert await connections.ask(OTHER, {}) == [("mine",)]
        await connections.close()


@pytest.mark.thorough
@pytest.mark.parametrize("statement", [b"select pg_advisory_lock(42)", SECRET], ids=["nothing", "a half"])
async def test_a_statement_that_is_not_answered_ends_its_connection(
    database: str, locked: psycopg.Connection[Any], statement: bytes
):
    connection = await Database(database, answer_timeout=LIMIT).connect(bounded=True)
    with pytest.raises(Unanswered, match="did not answer within 3 s"):
        await connection.execute(statement)
    assert connection.closed


async def test_who_waits_for_notifications_has_asked_nothing(database: str):
    connection = await Database(database, answer_timeout=LIMIT).connect(listen=True, bounded=True)
    assert isinstance(connection, BoundedConnection)
    await connection.execute("listen news")
    connection.answer_timeout = 0.01
    assert [each async for each in connection.notifies(timeout=0.5)] == []
    assert not connection.closed
    await connection.close()


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_limit_that_is_none_is_refused(seconds: float):
    with pytest.raises(DeclarationError, match="answer_timeout"):
        Database("postgresql://localhost/x", answer_timeout=seconds)


def waiting_for_lock(holder: psycopg.Connection[Any]) -> bool:
    # Of this database alone: other tests use the same server.
    here = "database = (select oid from pg_database where datname = current_database())"
    waiting = f"select 1 from pg_locks where locktype = 'advisory' and not granted and {here}"
    return holder.execute(waiting.encode()).fetchone() is not None
