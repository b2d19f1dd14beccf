"""The system's own routes as OpenAPI; those of the feed describe themselves, but for the header that names the user."""

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any, Final

import msgspec

from aftercommit.feed.app.openapi import problem
from systems.host.http import LARGEST
from systems.tasks.api.bodies import LONGEST_KEY, Approval, Assignment, Reasoned, Redemption, Report, TaskWanted
from systems.tasks.api.routes import LISTED, MOST_LISTED, MOST_PEOPLE_LISTED, PEOPLE_LISTED, REDEEM, REDEMPTIONS, ROOT
from systems.tasks.feeds import EVENTS_PATH
from systems.tasks.service.description import Machine
from systems.tasks.service.link_codes import LIFETIME, LinkCode, Linked
from systems.tasks.service.machine import RULE_OF, Action, State
from systems.tasks.service.people import People, Person, Roles
from systems.tasks.service.task import Task, TaskHistory, Tasks

Json = dict[str, Any]
_REF: Final = "#/components/schemas/{name}"
_NUMBER: Final = {"type": "integer", "minimum": 1, "maximum": LARGEST}
_MEANINGS: Final = {
    400: "The request cannot be read; `details` name the place.",
    401: "Nobody says who asks, or the credential is wrong.",
    403: "It is not this user's to do, or to see; or the user is not known.",
    404: "There is no such thing.",
    409: "It is this user's to do, but not now; `details` say how the task is, and when it could be done.",
    413: "More than a request may carry.",
    429: "Too many; try again after `retry_after` seconds.",
    503: "The database cannot be reached, or does not answer; where `details.outcome` is `unknown`, it may be done.",
}
USER_HEADER: Final[Json] = {
    "name": "X-User-Id",
    "in": "header",
    "required": False,
    "description": "The user on whose behalf a program asks. Believed together with a service token that has the "
    "permission `act-as-user`; without any such token, from this machine alone. Beside a JWT it is not needed.",
    "schema": _NUMBER,
    "example": 1,
}
_BODIES: Final[Mapping[str, tuple[Action, type[msgspec.Struct]]]] = {
    "assign": (Action.ASSIGN, Assignment),
    "reassign": (Action.REASSIGN, Assignment),
    "submit-report": (Action.SUBMIT_REPORT, Report),
    "approve": (Action.APPROVE, Approval),
    "reject": (Action.REJECT, Reasoned),
    "reopen": (Action.REOPEN, Reasoned),
    "cancel": (Action.CANCEL, Reasoned),
}
_BOUNDED: Final = (400, 401, 403, 413, 503)


def paths() -> Json:
    """The paths, to be merged with those of the feed."""
    one = ROOT + "/{task_id}"
    task, role, user = _in_path("task_id"), _in_path("role_id"), _in_path("user_id")
    return {
        EVENTS_PATH: {"parameters": [USER_HEADER]},
        f"{EVENTS_PATH}/stream": {"parameters": [USER_HEADER]},
        ROOT: _as_user({"get": _list(), "post": _create()}),
        f"{ROOT}/me": _as_user({"get": _get("whoAmI", "Who the caller is", Person, 400, 401, 403, 503)}),
        f"{ROOT}/me/link-codes": _as_user({"post": _link()}),
        REDEEM: {"post": _redeem()},
        f"{ROOT}/users": _as_user({"get": _users()}),
        f"{ROOT}/roles": _as_user({"get": _get("listRoles", "Who has which role", Roles, 400, 401, 403, 503)}),
        f"{ROOT}/roles/{{role_id}}/members/{{user_id}}": _as_user({"put": _join(), "delete": _leave()}, role, user),
        f"{ROOT}/machine": _as_user({"get": _machine()}),
        one: _as_user({"get": _get("showTask", "One task", Task, 400, 401, 403, 404, 503)}, task),
        f"{one}/history": _as_user({"get": _history()}, task),
        **{f"{one}/{verb}": _as_user({"post": _step(verb)}, task) for verb in _BODIES},
    }


def schemas() -> Json:
    """What the bodies look like, by name."""
    told = [Task, Tasks, TaskHistory, TaskWanted, Person, People, Roles, Machine, LinkCode, Linked, Redemption]
    _, found = msgspec.json.schema_components([*told, *(body for _, body in _BODIES.values())], ref_template=_REF)
    for schema in found.values():
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    return found


def _list() -> Json:
    state = {"type": "string", "enum": [str(state) for state in State]}
    limit = {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": LISTED}
    return {
        **_get(
            "listTasks",
            "Tasks that the caller created, works on or supervises, newest first",
            Tasks,
            400,
            401,
            403,
            503,
        ),
        "parameters": [
            _parameter("state", "Only those in this state.", state),
            _parameter("before", "Go on from `next_before` of the page before.", _NUMBER),
            _parameter("limit", "How many at most.", limit),
        ],
    }


def _create() -> Json:
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "A name of the caller's for this request: sent again, it finds the task that it made.",
        "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]+$"},
    }
    made = {200: ("The same request has made it before.", Task), 201: ("It is made.", Task)}
    return {
        **_about("createTask", "Create a task"),
        "parameters": [key],
        "requestBody": _body(TaskWanted),
        "responses": _answers(made, *_BOUNDED, 409),
    }


def _step(verb: str) -> Json:
    action, body = _BODIES[verb]
    rule = RULE_OF[action]
    never = f", but not the {' or '.join(rule.never)}" if rule.never else ""
    told = {
        **_about(action.title().replace("_", "")[:1].lower() + action.title().replace("_", "")[1:], _summary(action)),
        "description": f"By the {' or '.join(rule.by)}{never}, when the task is {' or '.join(rule.states)}. "
        f"Publishes `{rule.event}`.",
        "requestBody": {**_body(body), "required": action is not Action.APPROVE},
        "responses": _answers({200: ("The task as it is now.", Task)}, *_BOUNDED, 404, 409),
    }
    return told


def _summary(action: Action) -> str:
    return f"{action.replace('_', ' ').capitalize()}" + ("" if action is Action.SUBMIT_REPORT else " a task")


def _history() -> Json:
    limit = {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": LISTED}
    return {
        **_get("showHistory", "What was done with a task, in order", TaskHistory, 400, 401, 403, 404, 503),
        "parameters": [
            _parameter("after", "Go on from `next_after` of the page before.", {**_NUMBER, "minimum": 0}),
            _parameter("limit", "How many at most.", limit),
        ],
    }


def _users() -> Json:
    limit = {"type": "integer", "minimum": 1, "maximum": MOST_PEOPLE_LISTED, "default": PEOPLE_LISTED}
    return {
        **_get("listUsers", "Who there is", People, 400, 401, 403, 503),
        "parameters": [
            _parameter("after", "Go on from `next_after` of the page before.", {**_NUMBER, "minimum": 0}),
            _parameter("limit", "How many at most.", limit),
        ],
    }


def _join() -> Json:
    return {
        **_about("addMember", "Give a user a role"),
        "description": "By an administrator (role 1).",
        "responses": _answers({200: ("The user as it is now.", Person)}, 400, 401, 403, 404, 503),
    }


def _leave() -> Json:
    return {
        **_about("removeMember", "Take a role from a user"),
        "description": "By an administrator (role 1). Once answered, the user hears of nothing more by this role.",
        "responses": _answers({200: ("The user as it is now.", Person)}, 400, 401, 403, 404, 409, 503),
    }


def _machine() -> Json:
    return _get("showMachine", "Which action leads where, who may do it, and who hears of it", Machine, 400, 401, 503)


def _link() -> Json:
    minutes = int(LIFETIME.total_seconds() // 60)
    return {
        **_about("makeLinkCode", "A code by which a bot learns whose chat it is in"),
        "description": f"Good once, and for {minutes} minutes. A new one ends the one before.",
        "responses": _answers({201: ("The code, shown once.", LinkCode)}, 400, 401, 403, 503),
    }


def _redeem() -> Json:
    return {
        **_about("redeemLinkCode", "Whose code this is"),
        "description": "For programs: needs a service token with the permission `act-as-user`, or, while there is "
        f"none, this machine. {REDEMPTIONS.requests} a minute.",
        "requestBody": _body(Redemption),
        "responses": _answers({200: ("From now on the code is used.", Linked)}, *_BOUNDED, 404, 429),
    }


def _as_user(operations: Json, *parameters: Json) -> Json:
    return {"parameters": [*parameters, USER_HEADER], **operations}


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": _NUMBER, "example": 1}


def _get(operation: str, summary: str, kind: type[msgspec.Struct], *bad: int) -> Json:
    return {**_about(operation, summary), "responses": _answers({200: (f"{summary}.", kind)}, *bad)}


def _about(operation: str, summary: str) -> Json:
    return {"operationId": operation, "tags": ["tasks"], "summary": summary}


def _parameter(name: str, description: str, schema: Mapping[str, Any]) -> Json:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _body(kind: type[msgspec.Struct]) -> Json:
    return {"required": True, "content": {"application/json": {"schema": _ref(kind)}}}


def _answers(good: Mapping[int, tuple[str, type[msgspec.Struct]]], *bad: int) -> Json:
    found = {status: _answer(description, kind) for status, (description, kind) in good.items()}
    found |= {status: problem(_MEANINGS[status], retry=status in (429, 503)) for status in bad}
    return {str(status): found[status] for status in sorted(found)}


def _answer(description: str, kind: type[msgspec.Struct]) -> Json:
    return {"description": description, "content": {"application/json": {"schema": _ref(kind)}}}


def _ref(kind: type[msgspec.Struct]) -> Json:
    return {"$ref": _REF.format(name=kind.__name__)}
