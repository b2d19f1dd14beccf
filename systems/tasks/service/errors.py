"""What can be wrong with a request to this system; each is answered with the error body that all systems share."""

from collections.abc import Collection

from aftercommit.http import Problem
from systems.tasks.service.machine import RULE_OF, Action, State


class NotThere(Problem):
    """There is no such task."""

    def __init__(self, task_id: int) -> None:
        super().__init__(404, f"Task {task_id} not found", details={"task_id": task_id})


class Stranger(Problem):
    """Whoever asks is nobody that this system knows, or has nothing to do with the task."""

    @classmethod
    def to_all(cls, user_id: int) -> "Stranger":
        """To the whole system."""
        return cls(403, f"User {user_id} is not known here: ask an administrator", details={"user_id": user_id})

    @classmethod
    def to_task(cls, user_id: int, task_id: int) -> "Stranger":
        """To one task."""
        return cls(
            403,
            f"Task {task_id} is not for user {user_id}: it is for those who created it, work on it or supervise it",
            details={"user_id": user_id, "task_id": task_id},
        )


class NotAllowed(Problem):
    """An action that is not this user's to do, in whatever state the task is."""

    def __init__(self, action: Action, user_id: int, task_id: int) -> None:
        rule = RULE_OF[action]
        never = f", and never for its {_one_of(rule.never)}" if rule.never else ""
        super().__init__(
            403,
            f"User {user_id} may not {_verb(action)} task {task_id}: that is for its {_one_of(rule.by)}{never}",
            details={"action": action, "task_id": task_id, "by": rule.by, "never": rule.never},
        )


class WrongState(Problem):
    """An action that is this user's to do, at another time."""

    def __init__(self, action: Action, state: State, task_id: int) -> None:
        states = RULE_OF[action].states
        super().__init__(
            409,
            f"Task {task_id} is {state}: one can {_verb(action)} it when it is {_one_of(states)}",
            details={"action": action, "task_id": task_id, "state": state, "allowed_states": states},
        )


class NobodyDecides(Problem):
    """Nobody but the assignee could decide on the report, and the assignee may not."""

    def __init__(self, assignee: int, remedy: str) -> None:
        super().__init__(
            400,
            f"Nobody could approve the report of user {assignee}: the assignee cannot, and there is no other creator "
            f"or supervisor; {remedy}",
            details={"field": "assignee_user_id", "assignee_user_id": assignee},
        )


class KeyIsTaken(Problem):
    """An Idempotency-Key came again, with another request."""

    def __init__(self, key: str) -> None:
        super().__init__(
            409,
            f"The Idempotency-Key {key!r:.60} was used for another task: use a new one for each task",
            details={"Idempotency-Key": key},
        )


class NotAdministrator(Problem):
    """Who has which role is for administrators to say."""

    def __init__(self, user_id: int) -> None:
        super().__init__(403, f"User {user_id} is no administrator (role 1)", details={"user_id": user_id})


class LastAdministrator(Problem):
    """Nobody could say any more who has which role."""

    def __init__(self, user_id: int) -> None:
        super().__init__(
            409,
            f"User {user_id} is the only administrator: make somebody else one first",
            details={"user_id": user_id, "role_id": 1},
        )


class NoSuchPlace(Problem):
    """A role or a user that membership is asked of does not exist."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(404, f"{what.capitalize()} {number} not found", details={f"{what}_id": number})


class NoSuchCode(Problem):
    """A link code that is wrong, used or too old. Which of these is not told: it would help those who guess."""

    def __init__(self) -> None:
        super().__init__(404, "This code is wrong, was used before or is too old: ask for a new one")


def _verb(action: Action) -> str:
    return "submit a report on" if action is Action.SUBMIT_REPORT else action.value


def _one_of(names: Collection[str]) -> str:
    return " or ".join(names)
