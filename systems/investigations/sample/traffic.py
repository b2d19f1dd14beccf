"""Sample data for `aftercommit up`: two investigations, users with different permissions, and traffic."""

from typing import Any, Final

import psycopg

from aftercommit import Database, Probe
from aftercommit.postgres import DatabaseService, close_quietly
from systems.host.system import SampleUser
from systems.investigations.sample.sample_script import CASES, SampleCase, Story
from systems.investigations.service.cases import open_case
from systems.investigations.service.errors import AlreadyThere, Closed
from systems.investigations.service.ingest import store

PAST_REQUESTS: Final = 60


USERS: Final = (
    SampleUser(
        "ada",
        "Lead: opens investigations, reads and writes all of them",
        ("investigation:create", "investigation:*:read", "investigation:*:write"),
    ),
    SampleUser("grace", "On call for the checkout: reads only INV-123", ("investigation:INV-123:read",)),
    SampleUser("web-shop", "Program: writes to INV-123, reads nothing", ("investigation:INV-123:write",)),
    SampleUser("mallory", "No permissions", ()),
)


class Traffic(DatabaseService):
    """Writes about `rate` log lines per second, one request at a time, until stopped."""

    name = "traffic"

    def __init__(
        self, database: Database, *, rate: float = 6.0, seed: int | None = None, probe: Probe | None = None
    ) -> None:
        """Not started. With a rate of 0 the investigations get only their first lines."""
        super().__init__(probe)
        self._database = database
        self._rate = rate
        self._story = Story(seed)

    async def session(self) -> None:
        """Write until the connection is lost or the service is stopped."""
        connection = await self._database.connect(autocommit=False)
        try:
            self.session_is_up()
            for case in CASES:
                await self.begin(connection, case)
            await self.reach("traffic.began")
            while not self.stopping.is_set():
                if self._rate <= 0:
                    await self.stopping.wait()
                    return
                lines = await self.step(connection)
                await self.reach("traffic.stepped")
                await self.pause(lines / self._rate)
        finally:
            await close_quietly(connection)

    async def begin(self, connection: psycopg.AsyncConnection[Any], case: SampleCase) -> None:
        """Open a sample investigation with some lines, if it does not exist."""
        try:
            await open_case(connection, case.title, "ada", case.investigation_id)
        except AlreadyThere:
            return
        past = [line for _ in range(PAST_REQUESTS) for line in self._story.request()]
        await store(connection, case.investigation_id, past)

    async def step(self, connection: psycopg.AsyncConnection[Any]) -> int:
        """Write one request in one transaction; returns its number of lines."""
        case, lines = self._story.case(), self._story.request()
        try:
            await store(connection, case.investigation_id, lines)
        except Closed:
            # Someone closed the sample investigation.
            await self.reach("traffic.closed", investigation_id=case.investigation_id)
        return len(lines)
