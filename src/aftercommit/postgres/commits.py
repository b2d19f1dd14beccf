"""Commits that count by the server's own word alone.

PostgreSQL answers COMMIT with ROLLBACK when the transaction had failed before, and psycopg reports no error. So the
command tag of the answer is read, here and nowhere else: sync and async twins of a few lines. It costs no round trip.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from aftercommit.errors import NotCommitted

AsyncConnection = psycopg.AsyncConnection[Any]
AnyConnection = AsyncConnection | psycopg.Connection[Any]


@contextmanager
def committed(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """A transaction: rolled back when the block raises, and NotCommitted unless the server says COMMIT.

    Inside another transaction it is a savepoint, which the server refuses to release when it has failed.
    """
    if not _is_outermost(connection):
        with connection.transaction():
            yield
        return
    if connection.autocommit:
        connection.execute("begin")
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):
            connection.rollback()
        raise
    commit(connection)


@asynccontextmanager
async def committed_async(connection: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    """The same on an asyncio connection."""
    if not _is_outermost(connection):
        async with connection.transaction():
            yield
        return
    if connection.autocommit:
        await connection.execute("begin")
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):
            await connection.rollback()
        raise
    await commit_async(connection)


def commit(connection: psycopg.Connection[Any], statement: bytes = b"commit") -> None:
    """COMMIT, which may be the first of several commands; NotCommitted unless the server answers COMMIT."""
    require_open(connection)
    require_committed(connection.execute(statement).statusmessage)


async def commit_async(connection: psycopg.AsyncConnection[Any], statement: bytes = b"commit") -> None:
    """The same on an asyncio connection."""
    require_open(connection)
    require_committed((await connection.execute(statement)).statusmessage)


def require_open(connection: AnyConnection) -> None:
    """Without this psycopg would begin a transaction in order to commit it, and the server would say COMMIT."""
    status = connection.info.transaction_status
    if status == TransactionStatus.IDLE:
        raise NotCommitted("the transaction had ended before it was committed: something else sent COMMIT or ROLLBACK")


def require_committed(tag: str | None) -> None:
    """What the server answered to COMMIT."""
    if tag != "COMMIT":
        raise NotCommitted(
            f"PostgreSQL answered COMMIT with {tag or 'nothing'}: a statement of this transaction had failed, and all "
            "of it was rolled back. Let database errors out, or wrap what may fail in `with connection.transaction():`"
        )


def _is_outermost(connection: AnyConnection) -> bool:
    return connection.info.transaction_status == TransactionStatus.IDLE
