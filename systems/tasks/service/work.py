"""Creates tasks and takes steps. Each is one transaction: the task's row, locked first, then its history and event.

The same transaction reads who is notified, under locks that make changes of membership wait, and that wait for them.
So nobody gets an event that commits after they lost the role for it.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from aftercommit.http import bad_request
from systems.host.http import Connection, changing
from systems.tasks.events import EVENTS, outbox
from systems.tasks.service import routing
from systems.tasks.service.errors import KeyIsTaken, NobodyDecides, NotAllowed, Stranger, WrongState
from systems.tasks.service.machine import RULE_OF, Action, Relation, Rule, State, judge
from systems.tasks.service.people import names_of
from systems.tasks.service.task import Task, find_task, roles_of


class NewTask(msgspec.Struct, frozen=True):
    """A task to create. With an assignee its state is `assigned`, otherwise `new`."""

    title: str
    description: str = ""
    assignee_user_id: int | None = None
    supervisor_role_ids: frozenset[int] = frozenset()


class Step(msgspec.Struct, frozen=True):
    """An action on a task, with its new assignee or its text."""

    action: Action
    assignee_user_id: int | None = None
    note: str | None = None


class _Actor(msgspec.Struct, frozen=True):
    """The acting user, the names of the users involved, and the members of the actor's and the task's roles."""

    user_id: int
    names: dict[int, str]
    members: list[tuple[int, int]]

    def name_of(self, user_id: int | None) -> str | None:
        return self.names[user_id] if user_id is not None else None

    @property
    def role_ids(self) -> list[int]:
        return [role for role, user in self.members if user == self.user_id]

    def supervisors(self, task: Task) -> frozenset[int]:
        return frozenset(user for role, user in self.members if role in task.supervisor_role_ids)

    def has_decider(self, task: Task) -> bool:
        """Whether anyone can approve the assignee's report, with the roles as they are now."""
        roles = {user: [role for role, each in self.members if each == user] for _, user in self.members}
        people = {task.creator_user_id, *self.supervisors(task)}
        may = RULE_OF[Action.APPROVE].allows
        return task.assignee_user_id is None or any(may(task.relations(user, roles.get(user, []))) for user in people)

    def acting_role(self, rule: Rule, task: Task) -> int | None:
        """The supervising role in which the actor acts, or else the actor's first role."""
        supervises = Relation.SUPERVISOR in rule.by
        acting = [role for role in self.role_ids if supervises and role in task.supervisor_role_ids]
        return next(iter([*acting, *self.role_ids]), None)


# A concurrent request with the same key is waited for: it may still fail.
_INSERT: Final = """
    insert into tasks.tasks
        (title, description, state, creator_user_id, assignee_user_id, creation_key, creation_digest)
    values (%(title)s, %(description)s, %(state)s, %(creator)s, %(assignee)s, %(key)s, %(digest)s)
    on conflict (creator_user_id, creation_key) do nothing
    returning task_id, created_at, updated_at, version
"""
_MADE_BEFORE: Final = """
    select task_id, creation_digest from tasks.tasks where creator_user_id = %s and creation_key = %s
"""
_SUPERVISE: Final = "insert into tasks.supervisors (task_id, role_id) select %s, unnest(%s::bigint[])"
_KNOWN_ROLES: Final = "select role_id from tasks.roles where role_id = any(%s)"
_UPDATE: Final = """
    update tasks.tasks
    set state = %(state)s, assignee_user_id = %(assignee)s, report = %(report)s,
        version = version + 1, updated_at = clock_timestamp()
    where task_id = %(task_id)s
    returning updated_at, version
"""
# For share and in a fixed order: publishers do not wait for each other, but wait for a member's removal.
_MEMBERS: Final = """
    select role_id, user_id from tasks.members
    where role_id = any(%(roles)s) or user_id = %(user)s
    order by role_id, user_id
    for share
"""
_RECORD: Final = """
    insert into tasks.history
        (task_id, version, action, from_state, to_state, actor_user_id, actor_role_id, assignee_user_id, note, at,
         event_id)
    values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""


async def create_task(connection: Connection, user_id: int, new: NewTask, key: str | None = None) -> tuple[Task, bool]:
    """Create a task. If the key was used for the same request, return that task and False."""
    async with changing(connection):
        names = await _names(connection, user_id, new.assignee_user_id)
        _require_assignee(names, new.assignee_user_id)
        await _require_roles(connection, new.supervisor_role_ids)
        task = await _inserted(connection, user_id, new, key)
        if task is None:
            found = await _made_before(connection, user_id, new, key or "")
            return found.seen_by(user_id, await roles_of(connection, user_id)), False
        actor = _Actor(user_id, names, await _members(connection, user_id, task.supervisor_role_ids))
        _require_decider(actor, task, "Choose another assignee, or a supervising role that someone else has")
        await _tell(connection, actor, Step(Action.CREATE), None, task)
    return task.seen_by(user_id, actor.role_ids), True


async def take_step(connection: Connection, user_id: int, task_id: int, step: Step) -> Task:
    """Take a step; 403 if the user may not, 409 if the task is in the wrong state."""
    async with changing(connection):
        before = await find_task(connection, task_id, lock=True)
        names = await _names(connection, user_id, before.assignee_user_id, step.assignee_user_id)
        actor = _Actor(user_id, names, await _members(connection, user_id, before.supervisor_role_ids))
        relations = before.relations(user_id, actor.role_ids)
        verdict = judge(step.action, before.state, relations)
        if verdict == "forbidden":
            raise NotAllowed(step.action, user_id, task_id)
        if verdict == "wrong state":
            raise WrongState(step.action, before.state, task_id)
        _require_assignee(names, step.assignee_user_id)
        after = await _changed(connection, before, step)
        if step.assignee_user_id is not None:
            remedy = "have an administrator give one of the supervising roles to someone else"
            _require_decider(actor, after, f"Choose another assignee, or {remedy}")
        await _tell(connection, actor, step, before, after)
    return after.seen_by(user_id, actor.role_ids)


async def _names(connection: Connection, user_id: int, *others: int | None) -> dict[int, str]:
    """Names of those users that exist; raises Stranger if the caller does not."""
    names = await names_of(connection, {user_id, *(other for other in others if other is not None)})
    if user_id not in names:
        raise Stranger.to_all(user_id)
    return names


def _require_assignee(names: Mapping[int, str], assignee: int | None) -> None:
    if assignee is not None and assignee not in names:
        raise bad_request(
            f"assignee_user_id: user {assignee} does not exist. GET /tasks/users lists them", field="assignee_user_id"
        )


def _require_decider(actor: _Actor, task: Task, remedy: str) -> None:
    if not actor.has_decider(task):
        assert task.assignee_user_id is not None
        raise NobodyDecides(task.assignee_user_id, remedy)


async def _require_roles(connection: Connection, role_ids: Collection[int]) -> None:
    rows = await (await connection.execute(_KNOWN_ROLES, (list(role_ids),))).fetchall()
    missing = sorted(set(role_ids) - {role_id for (role_id,) in rows})
    if missing:
        raise bad_request(
            f"supervisor_role_ids: role {missing[0]} does not exist. GET /tasks/roles lists them",
            field="supervisor_role_ids",
        )


async def _inserted(connection: Connection, user_id: int, new: NewTask, key: str | None) -> Task | None:
    state = RULE_OF[Action.CREATE].leads_to(assigned=new.assignee_user_id is not None)
    parameters = {
        "title": new.title,
        "description": new.description,
        "state": state,
        "creator": user_id,
        "assignee": new.assignee_user_id,
        "key": key,
        "digest": _digest(new) if key is not None else None,
    }
    row = await (await connection.execute(_INSERT, parameters)).fetchone()
    if row is None:
        return None
    task_id, created_at, updated_at, version = row
    roles = sorted(new.supervisor_role_ids)
    await connection.execute(_SUPERVISE, (task_id, roles))
    assignee = new.assignee_user_id
    return Task(
        task_id, new.title, new.description, state, user_id, assignee, roles, None, created_at, updated_at, version
    )


async def _made_before(connection: Connection, user_id: int, new: NewTask, key: str) -> Task:
    row = await (await connection.execute(_MADE_BEFORE, (user_id, key))).fetchone()
    assert row is not None
    task_id, digest = row
    if bytes(digest) != _digest(new):
        raise KeyIsTaken(key)
    return await find_task(connection, task_id)


async def _members(connection: Connection, user_id: int, role_ids: Collection[int]) -> list[tuple[int, int]]:
    """Members of these roles and the user's roles, as (role, user), locked until the transaction ends."""
    rows = await (await connection.execute(_MEMBERS, {"roles": list(role_ids), "user": user_id})).fetchall()
    return [(role, user) for role, user in rows]


async def _changed(connection: Connection, before: Task, step: Step) -> Task:
    assignee = step.assignee_user_id if step.assignee_user_id is not None else before.assignee_user_id
    state = RULE_OF[step.action].leads_to(assigned=assignee is not None)
    report = _report(before, step, state)
    parameters = {"state": state, "assignee": assignee, "report": report, "task_id": before.task_id}
    row = await (await connection.execute(_UPDATE, parameters)).fetchone()
    assert row is not None
    updated_at, version = row
    return replace(
        before, state=state, assignee_user_id=assignee, report=report, updated_at=updated_at, version=version
    )


def _report(before: Task, step: Step, state: State) -> str | None:
    """The valid report: a task that is new or assigned again has none."""
    if step.action is Action.SUBMIT_REPORT:
        return step.note
    return None if state in (State.NEW, State.ASSIGNED) else before.report


async def _tell(connection: Connection, actor: _Actor, step: Step, before: Task | None, after: Task) -> None:
    """Publish the event and write the row of the history."""
    rule = RULE_OF[step.action]
    role = actor.acting_role(rule, after)
    left = before.assignee_user_id if before is not None else None
    previous = left if left != after.assignee_user_id else None
    people = routing.People(after.creator_user_id, after.assignee_user_id, previous, actor.supervisors(after))
    event = EVENTS[rule.event](
        task_id=after.task_id,
        actor_user_id=actor.user_id,
        actor_name=actor.names[actor.user_id],
        actor_role_id=role,
        title=after.title,
        state=after.state,
        previous_state=before.state if before is not None else None,
        creator_user_id=after.creator_user_id,
        assignee_user_id=after.assignee_user_id,
        assignee_name=actor.name_of(after.assignee_user_id),
        previous_assignee_user_id=previous,
        previous_assignee_name=actor.name_of(previous),
        note=step.note,
    )
    receipt = await outbox.publish(connection, event, audience=routing.audience(rule.event, people))
    done = (step.action, event.previous_state, after.state, actor.user_id, role, after.assignee_user_id, step.note)
    parameters = (after.task_id, after.version, *done, after.updated_at, receipt.event_id)
    await connection.execute(_RECORD, parameters)


def _digest(new: NewTask) -> bytes:
    said = (new.title, new.description, new.assignee_user_id, sorted(new.supervisor_role_ids))
    return hashlib.sha256(msgspec.json.encode(said)).digest()
