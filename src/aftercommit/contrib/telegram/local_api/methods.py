"""The Bot API methods of this server: from a call's arguments to its result, or to Telegram's error."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aftercommit.contrib.telegram.local_api.arguments import (
    Refusal,
    as_json,
    bad_request,
    from_json,
    integer,
    is_true,
    too_many_requests,
)
from aftercommit.contrib.telegram.local_api.limits import RateLimit
from aftercommit.contrib.telegram.local_api.markup import (
    CannotParse,
    Entity,
    Formatted,
    checked_link,
    formatted,
    parse_html,
    utf16_length,
)
from aftercommit.contrib.telegram.local_api.messenger import Messenger
from aftercommit.contrib.telegram.local_api.records import Call, Chat, marked

LONGEST_TEXT: Final = 4096
_LONGEST_SOURCE: Final = 1 << 15
# Control characters become spaces, except line breaks; carriage returns are dropped.
_CONTROLS: Final = {code: " " for code in range(32) if code not in (10, 13)} | {13: None}
_COMMAND_NAME: Final = re.compile(r"[a-z0-9_]{1,32}")
_MOST_COMMANDS: Final = 100
_ACTIONS: Final = frozenset(
    "typing upload_photo record_video upload_video record_voice upload_voice upload_document choose_sticker "
    "find_location record_video_note upload_video_note".split()
)
_ENTITY_TYPES: Final = frozenset(
    "bold italic underline strikethrough spoiler blockquote expandable_blockquote code pre text_link custom_emoji "
    "mention hashtag cashtag bot_command url email phone_number".split()
)
_MARKUPS: Final = ("inline_keyboard", "keyboard", "remove_keyboard", "force_reply")


class Methods:
    """All methods except getUpdates, which waits. A method may record results on its call."""

    def __init__(self, messenger: Messenger, rate: RateLimit) -> None:
        self._messenger = messenger
        self._rate = rate
        self.webhook = ""
        self.commands: dict[tuple[str, str], Sequence[Mapping[str, str]]] = {}
        self.known: Mapping[str, Callable[[Call], Any]] = {
            "getme": self._get_me,
            "sendmessage": self._send_message,
            "editmessagetext": self._edit_message_text,
            "sendchataction": self._send_chat_action,
            "setmycommands": self._set_my_commands,
            "getmycommands": self._get_my_commands,
            "deletemycommands": self._delete_my_commands,
            "setwebhook": self._set_webhook,
            "deletewebhook": self._delete_webhook,
            "getwebhookinfo": self._get_webhook_info,
            "getchat": self._get_chat,
        }

    def _get_me(self, call: Call) -> dict[str, Any]:
        can = ("can_join_groups", "can_read_all_group_messages", "supports_inline_queries")
        return {
            **self._messenger.bot,
            **dict.fromkeys(can, False),
            "can_connect_to_business": False,
            "has_main_web_app": False,
        }

    def _send_message(self, call: Call) -> dict[str, Any]:
        content = _content(call.arguments)
        markup = _reply_markup(call.arguments)
        with self._messenger.changes.lock:
            chat = self._reachable(call)
            reply_to = self._reply_to(call.arguments, chat)
            topic = integer(call.arguments, "message_thread_id", 0, 0, 1 << 31) or None
            topics = {message.topic for message in self._messenger.messages(chat.chat_id)}
            if topic is not None and topic not in topics:
                raise bad_request("message thread not found")
            self._count(chat)
            send = self._messenger.send
            message = send(chat.chat_id, content, reply_markup=markup, reply_to=reply_to, topic=topic)
            call.message_id, call.was_taken = message.message_id, True
            return self._messenger.told(message)

    def _edit_message_text(self, call: Call) -> dict[str, Any]:
        content = _content(call.arguments)
        markup = _reply_markup(call.arguments)
        with self._messenger.changes.lock:
            chat = self._reachable(call)
            number = integer(call.arguments, "message_id", 0, 0, 1 << 31)
            if not number:
                raise bad_request("message identifier is not specified")
            message = self._messenger.message(chat.chat_id, number)
            if message is None:
                raise bad_request("message to edit not found")
            if not message.from_bot:
                raise bad_request("message can't be edited")
            if (message.text, message.entities, message.reply_markup) == (*content, markup):
                raise bad_request(
                    "message is not modified: specified new message content and reply markup are exactly the same as a "
                    "current content and reply markup of the message"
                )
            self._count(chat)
            self._messenger.edit(message, content, markup)
            call.message_id, call.was_taken = message.message_id, True
            return self._messenger.told(message)

    def _send_chat_action(self, call: Call) -> bool:
        if call.arguments.get("action", "").lower() not in _ACTIONS:
            raise bad_request("wrong parameter action in request")
        self._reachable(call)
        return True

    def _get_chat(self, call: Call) -> dict[str, Any]:
        chat = self._chat(call)
        return {**chat.told(), "accent_color_id": 0, "max_reaction_count": 11}

    def _set_my_commands(self, call: Call) -> bool:
        text = call.arguments.get("commands", "")
        commands = from_json(text) if text else []
        if not isinstance(commands, list):
            raise bad_request(
                "can't parse commands JSON object" if commands is None else "expected an Array of BotCommand"
            )
        if len(commands) > _MOST_COMMANDS:
            raise bad_request("BOT_COMMANDS_TOO_MUCH")
        self.commands[_scope(call.arguments)] = [_command(each) for each in commands]
        return True

    def _get_my_commands(self, call: Call) -> Sequence[Mapping[str, str]]:
        return self.commands.get(_scope(call.arguments), [])

    def _delete_my_commands(self, call: Call) -> bool:
        self.commands.pop(_scope(call.arguments), None)
        return True

    def _set_webhook(self, call: Call) -> bool:
        url = call.arguments.get("url", "")
        if url and not url.startswith("https://"):
            raise bad_request("bad webhook: An HTTPS URL must be provided for webhook")
        self.set_webhook(url)
        return True

    def set_webhook(self, url: str) -> None:
        """Set the webhook; "" deletes it. Nothing is sent to it: getUpdates is refused as long as there is one."""
        with self._messenger.changes.lock:
            self.webhook = url
            self._messenger.changes.tell()

    def _delete_webhook(self, call: Call) -> bool:
        self.set_webhook("")
        if is_true(call.arguments, "drop_pending_updates"):
            self._messenger.confirm(1 << 31)
        return True

    def _get_webhook_info(self, call: Call) -> dict[str, Any]:
        return {
            "url": self.webhook,
            "has_custom_certificate": False,
            "pending_update_count": len(self._messenger.updates),
        }

    def _chat(self, call: Call) -> Chat:
        if not call.arguments.get("chat_id"):
            raise bad_request("chat_id is empty")
        chat = None if call.chat_id is None else self._messenger.chats.get(call.chat_id)
        if chat is None:
            raise bad_request("chat not found")
        return chat

    def _reachable(self, call: Call) -> Chat:
        chat = self._chat(call)
        if chat.chat_id in self._messenger.blocked:
            raise Refusal(403, "Forbidden: bot was blocked by the user")
        return chat

    def _count(self, chat: Chat) -> None:
        wait = self._rate.take(chat.chat_id, time.monotonic())
        if wait is not None:
            raise too_many_requests(wait)

    def _reply_to(self, arguments: Mapping[str, str], chat: Chat) -> int | None:
        parameters = from_json(arguments.get("reply_parameters", "")) or {}
        given: Any = parameters.get("message_id") if isinstance(parameters, dict) else None
        number = given if isinstance(given, int) else integer(arguments, "reply_to_message_id", 0, 0, 1 << 31)
        if not number or self._messenger.message(chat.chat_id, number) is not None:
            return number or None
        forgiven = isinstance(parameters, dict) and parameters.get("allow_sending_without_reply") is True
        if forgiven or is_true(arguments, "allow_sending_without_reply"):
            return None
        raise bad_request("message to be replied not found")


def chat_named(arguments: Mapping[str, str], chats: Mapping[int, Chat]) -> int | None:
    """The chat of a call, by number or @username."""
    named = arguments.get("chat_id", "").strip()
    if named.startswith("@"):
        return next((chat.chat_id for chat in chats.values() if chat.username == named[1:]), None)
    try:
        return int(named)
    except ValueError:
        return None


def _content(arguments: Mapping[str, str]) -> Formatted:
    """The text of a message, parsed by its parse mode and checked against Telegram's limits."""
    source = arguments.get("text", "").translate(_CONTROLS)
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        raise bad_request("strings must be encoded in UTF-8") from None
    if size > _LONGEST_SOURCE:
        raise bad_request("text is too long")
    mode = arguments.get("parse_mode", "").lower()
    if mode == "html":
        try:
            parsed = parse_html(source)
        except CannotParse as problem:
            raise bad_request(f"can't parse entities: {problem}") from None
    elif mode in ("", "none"):
        parsed = Formatted(source, _entities(arguments.get("entities", "")))
    elif mode in ("markdown", "markdownv2"):
        raise bad_request(f"unsupported parse_mode: this local server supports HTML, not {mode}")
    else:
        raise bad_request("unsupported parse_mode")
    content = formatted(parsed.text, parsed.entities)
    if not content.text:
        raise bad_request("message text is empty")
    if utf16_length(content.text) > LONGEST_TEXT:
        raise bad_request("message is too long")
    return Formatted(content.text, marked(*content))


def _entities(text: str) -> tuple[Entity, ...]:
    """Entities that the bot has computed."""
    given = from_json(text) if text else []
    return tuple(_entity(each) for each in given) if isinstance(given, list) else ()


def _entity(given: Any) -> Entity:
    match given:
        case {"type": str(kind), "offset": int(offset), "length": int(length)} if offset >= 0 and length > 0:
            if kind not in _ENTITY_TYPES:
                raise bad_request("can't parse MessageEntity: unsupported type specified")
            argument = given.get("url") or given.get("language") or given.get("custom_emoji_id")
            return Entity(kind, offset, length, argument if isinstance(argument, str) else None)
    raise bad_request("can't parse MessageEntity: expected an Object with type, offset and length")


def _reply_markup(arguments: Mapping[str, str]) -> Mapping[str, Any] | None:
    text = arguments.get("reply_markup", "")
    if not text:
        return None
    markup = from_json(text)
    if markup is None:
        raise bad_request("can't parse reply keyboard markup JSON object")
    if not isinstance(markup, dict):
        raise bad_request("object expected as reply markup")
    rows: Any = next((markup[name] for name in ("inline_keyboard", "keyboard") if name in markup), [])
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise bad_request("field of the type Array of Array of buttons expected as keyboard")
    if "inline_keyboard" in markup:
        for button in (button for row in rows for button in row):
            _check_button(button)
    return markup if any(name in markup for name in _MARKUPS) else None


def _check_button(button: object) -> None:
    match button:
        case {"text": str(text), "url": str(url)} if text:
            if checked_link(url) is None:
                raise bad_request(f"inline keyboard button URL '{url:.200}' is invalid: Wrong HTTP URL")
        case {"text": str(text), "callback_data": str(data)} if text and 1 <= len(data.encode()) <= 64:
            pass
        case {"text": str(), "callback_data": str()}:
            raise bad_request("BUTTON_DATA_INVALID")
        case _:
            raise bad_request("text buttons are unallowed in the inline keyboard")


def _scope(arguments: Mapping[str, str]) -> tuple[str, str]:
    scope = from_json(arguments.get("scope", "")) or {"type": "default"}
    if not isinstance(scope, dict) or "type" not in scope:
        raise bad_request("can't parse BotCommandScope: expected an Object with a type")
    return as_json(dict(sorted(scope.items()))), arguments.get("language_code", "")


def _command(given: object) -> dict[str, str]:
    match given:
        case {"command": str(name), "description": str(description)}:
            name = name.removeprefix("/")
            if _COMMAND_NAME.fullmatch(name) is None:
                raise bad_request("BOT_COMMAND_INVALID")
            if not 1 <= len(description) <= 256:
                raise bad_request("BOT_COMMAND_DESCRIPTION_INVALID")
            return {"command": name, "description": description}
    raise bad_request("can't parse BotCommand: expected an Object with command and description")
