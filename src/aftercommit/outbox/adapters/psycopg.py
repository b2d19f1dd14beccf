"""psycopg 3, blocking and asyncio."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from aftercommit.outbox.publisher import AsyncPublisher, Rows, SyncPublisher

_TUPLES = psycopg.rows.tuple_row


@lru_cache(maxsize=256)
def _encoded(statement: str) -> bytes:
    return statement.encode()


def find(connection: Any) -> SyncPublisher | AsyncPublisher | None:
    """The adapter for a psycopg connection."""
    if isinstance(connection, psycopg.AsyncConnection):
        return AsyncPsycopg(connection)
    if isinstance(connection, psycopg.Connection):
        return Psycopg(connection)
    return None


def _in_transaction(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    # Without autocommit psycopg opens the transaction with the first statement, ours included.
    return not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE


class Psycopg(SyncPublisher):
    """A blocking psycopg connection."""

    style = "psycopg"
    errors = (psycopg.ProgrammingError,)

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        """The caller's connection."""
        self._connection = connection

    def in_transaction(self) -> bool:
        """False in autocommit mode with no transaction open."""
        return _in_transaction(self._connection)

    def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """On a cursor of our own, so that the caller's cursor and row factory do not matter."""
        psycopg.Cursor(self._connection, row_factory=_TUPLES).execute(_encoded(statement), parameters)

    def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Likewise."""
        with psycopg.Cursor(self._connection, row_factory=_TUPLES) as cursor:
            return cursor.execute(_encoded(statement), parameters).fetchall()


class AsyncPsycopg(AsyncPublisher):
    """An asyncio psycopg connection."""

    style = "psycopg"
    errors = (psycopg.ProgrammingError,)

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """The caller's connection."""
        self._connection = connection

    async def in_transaction(self) -> bool:
        """False in autocommit mode with no transaction open."""
        return _in_transaction(self._connection)

    async def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """On a cursor of our own, so that the caller's cursor and row factory do not matter."""
        await psycopg.AsyncCursor(self._connection, row_factory=_TUPLES).execute(_encoded(statement), parameters)

    async def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Likewise."""
        async with psycopg.AsyncCursor(self._connection, row_factory=_TUPLES) as cursor:
            await cursor.execute(_encoded(statement), parameters)
            return await cursor.fetchall()
