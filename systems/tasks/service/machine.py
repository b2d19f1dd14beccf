"""The life of a task, written down once: which action leads from which states to which, and who may do it. Pure.

What is forbidden (403), what comes at the wrong time (409), what a page offers, the table in the README, what
`GET /tasks/machine` tells and the tests all come from `RULES`.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, Literal

import msgspec


class State(StrEnum):
    """Where a task is in its life."""

    NEW = "new"
    ASSIGNED = "assigned"
    REPORTED = "reported"
    REJECTED = "rejected"
    APPROVED = "approved"
    CANCELLED = "cancelled"


class Action(StrEnum):
    """What can be done with a task."""

    CREATE = "create"
    ASSIGN = "assign"
    REASSIGN = "reassign"
    SUBMIT_REPORT = "submit_report"
    APPROVE = "approve"
    REJECT = "reject"
    REOPEN = "reopen"
    CANCEL = "cancel"


class Relation(StrEnum):
    """How a user stands to a task. A supervisor has one of the roles that supervise it."""

    CREATOR = "creator"
    ASSIGNEE = "assignee"
    SUPERVISOR = "supervisor"


class Rule(msgspec.Struct, frozen=True):
    """One action: from which states, by whom, never by whom, where it leads, and the event that tells of it.

    `states` and `by` are empty for what begins a task: anybody does it, before there is a state. A task that nobody is
    assigned to goes to `unassigned` instead of `to`, where that is another.
    """

    action: Action
    states: tuple[State, ...]
    by: tuple[Relation, ...]
    to: State
    event: str
    unassigned: State | None = None
    never: tuple[Relation, ...] = ()

    def allows(self, relations: Collection[Relation]) -> bool:
        """Whether somebody who stands so to the task may do this, whatever state it is in."""
        if not self.by:
            return True
        return any(each in self.by for each in relations) and not any(each in self.never for each in relations)

    def leads_to(self, *, assigned: bool) -> State:
        """The state afterwards."""
        return self.to if assigned or self.unassigned is None else self.unassigned


_CREATOR, _ASSIGNEE, _SUPERVISOR = Relation.CREATOR, Relation.ASSIGNEE, Relation.SUPERVISOR
_OPEN: Final = (State.NEW, State.ASSIGNED, State.REJECTED, State.REPORTED)
_IN_WORK: Final = (State.ASSIGNED, State.REJECTED, State.REPORTED)

RULES: Final[tuple[Rule, ...]] = (
    Rule(Action.CREATE, (), (), State.ASSIGNED, "task_created", State.NEW),
    Rule(Action.ASSIGN, (State.NEW,), (_CREATOR, _SUPERVISOR), State.ASSIGNED, "task_assigned"),
    Rule(Action.REASSIGN, _IN_WORK, (_CREATOR, _SUPERVISOR), State.ASSIGNED, "task_reassigned"),
    Rule(
        Action.SUBMIT_REPORT,
        (State.ASSIGNED, State.REJECTED),
        (_ASSIGNEE,),
        State.REPORTED,
        "report_submitted",
    ),
    Rule(
        Action.APPROVE,
        (State.REPORTED,),
        (_CREATOR, _SUPERVISOR),
        State.APPROVED,
        "report_approved",
        never=(_ASSIGNEE,),
    ),
    Rule(
        Action.REJECT,
        (State.REPORTED,),
        (_CREATOR, _SUPERVISOR),
        State.REJECTED,
        "report_rejected",
        never=(_ASSIGNEE,),
    ),
    Rule(
        Action.REOPEN,
        (State.APPROVED, State.CANCELLED),
        (_CREATOR, _SUPERVISOR),
        State.ASSIGNED,
        "task_reopened",
        State.NEW,
    ),
    Rule(Action.CANCEL, _OPEN, (_CREATOR,), State.CANCELLED, "task_cancelled"),
)

RULE_OF: Final[Mapping[Action, Rule]] = {rule.action: rule for rule in RULES}

Verdict = Literal["allowed", "forbidden", "wrong state"]


def judge(action: Action, state: State, relations: Collection[Relation]) -> Verdict:
    """Whether it can be done. Who may not is told so whatever the state: a state is nobody else's business."""
    rule = RULE_OF[action]
    if not rule.allows(relations):
        return "forbidden"
    return "allowed" if state in rule.states else "wrong state"


def possible(state: State, relations: Collection[Relation]) -> list[Action]:
    """What somebody who stands so to a task can do with it now."""
    return [rule.action for rule in RULES if rule.states and judge(rule.action, state, relations) == "allowed"]
