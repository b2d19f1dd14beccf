"""The state machine of a task: which action leads from which states to which, and who may take it. Pure.

`RULES` decides what is forbidden (403) or comes in the wrong state (409), and which actions a page offers. The tables
in the README, `GET /tasks/machine` and the tests come from it, too.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, Literal

import msgspec


class State(StrEnum):
    """The state of a task."""

    NEW = "new"
    ASSIGNED = "assigned"
    REPORTED = "reported"
    REJECTED = "rejected"
    APPROVED = "approved"
    CANCELLED = "cancelled"


class Action(StrEnum):
    """An action on a task."""

    CREATE = "create"
    ASSIGN = "assign"
    REASSIGN = "reassign"
    SUBMIT_REPORT = "submit_report"
    APPROVE = "approve"
    REJECT = "reject"
    REOPEN = "reopen"
    CANCEL = "cancel"


class Relation(StrEnum):
    """A user's relation to a task. A supervisor has one of its supervising roles."""

    CREATOR = "creator"
    ASSIGNEE = "assignee"
    SUPERVISOR = "supervisor"


class Rule(msgspec.Struct, frozen=True):
    """One action: its start states, who may and may not take it, its end state, and its event.

    `states` and `by` are empty for the creation: everyone may create a task. A task without an assignee goes to
    `unassigned` instead of `to`, if that is set.
    """

    action: Action
    states: tuple[State, ...]
    by: tuple[Relation, ...]
    to: State
    event: str
    unassigned: State | None = None
    never: tuple[Relation, ...] = ()

    def allows(self, relations: Collection[Relation]) -> bool:
        """Whether a user with these relations may take the action, whatever the state."""
        if not self.by:
            return True
        return any(each in self.by for each in relations) and not any(each in self.never for each in relations)

    def leads_to(self, *, assigned: bool) -> State:
        """The state after the action."""
        return self.to if assigned or self.unassigned is None else self.unassigned


_CREATOR, _ASSIGNEE, _SUPERVISOR = Relation.CREATOR, Relation.ASSIGNEE, Relation.SUPERVISOR
_MANAGERS: Final = (_CREATOR, _SUPERVISOR)
_OPEN: Final = (State.NEW, State.ASSIGNED, State.REJECTED, State.REPORTED)
_IN_WORK: Final = (State.ASSIGNED, State.REJECTED, State.REPORTED)

RULES: Final[tuple[Rule, ...]] = (
    Rule(Action.CREATE, (), (), State.ASSIGNED, "task_created", State.NEW),
    Rule(Action.ASSIGN, (State.NEW,), _MANAGERS, State.ASSIGNED, "task_assigned"),
    Rule(Action.REASSIGN, _IN_WORK, _MANAGERS, State.ASSIGNED, "task_reassigned"),
    Rule(Action.SUBMIT_REPORT, (State.ASSIGNED, State.REJECTED), (_ASSIGNEE,), State.REPORTED, "report_submitted"),
    Rule(Action.APPROVE, (State.REPORTED,), _MANAGERS, State.APPROVED, "report_approved", never=(_ASSIGNEE,)),
    Rule(Action.REJECT, (State.REPORTED,), _MANAGERS, State.REJECTED, "report_rejected", never=(_ASSIGNEE,)),
    Rule(Action.REOPEN, (State.APPROVED, State.CANCELLED), _MANAGERS, State.ASSIGNED, "task_reopened", State.NEW),
    Rule(Action.CANCEL, _OPEN, (_CREATOR,), State.CANCELLED, "task_cancelled"),
)

RULE_OF: Final[Mapping[Action, Rule]] = {rule.action: rule for rule in RULES}

Verdict = Literal["allowed", "forbidden", "wrong state"]


def judge(action: Action, state: State, relations: Collection[Relation]) -> Verdict:
    """Whether the action is possible. "forbidden" comes first, so that it does not reveal the state."""
    rule = RULE_OF[action]
    if not rule.allows(relations):
        return "forbidden"
    return "allowed" if state in rule.states else "wrong state"


def possible(state: State, relations: Collection[Relation]) -> list[Action]:
    """The actions that a user with these relations can take now."""
    return [rule.action for rule in RULES if rule.states and judge(rule.action, state, relations) == "allowed"]
