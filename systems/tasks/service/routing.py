"""Who hears of what: for each event the people around a task to whom it goes. A declaration, and its one reading. Pure.

By default everybody who created a task, works on it or supervises it hears of everything that happens to it, whoever
did it; and who has lost a task to another hears of that.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

READER: Final = "user:{key}"


class Hearer(StrEnum):
    """Somebody around a task."""

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
    """Who is around a task as an event happens: those of after it, and who worked on it before."""

    creator: int
    assignee: int | None
    previous_assignee: int | None
    supervisors: frozenset[int]

    def who(self, hearer: Hearer) -> frozenset[int]:
        """The users that are meant."""
        if hearer is Hearer.SUPERVISORS:
            return self.supervisors
        user: int | None = getattr(self, hearer.value)
        return frozenset() if user is None else frozenset({user})


def audience(event_type: str, people: People) -> list[str]:
    """The readers of an event, as the log names them; each once."""
    users = frozenset[int]().union(*(people.who(hearer) for hearer in HEARS[event_type]))
    return [READER.format(key=user) for user in sorted(users)]
