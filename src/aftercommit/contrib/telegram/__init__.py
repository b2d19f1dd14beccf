"""A Telegram bot for a feed: links chats to users by one-time codes, and tells each chat its user's events, in order.

    bot = Bot(BotSettings(token="123:ABC…", feed="https://…/tasks/me/events", credential="act_…"))
    async with bot: …                       # or: aftercommit bot

What decides is pure (`answers`, `pacing`, `outage`, `markup`, `updates`); reading is done with `aftercommit.client`,
and what has to survive is in `state`. Needs `aftercommit[telegram]`.
"""

from aftercommit.contrib.telegram.bot import Bot
from aftercommit.contrib.telegram.linking import issue_code
from aftercommit.contrib.telegram.pacing import Pacing
from aftercommit.contrib.telegram.settings import BotSettings, FeedNames, bot_settings
from aftercommit.contrib.telegram.state import Code, Link, Store, UndeliveredEvent
from aftercommit.contrib.telegram.states import open_store
from aftercommit.contrib.telegram.texts import Texts

__all__ = [
    "Bot",
    "BotSettings",
    "Code",
    "FeedNames",
    "Link",
    "Pacing",
    "Store",
    "Texts",
    "UndeliveredEvent",
    "bot_settings",
    "issue_code",
    "open_store",
]
