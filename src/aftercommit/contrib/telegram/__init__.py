"""A Telegram bot for a feed: links chats to users by one-time codes, and sends each chat its user's events, in order.

    bot = Bot(BotSettings(token="123:ABC…", feed="https://…/tasks/me/events", credential="act_…"))
    async with bot: …                       # or: aftercommit bot

Decisions are pure (`answers`, `pacing`, `outage`, `markup`, `updates`), `aftercommit.client` reads the feed, and
`states` stores what must survive. Needs `aftercommit[telegram]`.

`BotApiServer` is a local Bot API server with fault injection, for tests. It needs `aftercommit[serve]`.
"""

from typing import TYPE_CHECKING

from aftercommit.contrib.telegram.bot import Bot
from aftercommit.contrib.telegram.linking import issue_code
from aftercommit.contrib.telegram.markup import Html
from aftercommit.contrib.telegram.pacing import Pacing
from aftercommit.contrib.telegram.settings import BotSettings, FeedNames, bot_settings
from aftercommit.contrib.telegram.state import Code, Link, UndeliveredEvent
from aftercommit.contrib.telegram.states import open_store
from aftercommit.contrib.telegram.states.sql import Store
from aftercommit.contrib.telegram.texts import Texts
from aftercommit.lazy import lazy

if TYPE_CHECKING:
    from aftercommit.contrib.telegram.local_api import (
        TOKEN,
        Blocked,
        BotApiLimits,
        BotApiServer,
        Call,
        Chat,
        ChatError,
        ChatNotFound,
        Drop,
        Entity,
        Fault,
        Hang,
        Message,
        ServerError,
        Slow,
        Switch,
        TooManyRequests,
    )
else:
    __getattr__ = lazy(
        __name__,
        {
            "aftercommit.contrib.telegram.local_api": (
                "Blocked BotApiLimits BotApiServer Call Chat ChatError ChatNotFound Drop Entity Fault Hang Message "
                "ServerError Slow Switch TOKEN TooManyRequests".split()
            ),
        },
    )

__all__ = [
    "TOKEN",
    "Blocked",
    "Bot",
    "BotApiLimits",
    "BotApiServer",
    "BotSettings",
    "Call",
    "Chat",
    "ChatError",
    "ChatNotFound",
    "Code",
    "Drop",
    "Entity",
    "Fault",
    "FeedNames",
    "Hang",
    "Html",
    "Link",
    "Message",
    "Pacing",
    "ServerError",
    "Slow",
    "Store",
    "Switch",
    "Texts",
    "TooManyRequests",
    "UndeliveredEvent",
    "bot_settings",
    "issue_code",
    "open_store",
]
