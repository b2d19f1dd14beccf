"""What the bodies of requests say, and whether it can be meant. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from aftercommit.event.json_rules import text_problem
from aftercommit.http.errors import bad_request
from systems.host.http import LARGEST, read_body
from systems.tasks.service.machine import Action
from systems.tasks.service.work import NewTask, Step

LONGEST_TITLE: Final = 200
LONGEST_TEXT: Final = 10_000
LONGEST_REASON: Final = 2_000
MOST_SUPERVISORS: Final = 20
LONGEST_KEY: Final = 200

Number = Annotated[int, Meta(ge=1, le=LARGEST)]
# What PostgreSQL's text cannot hold, and that something has to be written. The check itself says it in words.
_STORABLE: Final = {"pattern": r"^[^\u0000]*$"}
_WRITTEN: Final = {"pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}
Text = Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT, extra_json_schema=_WRITTEN)]
ShortText = Annotated[str, Meta(min_length=1, max_length=LONGEST_REASON, extra_json_schema=_WRITTEN)]


class TaskWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What makes a task. With an assignee it is theirs at once."""

    title: Annotated[str, Meta(min_length=1, max_length=LONGEST_TITLE, extra_json_schema=_WRITTEN)]
    description: Annotated[str, Meta(max_length=LONGEST_TEXT, extra_json_schema=_STORABLE)] = ""
    assignee_user_id: Number | None = None
    supervisor_role_ids: Annotated[list[Number], Meta(max_length=MOST_SUPERVISORS)] = []


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """To whom a task goes."""

    assignee_user_id: Number


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was done."""

    report: Text


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something kind to say, perhaps."""

    comment: ShortText | None = None


class Reasoned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why."""

    reason: ShortText


class Redemption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A code that somebody has shown."""

    code: Annotated[str, Meta(min_length=1, max_length=64)]


def wanted(body: bytes) -> NewTask:
    """The task that a request asks for."""
    said = read_body(TaskWanted, body)
    _check("title", said.title)
    _check("description", said.description, may_be_blank=True)
    return NewTask(said.title, said.description, said.assignee_user_id, frozenset(said.supervisor_role_ids))


def _assigning(action: Action) -> Callable[[bytes], Step]:
    return lambda body: Step(action, read_body(Assignment, body).assignee_user_id)


def _reporting(body: bytes) -> Step:
    return Step(Action.SUBMIT_REPORT, note=_check("report", read_body(Report, body).report))


def _approving(body: bytes) -> Step:
    comment = read_body(Approval, body or b"{}").comment
    return Step(Action.APPROVE, note=_check("comment", comment) if comment is not None else None)


def _reasoning(action: Action) -> Callable[[bytes], Step]:
    return lambda body: Step(action, note=_check("reason", read_body(Reasoned, body).reason))


# By the last part of the address.
STEPS: Final[Mapping[str, Callable[[bytes], Step]]] = {
    "assign": _assigning(Action.ASSIGN),
    "reassign": _assigning(Action.REASSIGN),
    "submit-report": _reporting,
    "approve": _approving,
    "reject": _reasoning(Action.REJECT),
    "reopen": _reasoning(Action.REOPEN),
    "cancel": _reasoning(Action.CANCEL),
}


def key_of(headers: Sequence[str]) -> str | None:
    """The Idempotency-Key of a request, or None."""
    if not headers:
        return None
    key = headers[0]
    if len(headers) > 1 or not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        raise bad_request(
            f"Idempotency-Key must be given once, as 1 to {LONGEST_KEY} printable characters",
            **{"Idempotency-Key": key[:60]},
        )
    return key


def _check(field: str, text: str, *, may_be_blank: bool = False) -> str:
    """What a type cannot say."""
    problem = text_problem(text)
    if problem is None and not may_be_blank and not text.strip():
        problem = "is blank: write something"
    if problem is not None:
        raise bad_request(f"The {field} {problem}", field=field)
    return text
