"""A Telegram bot for a feed: links chats to users by one-time codes, and tells each chat its user's events, in order.

    bot = Bot(BotSettings(token="123:ABC…", feed="https://…/tasks/me/events", credential="act_…"))
    async with bot: …                       # or: aftercommit bot

What decides is pure (`answers`, `pacing`, `outage`, `markup`, `updates`); reading is done with `aftercommit.client`,
and what has to survive is in `state`. Needs `aftercommit[telegram]`.
"""

from aftercommit.telegram.bot import Bot
from aftercommit.telegram.linking import issue_code
from aftercommit.telegram.pacing import Pacing
from aftercommit.telegram.settings import BotSettings, FeedNames, bot_settings
from aftercommit.telegram.state import Code, Failure, Link, Store
from aftercommit.telegram.states import open_store
from aftercommit.telegram.texts import Texts

__all__ = [
    "Bot",
    "BotSettings",
    "Code",
    "Failure",
    "FeedNames",
    "Link",
    "Pacing",
    "Store",
    "Texts",
    "bot_settings",
    "issue_code",
    "open_store",
]
