"""Chooses what the sample users do next. Pure, apart from the random numbers."""

import random
from typing import Final

import msgspec

from systems.tasks.service.machine import Action
from systems.tasks.service.task import Task
from systems.tasks.service.work import NewTask, Step

ADA, GRACE, EDSGER, BARBARA, MALLORY = 1, 2, 3, 4, 5
LEADS: Final = 2
MOST_OPEN: Final = 6

TITLES: Final = (
    "Renew the certificate of the shop",
    "Find out why the night backup takes three hours",
    "Answer the auditors' questions",
    "Write down how to restore the database",
    "Order chairs for the new office",
    "Measure the checkout before and after the release",
    "Remove accounts of those who have left",
    "Prepare the talk about outboxes",
)
_REPORTS: Final = ("Done, see the wiki.", "It took a while, but it works.", "Done, and there is a test for it now.")
_REASONS: Final = ("Please add numbers.", "The second half is missing.", "This is not what was asked for.")
_COMMENTS: Final = ("Thank you!", "Well done.", None)


class Turn(msgspec.Struct, frozen=True):
    """One user's next step on a task, or a new task."""

    user_id: int
    task_id: int | None
    step: Step | NewTask


class Story:
    """Chooses the next turn at random; the same seed gives the same choices."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def next(self, tasks: list[Task]) -> Turn:
        """The next turn, given the open tasks: sometimes, and if there are none, a new task."""
        if not tasks or (len(tasks) < MOST_OPEN and self._random.random() < 0.3):
            return self._wish()
        task = self._random.choice(tasks)
        return Turn(*self._work(task))

    def _wish(self) -> Turn:
        assignee = self._random.choice((EDSGER, BARBARA, None))
        new = NewTask(self._random.choice(TITLES), "", assignee, frozenset({LEADS}))
        return Turn(self._random.choice((ADA, GRACE)), None, new)

    def _work(self, task: Task) -> tuple[int, int, Step]:
        draw = self._random
        match task.state:
            case "new":
                return GRACE, task.task_id, Step(Action.ASSIGN, draw.choice((EDSGER, BARBARA)))
            case "reported" if draw.random() < 0.3:
                return GRACE, task.task_id, Step(Action.REJECT, note=draw.choice(_REASONS))
            case "reported":
                return GRACE, task.task_id, Step(Action.APPROVE, note=draw.choice(_COMMENTS))
            case _ if draw.random() < 0.1:
                other = EDSGER if task.assignee_user_id == BARBARA else BARBARA
                return GRACE, task.task_id, Step(Action.REASSIGN, other)
        return task.assignee_user_id or EDSGER, task.task_id, Step(Action.SUBMIT_REPORT, note=draw.choice(_REPORTS))
