"""A connection on which the harness asks the database while everything is being done to it."""

import asyncio
from typing import Any, Final

import psycopg

APPLICATION: Final = "faults-overseer"
PATIENCE: Final = 10.0


class Questions:
    """One question after the other; where the database does not answer in time, the answer is None."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()

    async def ask(self, query: str, *parameters: Any) -> list[tuple[Any, ...]] | None:
        """The rows; connects anew where that is needed."""
        async with self._turn:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = await psycopg.AsyncConnection.connect(
                        self._dsn, autocommit=True, application_name=APPLICATION, prepare_threshold=None
                    )
                async with asyncio.timeout(PATIENCE):
                    cursor = await self._connection.execute(query.encode(), parameters or None)
                    return await cursor.fetchall() if cursor.description else []
            except (psycopg.Error, OSError, TimeoutError):
                await self._drop()
                return None

    async def close(self) -> None:
        """Hang up, when whoever asks just now has had an answer."""
        async with self._turn:
            await self._drop()

    async def _drop(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()
