"""asyncpg: a connection, also one from a pool."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import asyncpg

from aftercommit.outbox.insert import Copy
from aftercommit.outbox.publisher import AsyncPublisher, Rows, outside_transaction


def find(connection: Any) -> AsyncPublisher | None:
    """The adapter for an asyncpg connection; a pool is not a connection."""
    return Asyncpg(connection) if hasattr(connection, "is_in_transaction") else None


async def copy_async(connection: Any, copy: Copy) -> None:
    """Run a COPY. The data is encoded already, so codecs of the application do not matter."""

    async def source() -> AsyncIterator[bytes]:
        for chunk in copy.chunks:
            yield chunk

    await connection.copy_to_table(
        "outbox", schema_name=copy.schema, columns=copy.columns, source=source(), format="binary"
    )


class Asyncpg(AsyncPublisher):
    """An asyncpg connection."""

    style = style_of_one = "asyncpg"
    fits_class = True
    errors = (asyncpg.PostgresError,)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def in_transaction(self) -> bool:
        """Without a transaction, asyncpg commits every statement by itself."""
        return bool(self._connection.is_in_transaction())

    async def require_transaction(self) -> None:
        """In one step, because this runs for every event."""
        if not self._connection.is_in_transaction():
            raise outside_transaction()

    def execute(self, statement: str, parameters: Sequence[Any]) -> Awaitable[Any]:
        """Run a statement; asyncpg prepares and caches it."""
        running: Awaitable[Any] = self._connection.execute(statement, *parameters)
        return running

    execute_one = execute

    async def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run a statement and return its rows."""
        rows: Rows = await self._connection.fetch(statement, *parameters)
        return rows

    async def can_copy(self) -> bool:
        """asyncpg always talks UTF-8, and has no pipelines."""
        return True

    async def copy(self, copy: Copy) -> None:
        """Run a COPY."""
        await copy_async(self._connection, copy)
