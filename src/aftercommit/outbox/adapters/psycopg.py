"""psycopg 3, blocking and asyncio."""

from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from aftercommit.outbox.insert import Copy
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


# In autocommit mode only these mean a transaction: ACTIVE can also be a pipeline.
_INSIDE: Final = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def _is_pipeline(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    return connection.info.pipeline_status != PipelineStatus.OFF


def can_copy(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    """Whether COPY works now: not in a pipeline, and the text is UTF-8."""
    return not _is_pipeline(connection) and connection.info.encoding == "utf-8"


def copy_blocking(connection: psycopg.Connection[Any], copy: Copy) -> None:
    """Run a COPY."""
    with psycopg.Cursor(connection).copy(_encoded(copy.statement)) as running:
        for chunk in copy.chunks:
            running.write(chunk)


async def copy_async(connection: psycopg.AsyncConnection[Any], copy: Copy) -> None:
    """Run a COPY."""
    async with psycopg.AsyncCursor(connection).copy(_encoded(copy.statement)) as running:
        for chunk in copy.chunks:
            await running.write(chunk)


class Psycopg(SyncPublisher):
    """A blocking psycopg connection."""

    style = "psycopg"
    fits_class = True
    style_of_one = "numbered"
    errors = (psycopg.ProgrammingError,)

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def in_transaction(self) -> bool:
        """False only in autocommit mode with no transaction open."""
        if not self._connection.autocommit:
            # psycopg opens the transaction with the first statement, ours included.
            return True
        if _is_pipeline(self._connection):
            # Wait for the pipeline's answers: its statements may have begun a transaction.
            with self._connection.pipeline() as pipeline:
                pipeline.sync()
        return self._connection.info.transaction_status in _INSIDE

    def require_transaction(self) -> None:
        """In one step for a connection that is not in autocommit mode, because this runs for every event."""
        if self._connection.autocommit:
            super().require_transaction()

    def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run a statement on our own cursor, so that the caller's cursor and row factories do not matter."""
        psycopg.Cursor(self._connection, row_factory=_TUPLES).execute(_encoded(statement), parameters)

    def execute_one(self, statement: str, parameters: Sequence[Any]) -> None:
        """The same with a raw query, in which psycopg has nothing to replace."""
        psycopg.RawCursor(self._connection, row_factory=_TUPLES).execute(_encoded(statement), parameters)

    def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run a statement and return its rows."""
        with psycopg.Cursor(self._connection, row_factory=_TUPLES) as cursor:
            return cursor.execute(_encoded(statement), parameters).fetchall()

    def can_copy(self) -> bool:
        """Not in a pipeline."""
        return can_copy(self._connection)

    def copy(self, copy: Copy) -> None:
        """Run a COPY."""
        copy_blocking(self._connection, copy)


class AsyncPsycopg(AsyncPublisher):
    """An asyncio psycopg connection."""

    style = "psycopg"
    fits_class = True
    style_of_one = "numbered"
    errors = (psycopg.ProgrammingError,)

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def in_transaction(self) -> bool:
        """False only in autocommit mode with no transaction open."""
        if not self._connection.autocommit:
            return True
        if _is_pipeline(self._connection):
            async with self._connection.pipeline() as pipeline:
                await pipeline.sync()
        return self._connection.info.transaction_status in _INSIDE

    async def require_transaction(self) -> None:
        """In one step for a connection that is not in autocommit mode, because this runs for every event."""
        if self._connection.autocommit:
            await super().require_transaction()

    async def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run a statement on our own cursor, so that the caller's cursor and row factories do not matter."""
        await psycopg.AsyncCursor(self._connection, row_factory=_TUPLES).execute(_encoded(statement), parameters)

    def execute_one(self, statement: str, parameters: Sequence[Any]) -> Awaitable[Any]:
        """The same with a raw query, in which psycopg has nothing to replace."""
        return psycopg.AsyncRawCursor(self._connection, row_factory=_TUPLES).execute(_encoded(statement), parameters)

    async def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run a statement and return its rows."""
        async with psycopg.AsyncCursor(self._connection, row_factory=_TUPLES) as cursor:
            await cursor.execute(_encoded(statement), parameters)
            return await cursor.fetchall()

    async def can_copy(self) -> bool:
        """Not in a pipeline."""
        return can_copy(self._connection)

    async def copy(self, copy: Copy) -> None:
        """Run a COPY."""
        await copy_async(self._connection, copy)
