"""The flag of a relay in the database that asks publishers to ring."""

import asyncio
from uuid import UUID

from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.statements import Statements


class ListenFlag:
    """Set in the database while at least one carrier of the relay wants to hear publishers."""

    def __init__(self, statements: Statements, relay: UUID) -> None:
        self._statements = statements
        self._relay = relay
        self._listeners: set[object] = set()
        self._writing = asyncio.Lock()
        self.is_set = False

    async def listen(self, connection: AsyncConnection, who: object, listening: bool) -> None:
        """Publishers ring while anybody here listens; on return the database knows."""
        (self._listeners.add if listening else self._listeners.discard)(who)
        async with self._writing:
            wanted = bool(self._listeners)
            if self.is_set != wanted:
                parameters = {"relay": self._relay, "listening": wanted}
                await connection.execute(self._statements["listen_flag"], parameters)
                self.is_set = wanted

    def is_listening(self, who: object) -> bool:
        """Whether publishers ring for this listener."""
        return self.is_set and who in self._listeners

    def forget(self) -> None:
        """After a lost connection: nobody listens."""
        self._listeners.clear()
        self.is_set = False
