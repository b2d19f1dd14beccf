"""What happens to a task, as typed events. Each says who did it and how the task stands afterwards.

All are events of the aggregate `task`, in the order in which they happened to it. Whoever hears of one may read all of
its payload, so it holds nothing that is not meant for everybody around the task.
"""

from typing import Final

import msgspec

from aftercommit import Outbox

outbox: Final = Outbox("tasks_events", audience=True)


class TaskEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all of them carry. `note` is what the actor wrote: the report, the reason, the comment."""

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
    """Somebody wants something done; when somebody else was named at once, it is theirs."""


@outbox.event("task_assigned", aggregate="task", key="task_id")
class TaskAssigned(TaskEvent, frozen=True):
    """It is somebody's now."""


@outbox.event("task_reassigned", aggregate="task", key="task_id")
class TaskReassigned(TaskEvent, frozen=True):
    """It was one's and is another's now."""


@outbox.event("report_submitted", aggregate="task", key="task_id")
class ReportSubmitted(TaskEvent, frozen=True):
    """Who works on it says that it is done, and how."""


@outbox.event("report_approved", aggregate="task", key="task_id")
class ReportApproved(TaskEvent, frozen=True):
    """It is done."""


@outbox.event("report_rejected", aggregate="task", key="task_id")
class ReportRejected(TaskEvent, frozen=True):
    """It is not, and the note says why."""


@outbox.event("task_reopened", aggregate="task", key="task_id")
class TaskReopened(TaskEvent, frozen=True):
    """What was approved or cancelled is to be done after all."""


@outbox.event("task_cancelled", aggregate="task", key="task_id")
class TaskCancelled(TaskEvent, frozen=True):
    """It need not be done any more."""


EVENTS: Final[dict[str, type[TaskEvent]]] = {
    outbox.registry.resolve(kind).name: kind for kind in TaskEvent.__subclasses__()
}
