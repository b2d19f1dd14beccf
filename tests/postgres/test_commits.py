"""A commit counts by the server's own word, whoever commits."""

import contextlib

import psycopg
import pytest

from aftercommit.errors import NotCommitted
from aftercommit.postgres.commits import commit, commit_async, committed, committed_async


def swallow_an_error(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute("create table t (n int)")
    with contextlib.suppress(psycopg.errors.DivisionByZero):
        connection.execute("select 1 / 0")


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_commit_that_the_server_answers_with_rollback_is_none(database: str, autocommit: bool) -> None:
    with psycopg.connect(database, autocommit=autocommit) as connection:
        with pytest.raises(NotCommitted, match="answered COMMIT with ROLLBACK"), committed(connection):
            swallow_an_error(connection)
        with committed(connection):
            connection.execute("create table t (n int)")
        with pytest.raises(NotCommitted, match="ended before the commit"):
            commit(connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def swallow_an_error_in_a_transaction(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
    async with committed_async(connection):
        await connection.execute("create table t (n int)")
        with contextlib.suppress(psycopg.errors.DivisionByZero):
            await connection.execute("select 1 / 0")


@pytest.mark.parametrize("autocommit", [True, False])
async def test_the_same_holds_for_asyncio(database: str, autocommit: bool) -> None:
    async with await psycopg.AsyncConnection.connect(database, autocommit=autocommit) as connection:
        with pytest.raises(NotCommitted, match="answered COMMIT with ROLLBACK"):
            await swallow_an_error_in_a_transaction(connection)
        async with committed_async(connection):
            await connection.execute("create table t (n int)")
        with pytest.raises(NotCommitted, match="ended before the commit"):
            await commit_async(connection)


def test_inside_another_transaction_it_is_a_savepoint(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table t (n int)")
        with pytest.raises(psycopg.errors.DivisionByZero), committed(connection):
            connection.execute("insert into t select 1 / 0")
        with committed(connection):
            connection.execute("insert into t values (2)")
        assert connection.execute("select n from t").fetchall() == [(2,)]


def test_a_block_that_raises_is_rolled_back_without_a_further_error(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        with pytest.raises(psycopg.OperationalError), committed(connection):
            connection.execute("select pg_terminate_backend(pg_backend_pid())")
        assert connection.broken
