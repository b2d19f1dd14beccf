"""The routes: tasks and their actions, users and roles, link codes."""

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from starlette.convertors import Convertor, register_url_convertor

from aftercommit.access import is_program
from aftercommit.http import Problem
from systems.host.http import Asks, at_one_moment
from systems.host.routes import DIGITS, After, Before, Caller, SystemRoute, refusals
from systems.host.system import Part
from systems.tasks.api.bodies import (
    Approval,
    Assignment,
    Reasoned,
    Redemption,
    Report,
    TaskWanted,
    acting_user,
    idempotency_key,
    role_number,
    task_number,
    user_number,
)
from systems.tasks.api.part import REDEMPTIONS, TasksPart
from systems.tasks.service import description, link_codes, people
from systems.tasks.service.machine import RULE_OF, Action, State
from systems.tasks.service.task import Task, TaskHistory, Tasks, find_seen, history_of, list_tasks
from systems.tasks.service.work import NewTask, Step, create_task

ROOT: Final = "/tasks"
REDEEM: Final = f"{ROOT}/link-codes/redeem"
_ONE: Final = "/{task_id:number}"
_MEMBER: Final = "/roles/{role_id:number}/members/{user_id:number}"
LISTED: Final = 50
MOST_LISTED: Final = 200
PEOPLE_LISTED: Final = 200
MOST_PEOPLE_LISTED: Final = 1000
_LINK_MINUTES: Final = int(link_codes.LIFETIME.total_seconds() // 60)


class _Number(Convertor[int]):
    """A path segment that is a number, so that other routes can have words in its place."""

    regex = "[0-9]{1,40}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


class ProgramRoute(SystemRoute):
    """A route for programs: authenticates the program, not the user on whose behalf it asks."""

    def asks(self, part: Part) -> Asks:
        """How this route authenticates its caller."""
        assert isinstance(part, TasksPart)
        return part.access.caller


async def _part(request: Request) -> TasksPart:
    part: TasksPart = request.state.part
    return part


Api = Annotated[TasksPart, Depends(_part)]
User = Annotated[int, Depends(acting_user)]
TaskId = Annotated[int, Depends(task_number)]
RoleId = Annotated[int, Depends(role_number)]
Member = Annotated[int, Depends(user_number)]
Limit = Annotated[int, Field(ge=1, le=MOST_LISTED), DIGITS, Query(description="Maximum number of items.")]
PeopleLimit = Annotated[int, Field(ge=1, le=MOST_PEOPLE_LISTED), DIGITS, Query(description="Maximum number of items.")]

router = APIRouter(prefix=ROOT, tags=["tasks"], route_class=SystemRoute)


@router.get(
    "",
    operation_id="listTasks",
    summary="List the tasks that the caller created, works on or supervises, newest first",
    responses=refusals(400, 401, 403, 503),
)
async def list_mine(
    api: Api,
    user: User,
    state: Annotated[State | SkipJsonSchema[None], Query(description="Only tasks in this state.")] = None,
    before: Before = None,
    limit: Limit = LISTED,
) -> Tasks:
    """Other tasks are not listed."""
    async with api.pool.reading() as connection, at_one_moment(connection):
        person = await people.find_person(connection, user)
        return await list_tasks(connection, person.user_id, state=state, before=before, limit=limit)


@router.post(
    "",
    operation_id="createTask",
    summary="Create a task",
    status_code=201,
    response_description="The task was created.",
    responses={
        200: {"description": "An earlier request with the same key created this task.", "model": Task},
        **refusals(400, 401, 403, 409, 413, 503),
    },
)
async def create(
    api: Api,
    user: User,
    key: Annotated[str | None, Depends(idempotency_key)],
    wanted: TaskWanted,
    response: Response,
) -> Task:
    """With an `Idempotency-Key`, repeated requests create one task."""
    roles = frozenset(wanted.supervisor_role_ids)
    new = NewTask(wanted.title, wanted.description, wanted.assignee_user_id, roles)
    async with api.pool.changing() as connection:
        task, is_new = await create_task(connection, user, new, key)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"{ROOT}/{task.task_id}"
    return task


@router.get("/me", operation_id="whoAmI", summary="Show the caller", responses=refusals(400, 401, 403, 503))
async def me(api: Api, user: User) -> people.Person:
    """Number, name and roles."""
    async with api.pool.reading() as connection:
        return await people.find_person(connection, user)


@router.post(
    "/me/link-codes",
    operation_id="makeLinkCode",
    summary="Create a code that links a Telegram chat to the caller",
    description=f"It works once and expires after {_LINK_MINUTES} minutes. A new code replaces the previous one.",
    status_code=201,
    response_description="The code, shown once.",
    responses=refusals(400, 401, 403, 503),
)
async def link(api: Api, user: User) -> link_codes.LinkCode:
    """The database stores a hash of it."""
    async with api.pool.changing() as connection:
        return await link_codes.make_code(connection, user)


async def redeem(api: Api, caller: Caller, shown: Redemption) -> link_codes.Linked:
    """Returns the code's user; for programs only."""
    if not is_program(caller):
        raise Problem(403, "Only programs can redeem codes: send a service token with the permission act-as-user")
    await api.allow_redemption(caller)
    async with api.pool.changing() as connection:
        return await link_codes.redeem(connection, shown.code)


router.add_api_route(
    REDEEM.removeprefix(ROOT),
    redeem,
    methods=["POST"],
    route_class_override=ProgramRoute,
    operation_id="redeemLinkCode",
    summary="Redeem a link code",
    description="For programs: needs a service token with the permission `act-as-user`. In development, programs on "
    "this machine may call it as long as there is no such token. "
    f"Limit: {REDEMPTIONS.requests} requests per minute.",
    response_description="The code's user. The code cannot be used again.",
    responses=refusals(400, 401, 403, 404, 413, 429, 503),
)


@router.get("/users", operation_id="listUsers", summary="List users", responses=refusals(400, 401, 403, 503))
async def users(api: Api, user: User, after: After = 0, limit: PeopleLimit = PEOPLE_LISTED) -> people.People:
    """Ordered by number."""
    async with api.pool.reading() as connection:
        await people.find_person(connection, user)
        return await people.list_people(connection, after=after, limit=limit)


@router.get(
    "/roles", operation_id="listRoles", summary="List roles and members", responses=refusals(400, 401, 403, 503)
)
async def roles(api: Api, user: User) -> people.Roles:
    """Ordered by number."""
    async with api.pool.reading() as connection:
        await people.find_person(connection, user)
        return await people.list_roles(connection)


@router.put(
    _MEMBER,
    operation_id="addMember",
    summary="Give a user a role",
    response_description="The user with the current roles.",
    responses=refusals(400, 401, 403, 404, 503),
)
async def add_member(api: Api, user: User, role_id: RoleId, user_id: Member) -> people.Person:
    """For administrators (role 1)."""
    async with api.pool.changing() as connection:
        return await people.add_member(connection, user, role_id, user_id)


@router.delete(
    _MEMBER,
    operation_id="removeMember",
    summary="Take a role from a user",
    response_description="The user with the current roles.",
    responses=refusals(400, 401, 403, 404, 409, 503),
)
async def remove_member(api: Api, user: User, role_id: RoleId, user_id: Member) -> people.Person:
    """For administrators (role 1). After this request, the user gets no new events through this role."""
    async with api.pool.changing() as connection:
        return await people.remove_member(connection, user, role_id, user_id)


@router.get(
    "/machine",
    operation_id="showMachine",
    summary="Show the workflow: actions, who may take them, and who is notified",
    responses=refusals(400, 401, 503),
)
async def machine(user: User) -> description.Machine:
    """The state machine and the routing of events."""
    return description.machine()


@router.get(_ONE, operation_id="showTask", summary="Show a task", responses=refusals(400, 401, 403, 404, 503))
async def show(api: Api, user: User, task_id: TaskId) -> Task:
    """`actions` lists what the caller can do now."""
    async with api.pool.reading() as connection, at_one_moment(connection):
        person = await people.find_person(connection, user)
        return await find_seen(connection, task_id, person.user_id)


@router.get(
    f"{_ONE}/history",
    operation_id="showHistory",
    summary="Show the history of a task, oldest first",
    responses=refusals(400, 401, 403, 404, 503),
)
async def history(api: Api, user: User, task_id: TaskId, after: After = 0, limit: Limit = LISTED) -> TaskHistory:
    """One entry per version of the task."""
    async with api.pool.reading() as connection, at_one_moment(connection):
        person = await people.find_person(connection, user)
        await find_seen(connection, task_id, person.user_id)
        return await history_of(connection, task_id, after=after, limit=limit)


# Actions by the last segment of their path.
STEPS: Final = {action.replace("_", "-"): action for action in Action if action is not Action.CREATE}

_Step = Callable[..., Any]


def _step(action: Action) -> Callable[[_Step], _Step]:
    """A route that takes a step. Its description comes from the rule."""
    rule = RULE_OF[action]
    never = f", but not the {' or '.join(rule.never)}" if rule.never else ""
    words = action.replace("_", " ")
    first, *rest = words.split()
    return router.post(
        f"{_ONE}/{action.replace('_', '-')}",
        operation_id=first + "".join(word.capitalize() for word in rest),
        summary=words.capitalize() + ("" if action is Action.SUBMIT_REPORT else " a task"),
        description=f"For the {' or '.join(rule.by)}{never}, when the task is {' or '.join(rule.states)}. "
        f"Publishes `{rule.event}`.",
        response_description="The changed task.",
        responses=refusals(400, 401, 403, 404, 409, 413, 503),
    )


@_step(Action.ASSIGN)
async def assign(api: Api, user: User, task_id: TaskId, said: Assignment) -> Task:
    """Assign a new task."""
    return await api.take_step(user, task_id, Step(Action.ASSIGN, said.assignee_user_id))


@_step(Action.REASSIGN)
async def reassign(api: Api, user: User, task_id: TaskId, said: Assignment) -> Task:
    """Assign the task to another user."""
    return await api.take_step(user, task_id, Step(Action.REASSIGN, said.assignee_user_id))


@_step(Action.SUBMIT_REPORT)
async def submit_report(api: Api, user: User, task_id: TaskId, said: Report) -> Task:
    """Report on the task."""
    return await api.take_step(user, task_id, Step(Action.SUBMIT_REPORT, note=said.report))


NO_COMMENT: Final = Approval()


@_step(Action.APPROVE)
async def approve(api: Api, user: User, task_id: TaskId, said: Approval = NO_COMMENT) -> Task:
    """Approve the report."""
    return await api.take_step(user, task_id, Step(Action.APPROVE, note=said.comment))


@_step(Action.REJECT)
async def reject(api: Api, user: User, task_id: TaskId, said: Reasoned) -> Task:
    """Reject the report."""
    return await api.take_step(user, task_id, Step(Action.REJECT, note=said.reason))


@_step(Action.REOPEN)
async def reopen(api: Api, user: User, task_id: TaskId, said: Reasoned) -> Task:
    """Reopen an approved or cancelled task."""
    return await api.take_step(user, task_id, Step(Action.REOPEN, note=said.reason))


@_step(Action.CANCEL)
async def cancel(api: Api, user: User, task_id: TaskId, said: Reasoned) -> Task:
    """Cancel the task."""
    return await api.take_step(user, task_id, Step(Action.CANCEL, note=said.reason))
