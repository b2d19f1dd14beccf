"""An office of ten people in overlapping teams, and those who work there at random: several transactions at once,
committed in another order than they began, on the same tasks and on others, some undone.

Every task carries a canary in all its texts, so that one can tell wherever anything of it turns up.
"""

import asyncio
import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import psycopg

from aftercommit.http.errors import Problem
from systems.tasks.service.machine import Action, possible
from systems.tasks.service.task import find_task
from systems.tasks.service.work import NewTask, Step, create_task, take_step
from tests.support.investigations import PATIENCE
from tests.support.tasks import ROOT, Service, signed

CANARY = re.compile(r"canary-[0-9a-f]{32}")
USERS = range(100, 110)
# Somebody who has nothing to do with anything.
OUTSIDER = 110
TEAMS: dict[int, set[int]] = {100: {100, 101, 102}, 101: {102, 103, 104, 105}, 102: {106}}
EVERYBODY = 120
MOST_OPEN = 4

Connection = psycopg.AsyncConnection[Any]


class Told(NamedTuple):
    """An event as the log has it, and who should hear of it by the rules."""

    position: int
    event_type: str
    task_id: int
    hearers: frozenset[int]


def people(tasks: Service) -> None:
    """The office moves in."""
    roles = {**{team: f"team {team}" for team in TEAMS}, EVERYBODY: "everybody"}
    users = {
        user: (f"person {user}", [EVERYBODY, *(team for team, members in TEAMS.items() if user in members)])
        for user in USERS
    }
    tasks.people(roles, {**users, OUTSIDER: ("outsider", [])})


def canary() -> str:
    """A text that is nowhere else."""
    return f"canary-{uuid4().hex}"


class Worker:
    """Does what can be done, at random; the same seed draws alike."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._random = random.Random(seed)

    def work(self, transactions: int) -> None:
        """So many transactions, up to four open at once, each on a task of its own."""
        asyncio.run(self._work(transactions))

    async def _work(self, transactions: int) -> None:
        draw, begun = self._random, 0
        open_ones: dict[int, Connection] = {}
        while begun < transactions or open_ones:
            if begun < transactions and len(open_ones) < MOST_OPEN and draw.random() < 0.6:
                begun += 1
                # Two of these may wait for each other through us, which PostgreSQL does not see: nobody waits long.
                connection = await psycopg.AsyncConnection.connect(self._dsn, options="-c lock_timeout=250ms")
                await connection.execute("select 1")
                task_id = await self._begin(connection, set(open_ones))
                if task_id is None:
                    await connection.close()
                else:
                    open_ones[task_id] = connection
            elif open_ones:
                async with open_ones.pop(draw.choice(list(open_ones))) as connection:
                    if draw.random() < 0.1:
                        await connection.rollback()

    async def _begin(self, connection: Connection, busy: set[int]) -> int | None:
        """Something is done and not yet committed; None when somebody else was quicker."""
        with suppress(Problem, psycopg.errors.LockNotAvailable):
            task_id = await self._some_task(connection, busy)
            if task_id is None or self._random.random() < 0.25:
                task, _ = await create_task(connection, self._random.choice(USERS), self.wish())
                return task.task_id
            user, step = await self._some_step(connection, task_id)
            await take_step(connection, user, task_id, step)
            return task_id
        return None

    def wish(self) -> NewTask:
        """What somebody wants done."""
        teams = frozenset(self._random.sample(list(TEAMS), self._random.randint(0, 2)))
        return NewTask(canary(), canary(), self._random.choice([None, *USERS]), teams)

    async def _some_task(self, connection: Connection, busy: set[int]) -> int | None:
        recent = "select task_id from tasks.tasks where title like 'canary%' order by task_id desc limit 12"
        rows = await (await connection.execute(recent)).fetchall()
        free = [task_id for (task_id,) in rows if task_id not in busy]
        return self._random.choice(free) if free else None

    async def _some_step(self, connection: Connection, task_id: int) -> tuple[int, Step]:
        task = await find_task(connection, task_id)
        roles = {user: [team for team, members in TEAMS.items() if user in members] for user in USERS}
        can = [(user, each) for user in USERS for each in possible(task.state, task.relations(user, roles[user]))]
        user, action = self._random.choice(can or [(task.creator_user_id, Action.REOPEN)])
        if action in (Action.ASSIGN, Action.REASSIGN):
            return user, Step(action, self._random.choice(USERS))
        return user, Step(action, note=f"note of {task.title}")


def work_over_http(url: Callable[[], str], seed: int, requests: int) -> None:
    """The same by requests, which may meet servers that are being killed: whether they were done the log will tell."""
    draw = random.Random(seed)
    for _ in range(requests):
        user = draw.choice(USERS)
        headers = {"Authorization": f"Bearer {signed(user)}"}
        with suppress(httpx.TransportError), httpx.Client(base_url=url(), headers=headers, timeout=PATIENCE) as client:
            body = {
                "title": canary(),
                "assignee_user_id": draw.choice(USERS),
                "supervisor_role_ids": [draw.choice(list(TEAMS))],
            }
            made = client.post(ROOT, json=body, headers={"Idempotency-Key": uuid4().hex})
            if made.status_code == 201:
                task = made.json()
                worker = {"Authorization": f"Bearer {signed(task['assignee_user_id'])}"}
                report = {"report": f"report of {task['title']}"}
                client.post(f"{ROOT}/{task['task_id']}/submit-report", json=report, headers=worker)


def truth(tasks: Service, dismissed: dict[tuple[int, int], int] | None = None) -> list[Told]:
    """What the log has, in order; who should hear is found from the tasks and teams, and not from the log's own list.

    `dismissed` says from which position on who (team, user) is in a team no more.
    """
    rows = tasks.rows(
        """
        select log.position, log.event_type, task.task_id, task.creator_user_id,
               (log.payload->>'assignee_user_id')::bigint, (log.payload->>'previous_assignee_user_id')::bigint,
               array(select role_id from tasks.supervisors where supervisors.task_id = task.task_id)
        from tasks_events.log log join tasks.tasks task on task.task_id = log.aggregate_id::bigint
        order by log.position
        """
    )
    return [_told(row, dismissed or {}) for row in rows]


def _told(row: tuple[Any, ...], dismissed: dict[tuple[int, int], int]) -> Told:
    position, event_type, task_id, creator, assignee, previous, teams = row
    members = {
        user
        for team in teams
        for user in (set(USERS) if team == EVERYBODY else TEAMS[team])
        if position <= dismissed.get((team, user), position)
    }
    lost = {previous} if event_type == "task_reassigned" else set()
    return Told(position, event_type, task_id, frozenset({creator, assignee, *lost, *members} - {None}))


def canaries(tasks: Service, task_ids: set[int]) -> set[str]:
    """The canaries in all texts of these tasks."""
    rows = tasks.rows("select title, description from tasks.tasks where task_id = any(%s)", list(task_ids))
    return {found for row in rows for text in row for found in CANARY.findall(text)}
