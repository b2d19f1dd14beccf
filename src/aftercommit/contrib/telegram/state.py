"""What the bot remembers: links and their places, codes, what was set aside, and how far updates were read.

`Store` is the port; `states/` has it in SQLite and in PostgreSQL. Its methods block and are called in one thread of
their own. Each is one transaction and bears being repeated: after a lost connection nobody knows whether it was
committed.
"""

from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec

# What can be wrong: with the feed, or with hearing what people write.
FEED: Final = "feed"
UPDATES: Final = "updates"
FOR_EVER: Final = datetime.fromisoformat("9999-12-31T23:59:59+00:00")
GAP: Final = "gap"


class Link(msgspec.Struct, frozen=True):
    """A chat that follows a user's events.

    `place` is the cursor after the last event that is done with. While it is muted, events pass and are counted in
    `passed`. `unreachable` says why the last message could not be delivered; None when it could. `topic` is where in a
    forum messages go.
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
        """Whether it is the same link at the same place: it was neither ended nor made anew, and nothing was sent."""
        return other is not None and (self.user_id, self.linked_at, self.place) == (
            other.user_id,
            other.linked_at,
            other.place,
        )

    def is_muted(self, now: datetime) -> bool:
        """Whether events pass without a message."""
        return self.muted_until is not None and now < self.muted_until


class UndeliveredEvent(msgspec.Struct, frozen=True):
    """An event that was set aside for good: `blocked`, `gone`, `refused`; or a `gap`, where events were missing."""

    chat_id: int
    user_id: str
    place: str
    event_id: str
    event_type: str
    kind: str
    reason: str
    at: datetime


class Code(msgspec.Struct, frozen=True):
    """Whom a one-time code stands for."""

    user_id: str
    name: str


class Store(Protocol):
    """The bot's memory. Every method may raise StateUnavailable."""

    def prepare(self) -> None:
        """Make the tables, or bring them up to this code. Raises StateError for those of newer code."""

    def check(self) -> None:
        """For those who read beside a bot: StateError when the tables are missing, older or newer. Changes nothing."""

    def prepare_beside_bot(self, *, make: bool = False) -> None:
        """For those who write beside a bot: upgrade the tables; with `make`, also make missing ones.

        StateError when a running bot works on older tables.
        """

    def lock(self) -> None:
        """Be the only bot on this state until it is closed; StateTaken when another one is."""

    def is_taken(self) -> bool:
        """Whether a bot works on this state now."""

    def close(self) -> None:
        """Let go of everything; the next use opens it again."""

    def links(self) -> list[Link]:
        """All links, the oldest first."""

    def link(self, chat_id: int) -> Link | None:
        """The link of a chat."""

    def put_link(self, link: Link) -> None:
        """Link a chat, or link it anew."""

    def unlink(self, chat_id: int) -> bool:
        """Forget a chat; whether there was one. What was set aside stays on record."""

    def move(self, link: Link, place: str, *, delivered: bool = False) -> None:
        """Everything up to this place is done with; `delivered` if that took a message, which got there.

        Here and below nothing moves when the link is no longer where it was: then it was made anew meanwhile.
        """

    def set_aside(self, link: Link, failure: UndeliveredEvent, place: str | None) -> None:
        """Record what nobody will get, and move to the place behind it."""

    def count_passed(self, link: Link, place: str) -> None:
        """Move past an event while the chat is muted, and count it."""

    def told_passed(self, link: Link, failure: UndeliveredEvent | None = None) -> None:
        """The chat was told how many events had passed; or it cannot be, and that is recorded."""

    def mute(self, chat_id: int, until: datetime | None) -> None:
        """Let events pass until then; None ends it."""

    def speak(self, chat_id: int, language: str) -> None:
        """Remember the language of a chat."""

    def reached(self, chat_id: int) -> None:
        """The chat can be reached again."""

    def lost(self, chat_id: int, reason: str) -> None:
        """The chat can no longer be reached."""

    def renumber(self, chat_id: int, new_chat_id: int) -> None:
        """A group is to be found under another number; what was set aside goes with it."""

    def failures(
        self, chat_id: int | None = None, *, user_id: str | None = None, limit: int = 100
    ) -> list[UndeliveredEvent]:
        """What was set aside, the newest first."""

    def count_failures(
        self, chat_id: int | None = None, *, user_id: str | None = None, since: datetime | None = None
    ) -> int:
        """How much was set aside."""

    def forget_failures(self, before: datetime) -> int:
        """Remove records that are older than this; how many there were."""

    def put_code(self, code_hash: str, code: Code, expires_at: datetime) -> None:
        """Keep a code, by its hash; one of the same user that was not used ends."""

    def take_code(self, code_hash: str, now: datetime) -> Code | None:
        """Whom the code stands for, once; None for one that is wrong, used or expired."""

    def offset(self) -> int:
        """The number of the first update that was not dealt with."""

    def save_offset(self, offset: int) -> None:
        """Updates before this number are dealt with."""

    def beat(self, now: datetime) -> None:
        """The bot works at this moment."""

    def last_beat(self) -> datetime | None:
        """When the bot last said that it works; None when none ever did."""

    def trouble(self) -> str | None:
        """What is wrong and what to do, as a running bot has last noted it; None when nothing is."""

    def note_trouble(self, said: str | None, about: str = FEED) -> None:
        """This is wrong with the feed, or with updates; or nothing is any more."""


def muted_until(now: datetime, time: timedelta | None) -> datetime:
    """When a mute of this length ends; for ever without one, or with one beyond all calendars."""
    try:
        return FOR_EVER if time is None else min(now + time, FOR_EVER)
    except OverflowError:
        return FOR_EVER
