"""Records of the messenger: chats, messages, updates, and the bot's calls."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aftercommit.contrib.telegram.local_api.markup import MOST_ENTITIES, Entity, utf16_length

_MARKED: Final = re.compile(
    r"(?P<url>https?://[^\s<>]*[^\s<>.,;:!?'\")\]])|(?<![\w/])(?P<command>/[a-zA-Z0-9_]{1,64}(?:@\w{3,32})?)(?![\w/])"
)
# No links or commands are detected inside these.
_CLOSED: Final = frozenset({"code", "pre", "text_link", "url", "bot_command"})

# The member who writes in groups, and Telegram's sender for anonymous administrators.
MEMBER: Final = 690_000_001
ANONYMOUS: Final = {"id": 1087968824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}


@dataclass(frozen=True, slots=True)
class Chat:
    """A private chat, whose id is also its user's id, or a group, whose title is `first_name`.

    In a group all messages come from one member or from an anonymous administrator.
    """

    chat_id: int
    first_name: str
    last_name: str | None = None
    username: str | None = None
    language_code: str | None = None
    is_group: bool = False
    is_forum: bool = False

    def told(self) -> dict[str, Any]:
        """The chat in the Bot API's format."""
        if self.is_group:
            forum = {"is_forum": True} if self.is_forum else {}
            return {"id": self.chat_id, "title": self.first_name, "type": "supergroup", **forum}
        return {"id": self.chat_id, **self._names(), "type": "private"}

    def user(self) -> dict[str, Any]:
        """The user in the Bot API's format."""
        if self.is_group:
            return {"id": MEMBER, "is_bot": False, "first_name": "Member"}
        language = {"language_code": self.language_code} if self.language_code else {}
        return {"id": self.chat_id, "is_bot": False, **self._names(), **language}

    def _names(self) -> dict[str, Any]:
        names = {"first_name": self.first_name, "last_name": self.last_name, "username": self.username}
        return {name: value for name, value in names.items() if value}


@dataclass(slots=True)
class Message:
    """A message from the bot or the user. `at` is the monotonic time of its arrival."""

    message_id: int
    chat_id: int
    from_bot: bool
    text: str
    entities: tuple[Entity, ...]
    date: int
    at: float
    edit_date: int | None = None
    reply_markup: Mapping[str, Any] | None = None
    reply_to: int | None = None
    topic: int | None = None
    is_anonymous: bool = False


@dataclass(slots=True)
class Call:
    """One request of the bot and its outcome.

    Times are monotonic seconds. `status` is None until there is an answer, and stays None if the connection was dropped
    or the client left. `was_taken` is true if the call sent or edited a message. `too_early` marks a call that ignored
    the wait of an earlier 429.
    """

    number: int
    method: str
    chat_id: int | None
    arguments: Mapping[str, str]
    received: float
    answered: float | None = None
    status: int | None = None
    description: str | None = None
    message_id: int | None = None
    was_taken: bool = False
    too_early: bool = False
    fault: str | None = None


@dataclass(slots=True)
class Update:
    """An update for getUpdates."""

    update_id: int
    kind: str
    content: Mapping[str, Any] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """The update in the Bot API's format."""
        return {"update_id": self.update_id, self.kind: self.content}


def marked(text: str, entities: tuple[Entity, ...] = ()) -> tuple[Entity, ...]:
    """The entities of a text, plus the links and commands that Telegram detects in it."""
    closed = [(each.offset, each.offset + each.length) for each in entities if each.type in _CLOSED]
    found = [
        Entity("url" if match["url"] else "bot_command", utf16_length(text[: match.start()]), utf16_length(match[0]))
        for match in _MARKED.finditer(text)
    ]
    free = [
        each for each in found if all(each.offset + each.length <= begin or each.offset >= end for begin, end in closed)
    ]
    together = sorted([*entities, *free], key=lambda each: (each.offset, -each.length))
    return tuple(together[:MOST_ENTITIES])
