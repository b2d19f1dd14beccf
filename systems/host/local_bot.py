"""A system's Telegram bot beside the site, with a local Bot API server and sample chats instead of Telegram.

Only `aftercommit up` runs it.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import httpx

from aftercommit import Companions, Database, Service, log_event, until_one_ends
from aftercommit.client import Pace
from aftercommit.contrib.telegram import Bot, BotApiLimits, BotApiServer, Link, bot_settings, open_store
from aftercommit.embedded import default_folder
from aftercommit.errors import StateTaken, StateUnavailable
from aftercommit.server import AddressTaken
from systems.host.system import SampleBot, System

logger = logging.getLogger("aftercommit.up")

CHATS: Final = "chats"
# Telegram allows short bursts. Servers in tests do not.
LIMITS: Final = BotApiLimits(burst=5)
JOURNAL: Final = "chats.jsonl"
# Quick polls: the site is on the same machine.
PACE: Final = Pace(poll=0.5, idle_longest=1.0)
_LARGEST_PORT: Final = 65_535
_LOOK_AGAIN: Final = 0.2
_TRY_AGAIN: Final = 3.0


def bot_beside(systems: Sequence[System], database: Database, port: int) -> Companions:
    """Start the Bot API server on the next port or a free one, and the bot as soon as the site answers.

    One bot runs: that of the first system that has one.
    """
    system, bot = next((system, system.bot) for system in systems if system.bot is not None)
    _reach_this_machine_directly()
    telegram = _listening(port + 1 if 0 < port < _LARGEST_PORT else 0, bot.name)
    for chat in bot.chats:
        if chat.chat_id not in telegram.messenger.chats:
            telegram.open_chat(chat.name, chat_id=chat.chat_id, language=chat.language)

    def services(url: str) -> list[Service]:
        # The site's address, for the links back from the chats, is known only now.
        telegram.lead_back({"aftercommit": f"{url}/", system.title: f"{url}{bot.home}"})
        return [telegram, LocalBot(bot, database, url, telegram)]

    return Companions(
        addresses={CHATS: telegram.url},
        about={
            f"{system.name} page": f"{{url}}{bot.home}",
            "metrics": "{url}/metrics",
            "bot chats": f"{telegram.url} (a local Telegram: nothing leaves this machine)",
        },
        commands={"show the bot's state": f"bot status --state '{database.safe_dsn}'"},
        services=services,
    )


def _reach_this_machine_directly() -> None:
    """Keep requests to this machine away from a proxy that the environment may name."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = ",".join(filter(None, (given, "127.0.0.1,localhost,::1")))


def _listening(port: int, name: str) -> BotApiServer:
    journal = default_folder() / JOURNAL
    try:
        return BotApiServer(port=port, first_name=name, limits=LIMITS, journal=journal)
    except AddressTaken:
        return BotApiServer(port=0, first_name=name, limits=LIMITS, journal=journal)


class LocalBot(Service):
    """The bot of one system. It checks the site once when it starts, so this waits until the site answers."""

    name = "bot"

    def __init__(self, bot: SampleBot, database: Database, url: str, telegram: BotApiServer) -> None:
        """Not started. Its state is in the same database."""
        super().__init__()
        self._chats = bot.chats
        self._url = url
        # The environment may add a credential, if the site needs one.
        given: dict[str, str | None] = {
            "token": telegram.token,
            "api": telegram.url,
            "feed": f"{url}{bot.feed}",
            "page": f"{url}{bot.page}",
            "redeem": f"{url}{bot.redeem}",
            "state": database.dsn,
        }
        self.settings = replace(bot_settings(given), pace=PACE)

    async def run(self) -> None:
        """Run until stopped."""
        await self._until_served()
        if self.stopping.is_set():
            return
        said = ""
        while not self.stopping.is_set():
            try:
                await self._run_bot()
            except (StateTaken, StateUnavailable) as problem:
                # A killed bot holds its state until the database notices; another `up` may hold it longer.
                if str(problem) != said:
                    said = str(problem)
                    log_event(logger, logging.WARNING, "bot_waits", error=said, retry_in=_TRY_AGAIN)
                await self.pause(_TRY_AGAIN)

    async def _run_bot(self) -> None:
        await asyncio.to_thread(self._link_sample_chats)
        bot = await Bot(self.settings).start()
        try:
            await until_one_ends(self.stopping.wait(), bot.wait())
        finally:
            await bot.stop()

    async def _until_served(self) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            while not self.stopping.is_set():
                try:
                    if (await client.get(f"{self._url}/readyz")).status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass
                await self.pause(_LOOK_AGAIN)

    def _link_sample_chats(self) -> None:
        """Only before the bot's first use, so that a chat that was unlinked later stays unlinked."""
        store = open_store(self.settings.state)
        try:
            # Lock first: another `up` with older code may be using these tables.
            store.lock()
            store.prepare()
            if store.links() or store.offset():
                return
            for chat in self._chats:
                store.put_link(Link(chat.chat_id, chat.user, chat.name, chat.language, None, datetime.now(UTC)))
        finally:
            store.close()
