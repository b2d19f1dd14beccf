"""What people write to the bot, out of the updates that Telegram sends. Pure: JSON in, commands out."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

_GONE: Final = frozenset({"kicked", "left"})


class ChatCommand(msgspec.Struct, frozen=True):
    """A command for this bot; an empty `name` is text that is none. `topic` is where in a forum it was written."""

    chat_id: int
    name: str
    argument: str
    language: str | None
    private: bool
    topic: int | None = None


class Membership(msgspec.Struct, frozen=True):
    """The bot was blocked, or put out of a group; or it is welcome again."""

    chat_id: int
    member: bool


class Renumbered(msgspec.Struct, frozen=True):
    """A group has become a supergroup."""

    chat_id: int
    new_chat_id: int


Heard: TypeAlias = ChatCommand | Membership | Renumbered


def heard(update: Mapping[str, Any], bot_name: str) -> Heard | None:
    """What an update says to this bot; None when it says nothing."""
    member = update.get("my_chat_member")
    if isinstance(member, dict):
        chat_id = _chat_id(member)
        status = _part(member, "new_chat_member").get("status")
        return None if chat_id is None else Membership(chat_id, status not in _GONE)
    message = update.get("message")
    return _message(message, bot_name) if isinstance(message, dict) else None


def _message(message: Mapping[str, Any], bot_name: str) -> Heard | None:
    chat_id = _chat_id(message)
    if chat_id is None:
        return None
    moved_to = message.get("migrate_to_chat_id")
    if isinstance(moved_to, int):
        return Renumbered(chat_id, moved_to)
    text, sender = message.get("text"), _part(message, "from")
    # An administrator who writes as the group itself seems to be a bot, Telegram's own.
    is_group = _part(message, "sender_chat").get("id") == chat_id
    if not isinstance(text, str) or (sender.get("is_bot") is True and not is_group):
        return None
    private = _part(message, "chat").get("type") == "private"
    name, addressed, argument = _split(text, bot_name)
    # In a group others talk to each other and to other bots: only what names this one is meant for it.
    if not private and not (addressed and name):
        return None
    code = sender.get("language_code")
    return ChatCommand(chat_id, name, argument, code if isinstance(code, str) else None, private, _topic(message))


def _topic(message: Mapping[str, Any]) -> int | None:
    """The topic of a forum; in other groups a thread is only a chain of replies."""
    thread = message.get("message_thread_id")
    is_topic = message.get("is_topic_message") is True and isinstance(thread, int) and not isinstance(thread, bool)
    return thread if is_topic else None


def _split(text: str, bot_name: str) -> tuple[str, bool, str]:
    """Name and argument of a command, and whether it names this bot; no name when it is no command of ours."""
    word, argument = (*text.split(maxsplit=1), "", "")[:2]
    if not word.startswith("/"):
        return "", False, text
    name, _, addressee = word[1:].partition("@")
    addressed = addressee.lower() == bot_name.lower()
    if addressee and not addressed:
        return "", False, text
    return name.lower(), addressed, argument.strip()


def _chat_id(message: Mapping[str, Any]) -> int | None:
    found = _part(message, "chat").get("id")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _part(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = message.get(name)
    return found if isinstance(found, dict) else {}
