"""Reads tasks: one task, lists and history, as the caller may see them."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from systems.host.http import Connection
from systems.tasks.service.errors import NotThere, Stranger
from systems.tasks.service.machine import Action, Relation, State, possible


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `actions` are those that the caller can take now; `version` grows with each step."""

    task_id: int
    title: str
    description: str
    state: State
    creator_user_id: int
    assignee_user_id: int | None
    supervisor_role_ids: list[int]
    report: str | None
    created_at: datetime
    updated_at: datetime
    version: int
    actions: list[Action] = field(default_factory=list)

    def relations(self, user_id: int, role_ids: Collection[int]) -> frozenset[Relation]:
        """The relations of a user with these roles to the task."""
        found = {
            Relation.CREATOR: user_id == self.creator_user_id,
            Relation.ASSIGNEE: user_id == self.assignee_user_id,
            Relation.SUPERVISOR: any(role in self.supervisor_role_ids for role in role_ids),
        }
        return frozenset(relation for relation, holds in found.items() if holds)

    def seen_by(self, user_id: int, role_ids: Collection[int]) -> "Task":
        """The task as this user sees it; raises Stranger if they may not."""
        relations = self.relations(user_id, role_ids)
        if not relations:
            raise Stranger.to_task(user_id, self.task_id)
        return replace(self, actions=possible(self.state, relations))


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks, newest first. `next_before` continues the list; null: there are no more."""

    tasks: list[Task]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of a task, with the assignee after it and the id of its event."""

    version: int
    action: Action
    from_state: State | None
    to_state: State
    actor_user_id: int
    actor_role_id: int | None
    assignee_user_id: int | None
    note: str | None
    at: datetime
    event_id: UUID


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """The steps of a task, oldest first. `next_after` continues the list; null: there are no more."""

    entries: list[Entry]
    next_after: int | None


_ONE: Final = """
    select task_id, title, description, state, creator_user_id, assignee_user_id,
           array(select role_id from tasks.supervisors where supervisors.task_id = task.task_id order by role_id),
           report, created_at, updated_at, version
    from tasks.tasks task where task_id = %(task_id)s
"""
_LOCKED: Final = f"{_ONE} for update"
_ROLES: Final = "select role_id from tasks.members where user_id = %s order by role_id"
# Each relation has its own index and is read from the newest task on, only as far as a page needs.
_MINE: Final = """
    with mine as (
        (select task_id from tasks.tasks
         where creator_user_id = %(user)s and task_id < %(before)s and (%(state)s::text is null or state = %(state)s)
         order by task_id desc limit %(limit)s)
        union
        (select task_id from tasks.tasks
         where assignee_user_id = %(user)s and task_id < %(before)s and (%(state)s::text is null or state = %(state)s)
         order by task_id desc limit %(limit)s)
        union
        (select supervised.task_id from unnest(%(roles)s::bigint[]) as own (role_id) cross join lateral (
             select task.task_id from tasks.supervisors supervisor join tasks.tasks task using (task_id)
             where supervisor.role_id = own.role_id and supervisor.task_id < %(before)s
               and (%(state)s::text is null or task.state = %(state)s)
             order by supervisor.task_id desc limit %(limit)s
         ) supervised)
    )
    select task_id, title, description, state, creator_user_id, assignee_user_id,
           array(select role_id from tasks.supervisors where supervisors.task_id = task.task_id order by role_id),
           report, created_at, updated_at, version
    from mine join tasks.tasks task using (task_id)
    order by task_id desc limit %(limit)s
"""
_HISTORY: Final = """
    select version, action, from_state, to_state, actor_user_id, actor_role_id, assignee_user_id, note, at, event_id
    from tasks.history where task_id = %s and version > %s order by version limit %s
"""


async def find_task(connection: Connection, task_id: int, *, lock: bool = False) -> Task:
    """The task with this number; `lock` keeps others from changing it until the transaction ends."""
    statement = _LOCKED if lock else _ONE
    row = await (await connection.execute(statement, {"task_id": task_id})).fetchone()
    if row is None:
        raise NotThere(task_id)
    return _task(row)


async def find_seen(connection: Connection, task_id: int, user_id: int) -> Task:
    """The task as a user sees it; raises Stranger if they may not."""
    task = await find_task(connection, task_id)
    return task.seen_by(user_id, await roles_of(connection, user_id))


async def list_tasks(
    connection: Connection, user_id: int, *, state: State | None, before: int | None, limit: int
) -> Tasks:
    """The tasks that a user created, works on or supervises, newest first."""
    roles = await roles_of(connection, user_id)
    parameters = {
        "user": user_id,
        "roles": roles,
        "state": state,
        "before": before if before is not None else 2**63 - 1,
        "limit": limit,
    }
    rows = await (await connection.execute(_MINE, parameters)).fetchall()
    tasks = [_task(row).seen_by(user_id, roles) for row in rows]
    return Tasks(tasks, tasks[-1].task_id if len(tasks) == limit else None)


async def history_of(connection: Connection, task_id: int, *, after: int, limit: int) -> TaskHistory:
    """The steps after a version."""
    rows = await (await connection.execute(_HISTORY, (task_id, after, limit))).fetchall()
    return TaskHistory([_entry(row) for row in rows], rows[-1][0] if len(rows) == limit else None)


async def roles_of(connection: Connection, user_id: int) -> list[int]:
    """The roles of a user, ordered by number."""
    rows = await (await connection.execute(_ROLES, (user_id,))).fetchall()
    return [role_id for (role_id,) in rows]


def _task(row: tuple[Any, ...]) -> Task:
    task_id, title, description, state, *rest = row
    return Task(task_id, title, description, State(state), *rest)


def _entry(row: tuple[Any, ...]) -> Entry:
    version, action, from_state, to_state, *rest = row
    return Entry(version, Action(action), State(from_state) if from_state else None, State(to_state), *rest)
