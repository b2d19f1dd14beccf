"""The messenger: chats, messages, and updates for the bot. No HTTP here."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aftercommit.contrib.telegram.local_api.changes import Changes
from aftercommit.contrib.telegram.local_api.markup import Entity, Formatted
from aftercommit.contrib.telegram.local_api.records import ANONYMOUS, Chat, Message, Update, marked
from aftercommit.errors import AftercommitError

DEFAULT_UPDATES: Final = frozenset({"message", "my_chat_member"})
MOST_PENDING: Final = 10_000
MOST_MESSAGES: Final = 20_000
_FIRST_CHAT: Final = 700_000_001
_FIRST_GROUP: Final = -1_000_000_000_001
_LONGEST_NAME: Final = 64


class ChatError(AftercommitError):
    """A chat of the local Bot API server cannot be created or used this way."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The bot has confirmed all updates below this one."""

    before: int


@dataclass(slots=True)
class Past:
    """The data of a messenger, as restored from a journal."""

    chats: dict[int, Chat] = field(default_factory=dict)
    blocked: set[int] = field(default_factory=set)
    messages: dict[int, dict[int, Message]] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    next_update: int = 0


class Messenger:
    """Chats and messages. Safe to use from any thread."""

    def __init__(self, changes: Changes, bot: Mapping[str, Any]) -> None:
        """`bot` is the bot's own account."""
        self.changes = changes
        self.bot = dict(bot)
        self.chats: dict[int, Chat] = {}
        self.blocked: set[int] = set()
        self.allowed = DEFAULT_UPDATES
        self.updates: list[Update] = []
        self._messages: dict[int, list[Message]] = {}
        self._next_chat = _FIRST_CHAT
        self._next_message = 1
        # A bot may have stored its offset: a new server must not start below it.
        self.next_update = int(time.time()) % (1 << 30)

    def restore(self, past: Past) -> None:
        """Load earlier data into a new messenger."""
        with self.changes.lock:
            self.chats, self.blocked, self.updates = dict(past.chats), set(past.blocked), list(past.updates)
            self._messages = {chat: list(past.messages.get(chat, {}).values()) for chat in past.chats}
            numbers = [number for messages in past.messages.values() for number in messages]
            self._next_message = max(numbers, default=0) + 1
            latest = max((update.update_id for update in past.updates), default=0)
            self.next_update = max(self.next_update, past.next_update, latest + 1)

    def open(
        self,
        first_name: str,
        *,
        chat_id: int | None = None,
        last_name: str | None = None,
        username: str | None = None,
        language: str | None = None,
    ) -> Chat:
        """Open a chat with the bot, without messages."""
        if not first_name.strip() or len(first_name) > _LONGEST_NAME:
            raise ChatError(f"the first name {first_name!r:.80} must have 1 to 64 characters")
        with self.changes.lock:
            number = self._free_chat() if chat_id is None else chat_id
            if number in self.chats or not 0 < number < 1 << 52:
                raise ChatError(f"chat {number} exists, or is not between 1 and 2^52")
            return self._opened(Chat(number, first_name.strip(), last_name, username, language))

    def open_group(self, title: str, *, is_forum: bool = False) -> Chat:
        """Open a supergroup with the bot as a member."""
        with self.changes.lock:
            number = min([_FIRST_GROUP + 1, *self.chats]) - 1
            return self._opened(Chat(number, title, is_group=True, is_forum=is_forum))

    def _opened(self, chat: Chat) -> Chat:
        self.chats[chat.chat_id] = chat
        self._messages[chat.chat_id] = []
        self.changes.tell(chat)
        return chat

    def _free_chat(self) -> int:
        while self._next_chat in self.chats:
            self._next_chat += 1
        return self._next_chat

    def forget(self, chat_id: int) -> None:
        """Delete a chat; the bot then gets "chat not found"."""
        with self.changes.lock:
            self._known(chat_id)
            chat = self.chats.pop(chat_id)
            del self._messages[chat_id]
            self.blocked.discard(chat_id)
            self.changes.tell(chat)

    def messages(self, chat_id: int) -> Sequence[Message]:
        """All messages of a chat, oldest first."""
        with self.changes.lock:
            return list(self._messages.get(chat_id, ()))

    def message(self, chat_id: int, message_id: int) -> Message | None:
        """One message, if it exists."""
        with self.changes.lock:
            return next((each for each in self._messages.get(chat_id, ()) if each.message_id == message_id), None)

    def write(self, chat_id: int, text: str, *, topic: int | None = None, is_anonymous: bool = False) -> Message:
        """A message to the bot; in a group, from a member or an anonymous administrator."""
        with self.changes.lock:
            self._known(chat_id)
            if chat_id in self.blocked:
                raise ChatError(f"the bot is blocked in chat {chat_id}: unblock it before writing")
            if not text.strip():
                raise ChatError("the message is empty")
            text = text.strip()[:4096]
            chat = self.chats[chat_id]
            if (topic is not None and not chat.is_forum) or (is_anonymous and not chat.is_group):
                raise ChatError(f"chat {chat_id} is not a forum or not a group: use open_group")
            message = self._add(chat_id, text, marked(text), from_bot=False)
            message.topic, message.is_anonymous = topic, is_anonymous
            self._announce(message, "message", self.told(message))
            return message

    def send(
        self,
        chat_id: int,
        content: Formatted,
        *,
        reply_markup: Mapping[str, Any] | None = None,
        reply_to: int | None = None,
        topic: int | None = None,
    ) -> Message:
        """A message from the bot."""
        with self.changes.lock:
            message = self._add(chat_id, content.text, content.entities, from_bot=True)
            message.reply_markup, message.reply_to, message.topic = reply_markup, reply_to, topic
            self.changes.tell(message)
            return message

    def edit(self, message: Message, content: Formatted, reply_markup: Mapping[str, Any] | None) -> None:
        """The bot edits its message."""
        with self.changes.lock:
            message.text, message.entities = content
            message.reply_markup = reply_markup
            message.edit_date = int(time.time())
            self.changes.tell(message)

    def block(self, chat_id: int, blocked: bool = True) -> None:
        """Block or unblock the bot; it gets an update about it, as at Telegram."""
        with self.changes.lock:
            self._known(chat_id)
            if (chat_id in self.blocked) is blocked:
                return
            (self.blocked.add if blocked else self.blocked.discard)(chat_id)
            before, after = ("member", "kicked") if blocked else ("kicked", "member")
            chat = self.chats[chat_id]
            content = {
                "chat": chat.told(),
                "from": chat.user(),
                "date": int(time.time()),
                "old_chat_member": self._membership(before),
                "new_chat_member": self._membership(after),
            }
            self._announce(chat, "my_chat_member", content)

    def _membership(self, status: str) -> dict[str, Any]:
        return {"user": self.bot, "status": status, **({"until_date": 0} if status == "kicked" else {})}

    def confirm(self, offset: int) -> None:
        """Confirm all updates below this number; a negative number keeps only the last ones."""
        with self.changes.lock:
            before = len(self.updates)
            if offset < 0:
                self.updates = self.updates[offset:]
            elif offset > 0:
                self.updates = [update for update in self.updates if update.update_id >= offset]
            if len(self.updates) < before:
                self.changes.tell(Seen(self.updates[0].update_id if self.updates else self.next_update))

    def allow(self, kinds: Iterable[str]) -> None:
        """Set the kinds of updates for the bot; none means the default."""
        with self.changes.lock:
            self.allowed = frozenset(kinds) or DEFAULT_UPDATES

    def told(self, message: Message) -> dict[str, Any]:
        """A message in the Bot API's format."""
        chat = self.chats[message.chat_id]
        said: dict[str, Any] = {
            "message_id": message.message_id,
            "from": self.bot if message.from_bot else chat.user(),
            "chat": chat.told(),
            "date": message.date,
        }
        if message.is_anonymous:
            said |= {"from": ANONYMOUS, "sender_chat": chat.told()}
        if message.topic is not None:
            said |= {"message_thread_id": message.topic, "is_topic_message": True}
        if message.edit_date is not None:
            said["edit_date"] = message.edit_date
        original = None if message.reply_to is None else self.message(message.chat_id, message.reply_to)
        if original is not None:
            said["reply_to_message"] = self.told(replace(original, reply_to=None))
        said["text"] = message.text
        if message.entities:
            said["entities"] = [entity.told() for entity in message.entities]
        if message.reply_markup is not None and "inline_keyboard" in message.reply_markup:
            said["reply_markup"] = message.reply_markup
        return said

    def _known(self, chat_id: int) -> None:
        if chat_id not in self.chats:
            raise ChatError(f"chat {chat_id} does not exist: open it first")

    def _add(self, chat_id: int, text: str, entities: tuple[Entity, ...], *, from_bot: bool) -> Message:
        message = Message(self._next_message, chat_id, from_bot, text, entities, int(time.time()), time.monotonic())
        self._next_message += 1
        self._messages[chat_id].append(message)
        del self._messages[chat_id][:-MOST_MESSAGES]
        return message

    def _announce(self, changed: Chat | Message, kind: str, content: Mapping[str, Any]) -> None:
        if kind not in self.allowed:
            self.changes.tell(changed)
            return
        update = Update(self.next_update, kind, content)
        self.updates = [*self.updates[-MOST_PENDING + 1 :], update]
        self.next_update += 1
        self.changes.tell(changed, update)
