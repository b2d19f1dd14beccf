"""Reads Telegram's updates. Pure: JSON in, commands out."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

_GONE: Final = frozenset({"kicked", "left"})


class ChatCommand(msgspec.Struct, frozen=True):
    """A command for this bot; `name` is empty for other text. `topic` is the forum topic."""

    chat_id: int
    name: str
    argument: str
    language: str | None
    private: bool
    topic: int | None = None


class Membership(msgspec.Struct, frozen=True):
    """The bot was blocked or removed from a group, or was let in again."""

    chat_id: int
    member: bool


class Renumbered(msgspec.Struct, frozen=True):
    """A group has become a supergroup."""

    chat_id: int
    new_chat_id: int


Heard: TypeAlias = ChatCommand | Membership | Renumbered


def heard(update: Mapping[str, Any], bot_name: str) -> Heard | None:
    """The content of an update for this bot; None if there is none."""
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
    # Messages of anonymous administrators come from one of Telegram's own bots.
    is_group = _part(message, "sender_chat").get("id") == chat_id
    if not isinstance(text, str) or (sender.get("is_bot") is True and not is_group):
        return None
    private = _part(message, "chat").get("type") == "private"
    name, addressed, argument = _split(text, bot_name)
    # In groups, only messages that name this bot are meant for it.
    if not private and not (addressed and name):
        return None
    code = sender.get("language_code")
    return ChatCommand(chat_id, name, argument, code if isinstance(code, str) else None, private, _topic(message))


def _topic(message: Mapping[str, Any]) -> int | None:
    """The forum topic; in other groups, a thread is only a chain of replies."""
    thread = message.get("message_thread_id")
    is_topic = message.get("is_topic_message") is True and isinstance(thread, int) and not isinstance(thread, bool)
    return thread if is_topic else None


def _split(text: str, bot_name: str) -> tuple[str, bool, str]:
    """A command's name and argument, and whether it names this bot. The name is empty for other text."""
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
