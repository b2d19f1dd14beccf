"""The messenger as JSON: all of it, or the changes since a number."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aftercommit.contrib.telegram.local_api.exchange import Exchange
from aftercommit.contrib.telegram.local_api.messenger import Messenger
from aftercommit.contrib.telegram.local_api.records import Call, Chat, Message
from aftercommit.contrib.telegram.local_api.switches import Switchboard

_MESSAGES_SHOWN: Final = 500
_CALLS_SHOWN: Final = 50
_ARGUMENT_SHOWN: Final = 300


class MessengerView:
    """A read-only view of the messenger."""

    def __init__(self, messenger: Messenger, board: Switchboard, exchange: Exchange) -> None:
        self._messenger = messenger
        self._board = board
        self._exchange = exchange
        self._changes = messenger.changes
        # Links back to the site, by label.
        self.ways: Mapping[str, str] = {}

    def everything(self) -> dict[str, Any]:
        """Chats with their latest messages, faults, commands, the latest calls, and links back to the site."""
        with self._changes.lock:
            messenger = self._messenger
            latest = (message for chat in messenger.chats for message in messenger.messages(chat)[-_MESSAGES_SHOWN:])
            return {
                "number": self._changes.number,
                "bot": messenger.bot,
                "ways": [{"label": label, "href": address} for label, address in self.ways.items()],
                **self._always(),
                "chats": [self.chat(chat) for chat in messenger.chats.values()],
                "messages": [self.message(message) for message in latest],
                "calls": [self.call(call) for call in list(self._exchange.calls)[-_CALLS_SHOWN:]],
            }

    def news(self, number: int) -> dict[str, Any] | None:
        """Changes after this number; None if everything must be sent again."""
        with self._changes.lock:
            changed = self._changes.since(number)
            if changed is None:
                return None
            return {"number": self._changes.number, **self._always(), **self._parts(changed)}

    def _always(self) -> dict[str, Any]:
        # Small enough to send each time; the list of chats shows which are gone.
        commands = self._exchange.methods.commands.get(('{"type":"default"}', ""), [])
        switches = [switch.told() for switch in self._board.switches]
        return {"there": list(self._messenger.chats), "switches": switches, "commands": commands}

    def _parts(self, changed: Iterable[object]) -> dict[str, Any]:
        parts: dict[str, list[dict[str, Any]]] = {"chats": [], "messages": [], "calls": []}
        for each in changed:
            match each:
                case Chat() if each.chat_id in self._messenger.chats:
                    parts["chats"].append(self.chat(each))
                case Message() if each.chat_id in self._messenger.chats:
                    parts["messages"].append(self.message(each))
                case Call():
                    parts["calls"].append(self.call(each))
        return parts

    def chat(self, chat: Chat) -> dict[str, Any]:
        """One chat."""
        blocked = chat.chat_id in self._messenger.blocked
        return {"first_name": chat.first_name, **chat.told(), "language_code": chat.language_code, "blocked": blocked}

    def message(self, message: Message) -> dict[str, Any]:
        """One message and its author."""
        markup = {"reply_markup": message.reply_markup} if message.reply_markup else {}
        return {**self._messenger.told(message), **markup, "from_bot": message.from_bot}

    def call(self, call: Call) -> dict[str, Any]:
        """One call; long arguments are cut."""
        arguments = {name: value[:_ARGUMENT_SHOWN] for name, value in call.arguments.items()}
        took = None if call.answered is None else round(call.answered - call.received, 4)
        ago = time.monotonic() - call.received
        return {
            "call": call.number,
            "method": call.method,
            "chat_id": call.chat_id,
            "arguments": arguments,
            "at": round(time.time() - ago, 3),
            "took": took,
            "status": call.status,
            "description": call.description,
            "message_id": call.message_id,
            "was_taken": call.was_taken,
            "too_early": call.too_early,
            "fault": call.fault,
        }
