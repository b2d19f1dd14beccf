"""Request bodies as types, and the parameters and headers that several routes share."""

from typing import Annotated, Final

from fastapi import Header, Path, Request
from pydantic import AfterValidator, Field
from pydantic.json_schema import SkipJsonSchema

from aftercommit.http import bad_request
from systems.host.http import LARGEST
from systems.host.routes import STORABLE, Body
from systems.tasks.service.errors import NoSuchPlace, NotThere

LONGEST_TITLE: Final = 200
LONGEST_TEXT: Final = 10_000
LONGEST_REASON: Final = 2_000
MOST_SUPERVISORS: Final = 20
LONGEST_KEY: Final = 200


def _written(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Number = Annotated[int, Field(ge=1, le=LARGEST)]
# PostgreSQL's text type has no NUL. The patterns document what the validators check with better messages.
_ANY: Final = {"pattern": r"^[^\u0000]*$"}
_WORDS: Final = {"pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}
WRITTEN: Final = AfterValidator(_written)
Title = Annotated[str, Field(min_length=1, max_length=LONGEST_TITLE, json_schema_extra=_WORDS), STORABLE, WRITTEN]
Description = Annotated[str, Field(max_length=LONGEST_TEXT, json_schema_extra=_ANY), STORABLE]
Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT, json_schema_extra=_WORDS), STORABLE, WRITTEN]
ShortText = Annotated[str, Field(min_length=1, max_length=LONGEST_REASON, json_schema_extra=_WORDS), STORABLE, WRITTEN]


class TaskWanted(Body):
    """A new task; with an assignee, it is assigned at once."""

    title: Title
    description: Description = ""
    assignee_user_id: Number | None = None
    supervisor_role_ids: Annotated[list[Number], Field(max_length=MOST_SUPERVISORS)] = Field(default_factory=list)


class Assignment(Body):
    """The new assignee of a task."""

    assignee_user_id: Number


class Report(Body):
    """The report of the assignee."""

    report: Text


class Approval(Body):
    """An approval, with or without a comment."""

    comment: ShortText | None = None


class Reasoned(Body):
    """The reason for a rejection, reopening or cancellation."""

    reason: ShortText


class Redemption(Body):
    """A link code that a user sent to the bot."""

    code: Annotated[str, Field(min_length=1, max_length=64)]


_IN_PATH: Final = {"minimum": 1, "maximum": LARGEST}
InPath = Annotated[int, Path(json_schema_extra=_IN_PATH, examples=[1])]


async def task_number(task_id: InPath) -> int:
    """The task number in the path; 404 if no task can have it."""
    if not 0 < task_id <= LARGEST:
        raise NotThere(task_id)
    return task_id


async def role_number(role_id: InPath) -> int:
    """The role number in the path."""
    return _place("role", role_id)


async def user_number(user_id: InPath) -> int:
    """The user number in the path."""
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
            description="The user on whose behalf a program asks. Needs a service token with the permission "
            "`act-as-user`. In development, programs on this machine may send it alone as long as there is no such "
            "token. Not needed with a JWT.",
            json_schema_extra={"type": "integer", **_IN_PATH, "example": 1},
        ),
    ] = None,
) -> int:
    """The user who asks, or on whose behalf a program asks. The route has authenticated them."""
    return int(request.state.reader.user)


async def idempotency_key(
    request: Request,
    key_header: Annotated[
        str | SkipJsonSchema[None],
        Header(
            alias="Idempotency-Key",
            description="A unique key of your choice. A repeated request with the same key returns the same task.",
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
