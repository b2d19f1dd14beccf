"""The routing of events: who is notified of which event. Pure.

The creator, the assignee and the supervisors of a task get all of its events, their own included. A previous assignee
gets the reassignment.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

READER: Final = "user:{key}"


class Hearer(StrEnum):
    """A group of people to notify."""

    CREATOR = "creator"
    ASSIGNEE = "assignee"
    PREVIOUS_ASSIGNEE = "previous_assignee"
    SUPERVISORS = "supervisors"


EVERYBODY: Final = (Hearer.CREATOR, Hearer.ASSIGNEE, Hearer.SUPERVISORS)

HEARS: Final[Mapping[str, tuple[Hearer, ...]]] = {
    "task_created": EVERYBODY,
    "task_assigned": EVERYBODY,
    "task_reassigned": (*EVERYBODY, Hearer.PREVIOUS_ASSIGNEE),
    "report_submitted": EVERYBODY,
    "report_approved": EVERYBODY,
    "report_rejected": EVERYBODY,
    "task_reopened": EVERYBODY,
    "task_cancelled": EVERYBODY,
}


class People(msgspec.Struct, frozen=True):
    """The people of a task after an event, and the previous assignee."""

    creator: int
    assignee: int | None
    previous_assignee: int | None
    supervisors: frozenset[int]

    def who(self, hearer: Hearer) -> frozenset[int]:
        """The users in this group."""
        if hearer is Hearer.SUPERVISORS:
            return self.supervisors
        user: int | None = getattr(self, hearer.value)
        return frozenset() if user is None else frozenset({user})


def audience(event_type: str, people: People) -> list[str]:
    """The readers of an event, as the log names them, without duplicates."""
    users = frozenset[int]().union(*(people.who(hearer) for hearer in HEARS[event_type]))
    return [READER.format(key=user) for user in sorted(users)]
