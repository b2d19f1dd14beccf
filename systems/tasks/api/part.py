"""The tasks in one server process: connections, limits, and how callers are recognised."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from aftercommit import Database, Service
from aftercommit.access import BearerAccess, Rate, RateLimiter, Reader, TrustedUsers
from aftercommit.feed import Feed
from aftercommit.http import too_many
from systems.host.http import RequestPool
from systems.tasks.events import outbox
from systems.tasks.service.task import Task
from systems.tasks.service.work import Step, take_step

# A guess is one of 2^60, so this is more than enough against those; and enough for a bot with many users.
REDEMPTIONS: Final = Rate("user", 60, 60)
AGAIN: Final = "it may have been done; look, or send it again (a new task under the same Idempotency-Key)"


class TasksPart:
    """What the routes need while they are served."""

    def __init__(self, database: Database, bearer: BearerAccess, *, local_users: bool = False) -> None:
        """Nothing is connected before the lifespan begins. `local_users` is for development alone."""
        self.access = TrustedUsers(bearer, development=local_users)
        self.pool = RequestPool(database, "tasks", AGAIN)
        self._limiter = RateLimiter(database, outbox)
        self.services: Sequence[Service] = [self._limiter]

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """Connections are open."""
        return self.pool.lifespan()

    async def exists(self, feed: Feed, key: str) -> bool:
        """Every user has a feed, which may be empty."""
        return True

    async def take_step(self, user: int, task_id: int, step: Step) -> Task:
        """Do it, in one transaction."""
        async with self.pool.changing() as connection:
            return await take_step(connection, user, task_id, step)

    async def allow_redemption(self, caller: Reader) -> None:
        """Count a code that is shown; 429 when there were too many."""
        allowance = await self._limiter.take("tasks:redeem", caller.service or "this machine", REDEMPTIONS)
        if not allowance.allowed:
            raise too_many(f"Too many codes. Limit: {REDEMPTIONS.requests} per minute", allowance.retry_after)
