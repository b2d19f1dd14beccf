"""Sample data for `aftercommit up`: five users with roles, and tasks that move through the workflow."""

from collections.abc import Mapping
from typing import Any, Final

import psycopg

from aftercommit import Database, Probe
from aftercommit.http import Problem
from aftercommit.postgres import DatabaseService, close_quietly, committed_async
from systems.host.system import SampleChat, SampleUser
from systems.tasks.sample.sample_script import ADA, BARBARA, EDSGER, GRACE, MALLORY, TITLES, Story, Turn
from systems.tasks.service.people import add_people
from systems.tasks.service.task import Task, list_tasks
from systems.tasks.service.work import NewTask, create_task, take_step

# One of this many events per second is a task's, because people read them.
GENTLE: Final = 30.0
OPEN: Final = ("new", "assigned", "reported", "rejected")

ROLES: Final = {1: "administrator", 2: "lead", 3: "engineer"}
PEOPLE: Final[Mapping[int, tuple[str, tuple[int, ...]]]] = {
    ADA: ("Ada", (1,)),
    GRACE: ("Grace", (2,)),
    EDSGER: ("Edsger", (3,)),
    BARBARA: ("Barbara", (3,)),
    MALLORY: ("Mallory", ()),
}
_ABOUT: Final = {
    ADA: "Administrator: assigns roles and creates tasks",
    GRACE: "Lead: supervises tasks, approves and rejects reports",
    EDSGER: "Engineer: works on tasks and reports on them",
    BARBARA: "Engineer: works on tasks and reports on them",
    MALLORY: "No role: sees only their own tasks",
}
USERS: Final = tuple(SampleUser(str(user), about, (), PEOPLE[user][0]) for user, about in _ABOUT.items())

# Chat by user. Each user has set a language in Telegram.
LINKED: Final[Mapping[int, int]] = {ADA: 700_000_001, GRACE: 700_000_002, EDSGER: 700_000_003}
_LANGUAGES: Final = {ADA: "en", GRACE: "en", EDSGER: "de"}
CHATS: Final = tuple(
    SampleChat(str(user), PEOPLE[user][0], chat_id, _LANGUAGES[user]) for user, chat_id in LINKED.items()
)


def add_sample_people(connection: psycopg.Connection[Any]) -> None:
    """Add the sample users and their roles. Safe to repeat."""
    add_people(connection, ROLES, PEOPLE)


class Traffic(DatabaseService):
    """Lets the sample users work: one step at a time, each in its own transaction, until stopped."""

    name = "task traffic"

    def __init__(
        self, database: Database, *, rate: float = 6.0, seed: int | None = None, probe: Probe | None = None
    ) -> None:
        """Not started. With a rate of 0 nothing happens."""
        super().__init__(probe)
        self._database = database
        self._rate = rate / GENTLE
        self._story = Story(seed)

    async def session(self) -> None:
        """Work until the connection is lost or the service is stopped."""
        connection = await self._database.connect(autocommit=False)
        try:
            self.session_is_up()
            while not self.stopping.is_set():
                if self._rate <= 0:
                    await self.stopping.wait()
                    return
                await self.step(connection)
                await self.reach("traffic.stepped")
                await self.pause(1 / self._rate)
        finally:
            await close_quietly(connection)

    async def step(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Take one turn. It is skipped if the task or a role has changed meanwhile."""
        turn = self._story.next(await self._open_tasks(connection))
        try:
            await _do(connection, turn)
        except Problem as problem:
            await self.reach("traffic.refused", error=problem)

    async def _open_tasks(self, connection: psycopg.AsyncConnection[Any]) -> list[Task]:
        async with committed_async(connection):
            found = await list_tasks(connection, GRACE, state=None, before=None, limit=50)
        # Leave other tasks to the people who try the site.
        return [task for task in found.tasks if task.state in OPEN and task.title in TITLES]


async def _do(connection: psycopg.AsyncConnection[Any], turn: Turn) -> None:
    if isinstance(turn.step, NewTask):
        await create_task(connection, turn.user_id, turn.step)
    else:
        assert turn.task_id is not None
        await take_step(connection, turn.user_id, turn.task_id, turn.step)
