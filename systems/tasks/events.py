"""The events of a task. Each has the actor and the task as it is after the event.

All belong to the aggregate `task`, so their order is kept. Every recipient can read the whole payload, so it holds
nothing that is not meant for all of them.
"""

from typing import Final

import msgspec

from aftercommit import Outbox

outbox: Final = Outbox("tasks_events", audience=True)


class TaskEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of all events. `note` is the actor's report, reason or comment."""

    task_id: int
    actor_user_id: int
    actor_name: str
    actor_role_id: int | None
    title: str
    state: str
    previous_state: str | None
    creator_user_id: int
    assignee_user_id: int | None
    assignee_name: str | None
    previous_assignee_user_id: int | None = None
    previous_assignee_name: str | None = None
    note: str | None = None


@outbox.event("task_created", aggregate="task", key="task_id")
class TaskCreated(TaskEvent, frozen=True):
    """A task was created, with or without an assignee."""


@outbox.event("task_assigned", aggregate="task", key="task_id")
class TaskAssigned(TaskEvent, frozen=True):
    """A new task got an assignee."""


@outbox.event("task_reassigned", aggregate="task", key="task_id")
class TaskReassigned(TaskEvent, frozen=True):
    """The task went to another assignee."""


@outbox.event("report_submitted", aggregate="task", key="task_id")
class ReportSubmitted(TaskEvent, frozen=True):
    """The assignee reported on the task."""


@outbox.event("report_approved", aggregate="task", key="task_id")
class ReportApproved(TaskEvent, frozen=True):
    """The report was approved; the task is done."""


@outbox.event("report_rejected", aggregate="task", key="task_id")
class ReportRejected(TaskEvent, frozen=True):
    """The report was rejected; the note says why."""


@outbox.event("task_reopened", aggregate="task", key="task_id")
class TaskReopened(TaskEvent, frozen=True):
    """An approved or cancelled task was reopened."""


@outbox.event("task_cancelled", aggregate="task", key="task_id")
class TaskCancelled(TaskEvent, frozen=True):
    """The task was cancelled."""


EVENTS: Final[dict[str, type[TaskEvent]]] = {
    outbox.registry.resolve(kind).name: kind for kind in TaskEvent.__subclasses__()
}
