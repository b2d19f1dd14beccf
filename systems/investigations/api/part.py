"""The investigations in one server process: connections and authentication."""

from typing import Final

from aftercommit import Database
from aftercommit.access import BearerAccess
from aftercommit.feed import Feed
from systems.host.http import RequestPool
from systems.host.system import Part
from systems.investigations.service.cases import INVESTIGATION_ID, find_case
from systems.investigations.service.errors import NotThere

AGAIN: Final = "the change may have been committed; send it again, it is stored once per event_id or investigation_id"


class InvestigationsPart(Part):
    """What the routes need in one server process."""

    def __init__(self, database: Database, bearer: BearerAccess, local_users: bool = False) -> None:
        """Users of this system always have a token, whatever `local_users` says."""
        super().__init__(RequestPool(database, "investigations", AGAIN), bearer)

    async def exists(self, feed: Feed, key: str) -> bool:
        """Whether there is such an investigation."""
        if INVESTIGATION_ID.fullmatch(key) is None:
            return False
        async with self.pool.reading() as connection:
            try:
                await find_case(connection, key)
            except NotThere:
                return False
        return True
