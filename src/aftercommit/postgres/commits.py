"""Commits that check the server's answer.

If a statement of the transaction has failed, PostgreSQL answers COMMIT with the command tag ROLLBACK, and psycopg
reports no error. So the functions here read the tag. That costs no round trip.
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
    """A transaction: rolled back if the block raises; NotCommitted unless the server answers COMMIT.

    Inside another transaction it is a savepoint, which the server does not release after a failed statement.
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
    """Send COMMIT, maybe with other commands after it; NotCommitted unless the server answers COMMIT."""
    require_open(connection)
    require_committed(connection.execute(statement).statusmessage)


async def commit_async(connection: psycopg.AsyncConnection[Any], statement: bytes = b"commit") -> None:
    """The same on an asyncio connection."""
    require_open(connection)
    require_committed((await connection.execute(statement)).statusmessage)


def require_open(connection: AnyConnection) -> None:
    """NotCommitted if the transaction has ended: psycopg would begin a new one, and the server would commit that."""
    status = connection.info.transaction_status
    if status == TransactionStatus.IDLE:
        raise NotCommitted("the transaction ended before the commit: something else sent COMMIT or ROLLBACK")


def require_committed(tag: str | None) -> None:
    """NotCommitted unless this is the command tag of a commit."""
    if tag != "COMMIT":
        raise NotCommitted(
            f"PostgreSQL answered COMMIT with {tag or 'nothing'}: a statement of this transaction had failed, so all "
            "of it was rolled back. Do not catch database errors, or wrap the statement in "
            "`with connection.transaction():`"
        )


def _is_outermost(connection: AnyConnection) -> bool:
    return connection.info.transaction_status == TransactionStatus.IDLE
