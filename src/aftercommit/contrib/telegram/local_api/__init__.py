"""A local Bot API server: run a Telegram bot against it over HTTP, look at its chats, and inject faults.

    async with BotApiServer() as telegram:
        chat = telegram.open_chat("Ada", language="en")
        telegram.write(chat, "/start")
        telegram.switch(TooManyRequests(retry_after=3), chat=chat, times=1)
        [message] = await telegram.messages(chat, 1)

Give the bot `telegram.url` instead of https://api.telegram.org, and `telegram.token`. Needs `aftercommit[serve]`.
"""

from aftercommit.contrib.telegram.local_api.limits import BotApiLimits
from aftercommit.contrib.telegram.local_api.markup import Entity
from aftercommit.contrib.telegram.local_api.messenger import ChatError
from aftercommit.contrib.telegram.local_api.records import Call, Chat, Message
from aftercommit.contrib.telegram.local_api.server import TOKEN, BotApiServer
from aftercommit.contrib.telegram.local_api.switches import (
    Blocked,
    ChatNotFound,
    Drop,
    Fault,
    Hang,
    ServerError,
    Slow,
    Switch,
    TooManyRequests,
)

__all__ = [
    "TOKEN",
    "Blocked",
    "BotApiLimits",
    "BotApiServer",
    "Call",
    "Chat",
    "ChatError",
    "ChatNotFound",
    "Drop",
    "Entity",
    "Fault",
    "Hang",
    "Message",
    "ServerError",
    "Slow",
    "Switch",
    "TooManyRequests",
]
