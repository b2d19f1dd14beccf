"""The investigations in one server process: connections, and how callers are recognised."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from aftercommit import Database, Service
from aftercommit.access import Access
from aftercommit.feed import Feed
from systems.host.http import RequestPool
from systems.investigations.service.cases import INVESTIGATION_ID, find_case
from systems.investigations.service.errors import NotThere

AGAIN: Final = "it may have been done; send it again, what has an event_id or an investigation_id is stored once"


class InvestigationsPart:
    """What the routes need while they are served."""

    def __init__(self, database: Database, access: Access) -> None:
        """Nothing is connected before the lifespan begins."""
        self.access = access
        self.services: Sequence[Service] = ()
        self.pool = RequestPool(database, "investigations", AGAIN)

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """Connections are open."""
        return self.pool.lifespan()

    async def exists(self, feed: Feed, investigation_id: str) -> bool:
        """Whether there is such an investigation."""
        if INVESTIGATION_ID.fullmatch(investigation_id) is None:
            return False
        async with self.pool.reading() as connection:
            try:
                await find_case(connection, investigation_id)
            except NotThere:
                return False
        return True
