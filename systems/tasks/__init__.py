"""Tasks: people create, assign, report on, approve and reject them, and everybody around a task hears of it.

`outbox` is what relays and migrations are pointed at: with the feed, which says how it is read.
"""

from systems.tasks.events import outbox
from systems.tasks.feeds import events

__all__ = ["events", "outbox"]
