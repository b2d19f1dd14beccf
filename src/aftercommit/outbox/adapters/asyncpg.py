"""asyncpg, a connection of its own or one borrowed from its pool."""

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
        """The caller's connection (asyncpg ships no types)."""
        self._connection = connection

    async def in_transaction(self) -> bool:
        """asyncpg commits every statement by itself unless a transaction was started."""
        return bool(self._connection.is_in_transaction())

    async def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Prepared and cached by asyncpg."""
        await self._connection.execute(statement, *parameters)

    async def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Likewise."""
        rows: Rows = await self._connection.fetch(statement, *parameters)
        return rows
