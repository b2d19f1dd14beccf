"""A user's events over HTTP: `GET /tasks/me/events` as pages, long-polls and a stream, from one declaration."""

from collections.abc import Mapping
from typing import Any, Final

from aftercommit.feed import POSITION, BareArray, ByAudience, Feed, Limits, LogEvent, Wire, timestamp
from systems.tasks.events import EVENTS, TaskEvent, outbox
from systems.tasks.service.routing import READER

EVENTS_PATH: Final = "/tasks/me/events"

_USER: Final = {"type": "integer", "minimum": 1}
_USER_OR_NOBODY: Final = {"type": ["integer", "null"], "minimum": 1}
EVENT_SCHEMA: Final[Mapping[str, Any]] = {
    "title": "TaskEvent",
    "type": "object",
    "properties": {
        "event_id": {
            "type": "integer",
            "minimum": 1,
            "description": "Position in the log; the cursor for `after_id`.",
        },
        "task_id": {"type": "integer", "minimum": 1},
        "event_type": {"type": "string", "enum": list(EVENTS)},
        "actor_user_id": {**_USER, "description": "The user who did it."},
        "actor_role_id": {**_USER_OR_NOBODY, "description": "The role in which they did it; null if they have none."},
        "created_at": {"type": "string", "format": "date-time"},
        "payload": {
            "type": "object",
            "description": "The task after the event; `note` is the actor's report, reason or comment.",
            "properties": {
                "title": {"type": "string"},
                "state": {"type": "string"},
                "previous_state": {"type": ["string", "null"]},
                "creator_user_id": _USER,
                "assignee_user_id": _USER_OR_NOBODY,
                "assignee_name": {"type": ["string", "null"]},
                "previous_assignee_user_id": _USER_OR_NOBODY,
                "previous_assignee_name": {"type": ["string", "null"]},
                "actor_name": {"type": "string"},
                "note": {"type": ["string", "null"]},
            },
        },
        "withheld": {"type": "string", "description": "Why the server hides this event; other fields are missing."},
    },
    "required": ["event_id"],
}


def task_event(event: LogEvent[TaskEvent]) -> Mapping[str, Any]:
    """An event as readers get it. Its id is its position in the log, so it is the cursor, too."""
    said = event.payload
    return {
        "event_id": event.position,
        "task_id": said.task_id,
        "event_type": event.type,
        "actor_user_id": said.actor_user_id,
        "actor_role_id": said.actor_role_id,
        "created_at": timestamp(event.occurred_at),
        "payload": {
            "title": said.title,
            "state": said.state,
            "previous_state": said.previous_state,
            "creator_user_id": said.creator_user_id,
            "assignee_user_id": said.assignee_user_id,
            "assignee_name": said.assignee_name,
            "previous_assignee_user_id": said.previous_assignee_user_id,
            "previous_assignee_name": said.previous_assignee_name,
            "actor_name": said.actor_name,
            "note": said.note,
        },
    }


events: Final = Feed(
    "task_events",
    outbox,
    select=ByAudience(READER),
    cursor=POSITION,
    item=task_event,
    limits=Limits(default=50, least=1, most=1000),
    wire=Wire(cursor="after_id", body=BareArray(), event_name="task_event", before="before_id", from_time="from_time"),
    begins="oldest",
    item_schema=EVENT_SCHEMA,
)
