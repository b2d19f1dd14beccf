"""Records of the bot's state: links with their positions, link codes, and events that could not be delivered.

`states/` stores them in SQLite or PostgreSQL.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

# Topics of a trouble note: the feed, or updates from Telegram.
FEED: Final = "feed"
UPDATES: Final = "updates"
FOR_EVER: Final = datetime.fromisoformat("9999-12-31T23:59:59+00:00")
GAP: Final = "gap"


class Link(msgspec.Struct, frozen=True):
    """A chat that follows a user's events.

    `place` is the cursor of the last event that is settled: delivered, or set aside. While the chat is muted, events
    are only counted, in `passed`. `unreachable` says why the last message could not be delivered. `topic` is the forum
    topic that messages go to.
    """

    chat_id: int
    user_id: str
    name: str
    language: str
    place: str | None
    linked_at: datetime
    muted_until: datetime | None = None
    passed: int = 0
    unreachable: str | None = None
    unreachable_at: datetime | None = None
    code_hash: str = ""
    topic: int | None = None

    def is_same(self, other: "Link | None") -> bool:
        """Whether this is still the same link at the same position."""
        mine = (self.user_id, self.linked_at, self.place)
        return other is not None and mine == (other.user_id, other.linked_at, other.place)

    def is_muted(self, now: datetime) -> bool:
        """Whether events are counted instead of sent."""
        return self.muted_until is not None and now < self.muted_until


class UndeliveredEvent(msgspec.Struct, frozen=True):
    """An event that was set aside for good. `kind` is `blocked`, `gone` or `refused`, or `gap` for missing events."""

    chat_id: int
    user_id: str
    place: str
    event_id: str
    event_type: str
    kind: str
    reason: str
    at: datetime


class Code(msgspec.Struct, frozen=True):
    """The user of a link code."""

    user_id: str
    name: str


def muted_until(now: datetime, time: timedelta | None) -> datetime:
    """When a mute ends; without a length, or with one beyond the calendar, never."""
    try:
        return FOR_EVER if time is None else min(now + time, FOR_EVER)
    except OverflowError:
        return FOR_EVER
