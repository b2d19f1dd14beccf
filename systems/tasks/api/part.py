"""The tasks in one server process: connections, authentication, and the limit on link codes."""

from typing import Final

from aftercommit import Database
from aftercommit.access import BearerAccess, Rate, RateLimiter, Reader, TrustedUsers
from aftercommit.http import too_many
from systems.host.http import RequestPool
from systems.host.system import Part
from systems.tasks.events import outbox
from systems.tasks.service.task import Task
from systems.tasks.service.work import Step, take_step

# Codes have 60 random bits, so this stops guessing, and is enough for a bot with many users.
REDEMPTIONS: Final = Rate("user", 60, 60)
AGAIN: Final = "the change may have been committed; check, or send it again (a new task with the same Idempotency-Key)"


class TasksPart(Part):
    """What the routes need in one server process."""

    access: TrustedUsers

    def __init__(self, database: Database, bearer: BearerAccess, local_users: bool = False) -> None:
        """`local_users` is for development: programs on this machine may name their user by a header alone."""
        super().__init__(RequestPool(database, "tasks", AGAIN), TrustedUsers(bearer, development=local_users))
        self._limiter = RateLimiter(database, outbox)
        self.services = [self._limiter]

    async def take_step(self, user: int, task_id: int, step: Step) -> Task:
        """Take a step in one transaction."""
        async with self.pool.changing() as connection:
            return await take_step(connection, user, task_id, step)

    async def allow_redemption(self, caller: Reader) -> None:
        """Count one redemption; 429 above the limit."""
        allowance = await self._limiter.take("tasks:redeem", caller.service or "this machine", REDEMPTIONS)
        if not allowance.allowed:
            raise too_many(f"Too many codes. Limit: {REDEMPTIONS.requests} per minute", allowance.retry_after)
