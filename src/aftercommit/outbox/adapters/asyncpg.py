"""asyncpg: a connection, also one from a pool."""

from collections.abc import Sequence
from typing import Any

import asyncpg

from aftercommit.outbox.publisher import AsyncPublisher, Rows


def find(connection: Any) -> AsyncPublisher | None:
    """The adapter for an asyncpg connection; a pool is not a connection."""
    return Asyncpg(connection) if hasattr(connection, "is_in_transaction") else None


class Asyncpg(AsyncPublisher):
    """An asyncpg connection."""

    style = "asyncpg"
    errors = (asyncpg.PostgresError,)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def in_transaction(self) -> bool:
        """Without a transaction, asyncpg commits every statement by itself."""
        return bool(self._connection.is_in_transaction())

    async def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run a statement; asyncpg prepares and caches it."""
        await self._connection.execute(statement, *parameters)

    async def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run a statement and return its rows."""
        rows: Rows = await self._connection.fetch(statement, *parameters)
        return rows
