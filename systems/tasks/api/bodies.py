"""What requests carry: bodies as types, and the parameters and headers that several routes share."""

from typing import Annotated, Final

from fastapi import Header, Path, Request
from pydantic import AfterValidator, Field
from pydantic.json_schema import SkipJsonSchema

from aftercommit import text_problem
from aftercommit.http import bad_request
from systems.host.http import LARGEST
from systems.host.routes import Body
from systems.tasks.service.errors import NoSuchPlace, NotThere

LONGEST_TITLE: Final = 200
LONGEST_TEXT: Final = 10_000
LONGEST_REASON: Final = 2_000
MOST_SUPERVISORS: Final = 20
LONGEST_KEY: Final = 200


def _storable(text: str) -> str:
    problem = text_problem(text)
    if problem is not None:
        raise ValueError(problem)
    return text


def _written(text: str) -> str:
    if not _storable(text).strip():
        raise ValueError("is blank: write something")
    return text


Number = Annotated[int, Field(ge=1, le=LARGEST)]
# PostgreSQL's text holds no NUL. The patterns are for readers of the description; the checks say it in words.
_ANY: Final = {"pattern": r"^[^\u0000]*$"}
_NOT_BLANK: Final = {"pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}
Title = Annotated[
    str, Field(min_length=1, max_length=LONGEST_TITLE, json_schema_extra=_NOT_BLANK), AfterValidator(_written)
]
Description = Annotated[str, Field(max_length=LONGEST_TEXT, json_schema_extra=_ANY), AfterValidator(_storable)]
Text = Annotated[
    str, Field(min_length=1, max_length=LONGEST_TEXT, json_schema_extra=_NOT_BLANK), AfterValidator(_written)
]
ShortText = Annotated[
    str, Field(min_length=1, max_length=LONGEST_REASON, json_schema_extra=_NOT_BLANK), AfterValidator(_written)
]


class TaskWanted(Body):
    """A new task. With an assignee it is assigned at once."""

    title: Title
    description: Description = ""
    assignee_user_id: Number | None = None
    supervisor_role_ids: Annotated[list[Number], Field(max_length=MOST_SUPERVISORS)] = Field(default_factory=list)


class Assignment(Body):
    """Who works on a task from now on."""

    assignee_user_id: Number


class Report(Body):
    """What was done."""

    report: Text


class Approval(Body):
    """An approval, with or without a comment."""

    comment: ShortText | None = None


class Reasoned(Body):
    """Why a task is rejected, reopened or cancelled."""

    reason: ShortText


class Redemption(Body):
    """A code that somebody has shown."""

    code: Annotated[str, Field(min_length=1, max_length=64)]


_IN_PATH: Final = {"minimum": 1, "maximum": LARGEST}
InPath = Annotated[int, Path(json_schema_extra=_IN_PATH, examples=[1])]


async def task_number(task_id: InPath) -> int:
    """The task in the address; 404 for a number that no task can have."""
    if not 0 < task_id <= LARGEST:
        raise NotThere(task_id)
    return task_id


async def role_number(role_id: InPath) -> int:
    """The role in the address."""
    return _place("role", role_id)


async def user_number(user_id: InPath) -> int:
    """The user in the address."""
    return _place("user", user_id)


def _place(what: str, number: int) -> int:
    if not 0 < number <= LARGEST:
        raise NoSuchPlace(what, number)
    return number


async def acting_user(
    request: Request,
    user_header: Annotated[
        str | SkipJsonSchema[None],
        Header(
            alias="X-User-Id",
            description="The user for whom a program asks. It needs a service token with the permission `act-as-user`; "
            "while there is none, this machine alone may send it in development. Not needed beside a JWT.",
            json_schema_extra={"type": "integer", **_IN_PATH, "example": 1},
        ),
    ] = None,
) -> int:
    """The user who asks, or for whom a program does. The route has checked it."""
    return int(request.state.reader.user)


async def idempotency_key(
    request: Request,
    key_header: Annotated[
        str | SkipJsonSchema[None],
        Header(
            alias="Idempotency-Key",
            description="The caller's own name for this request. Sent again, it returns the task that it created.",
            json_schema_extra={"minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]+$"},
        ),
    ] = None,
) -> str | None:
    """The Idempotency-Key of a request, or None."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    key = given[0]
    if len(given) > 1 or not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        raise bad_request(
            f"Idempotency-Key must be given once, as 1 to {LONGEST_KEY} printable characters",
            **{"Idempotency-Key": key[:60]},
        )
    return key
