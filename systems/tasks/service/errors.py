"""The errors of this system. Each becomes a response with the common error body."""

from collections.abc import Collection

from aftercommit.http import Problem
from systems.tasks.service.machine import RULE_OF, Action, State


class NotThere(Problem):
    """The task does not exist."""

    def __init__(self, task_id: int) -> None:
        super().__init__(404, f"Task {task_id} not found", details={"task_id": task_id})


class Stranger(Problem):
    """The user is unknown, or has no access to the task."""

    @classmethod
    def to_all(cls, user_id: int) -> "Stranger":
        """The user is unknown."""
        return cls(403, f"User {user_id} does not exist: ask an administrator", details={"user_id": user_id})

    @classmethod
    def to_task(cls, user_id: int, task_id: int) -> "Stranger":
        """The user has no access to the task."""
        return cls(
            403,
            f"User {user_id} cannot see task {task_id}: only its creator, assignee and supervisors can",
            details={"user_id": user_id, "task_id": task_id},
        )


class NotAllowed(Problem):
    """The user may not take this action, whatever the task's state."""

    def __init__(self, action: Action, user_id: int, task_id: int) -> None:
        rule = RULE_OF[action]
        never = f", but not its {_one_of(rule.never)}" if rule.never else ""
        super().__init__(
            403,
            f"User {user_id} may not {_verb(action)} task {task_id}: only its {_one_of(rule.by)} may{never}",
            details={"action": action, "task_id": task_id, "by": rule.by, "never": rule.never},
        )


class WrongState(Problem):
    """The user may take this action, but not in the task's current state."""

    def __init__(self, action: Action, state: State, task_id: int) -> None:
        states = RULE_OF[action].states
        super().__init__(
            409,
            f"Task {task_id} is {state}: you can {_verb(action)} it only when it is {_one_of(states)}",
            details={"action": action, "task_id": task_id, "state": state, "allowed_states": states},
        )


class NobodyDecides(Problem):
    """Nobody could decide on the report: the assignee may not, and there is no one else."""

    def __init__(self, assignee: int, remedy: str) -> None:
        super().__init__(
            400,
            f"Nobody could approve the report of user {assignee}: an assignee cannot approve their own report, and "
            f"there is no other creator or supervisor. {remedy}",
            details={"field": "assignee_user_id", "assignee_user_id": assignee},
        )


class KeyIsTaken(Problem):
    """The Idempotency-Key was used for a different request."""

    def __init__(self, key: str) -> None:
        super().__init__(
            409,
            f"The Idempotency-Key {key!r:.60} was used for another task: use a new key for each task",
            details={"Idempotency-Key": key},
        )


class NotAdministrator(Problem):
    """Only administrators may change roles."""

    def __init__(self, user_id: int) -> None:
        super().__init__(403, f"User {user_id} is not an administrator (role 1)", details={"user_id": user_id})


class LastAdministrator(Problem):
    """The last administrator must keep the role, or nobody could change roles any more."""

    def __init__(self, user_id: int) -> None:
        super().__init__(
            409,
            f"User {user_id} is the only administrator: make another user an administrator first",
            details={"user_id": user_id, "role_id": 1},
        )


class NoSuchPlace(Problem):
    """The role or user in the path does not exist."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(404, f"{what.capitalize()} {number} not found", details={f"{what}_id": number})


class NoSuchCode(Problem):
    """The link code is wrong, used or expired. The message does not say which: that would help guessing."""

    def __init__(self) -> None:
        super().__init__(404, "This code is wrong, already used or expired: get a new one")


def _verb(action: Action) -> str:
    return "submit a report on" if action is Action.SUBMIT_REPORT else action.value


def _one_of(names: Collection[str]) -> str:
    return " or ".join(names)
