"""A task tracker: people create, assign, report on, approve and reject tasks, and everyone involved sees the events.

Point relays and migrations at `outbox`. The feed is exported as well, because it declares the log's indexes.
"""

from systems.tasks.events import outbox
from systems.tasks.feeds import events

__all__ = ["events", "outbox"]
