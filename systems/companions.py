"""The Telegram bot at work beside the site, without Telegram: a local Bot API server with sample chats, and the bot."""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx

from aftercommit.application import Companions
from aftercommit.client import Pace
from aftercommit.clock import utc_now
from aftercommit.contrib.telegram import Bot, Link, bot_settings, open_store
from aftercommit.contrib.telegram.local_api import BotApiLimits, BotApiServer
from aftercommit.embedded import default_folder
from aftercommit.errors import StateTaken, StateUnavailable
from aftercommit.postgres.database import Database
from aftercommit.server.http_server import AddressTaken
from aftercommit.service import Service, until_one_ends
from aftercommit.telemetry import log_event
from systems.tasks.api import REDEEM
from systems.tasks.feeds import EVENTS_PATH
from systems.tasks.sample import PEOPLE
from systems.tasks.story import ADA, EDSGER, GRACE
from systems.tasks.system import BOARD, tasks

logger = logging.getLogger("aftercommit.up")

CHATS: Final = "chats"
NAME: Final = "Tasks bot"
# Telegram lets a few through that come close together, and so does this one. A test's own server does not.
LIMITS: Final = BotApiLimits(burst=5)
# Chat by user; each person has set their Telegram to a language of their own.
LINKED: Final[Mapping[int, int]] = {ADA: 700_000_001, GRACE: 700_000_002, EDSGER: 700_000_003}
LANGUAGES: Final[Mapping[int, str]] = {ADA: "en", GRACE: "en", EDSGER: "de"}
JOURNAL: Final = "chats.jsonl"
# The site is on the same machine, and somebody is watching.
PACE: Final = Pace(poll=0.5, idle_longest=1.0)
_LARGEST_PORT: Final = 65_535
_LOOK_AGAIN: Final = 0.2
_TRY_AGAIN: Final = 3.0


def companions(database: Database, port: int) -> Companions:
    """The Bot API server on the next port, or on a free one; and the bot, as soon as the site answers."""
    _reach_this_machine_directly()
    telegram = _listening(port + 1 if 0 < port < _LARGEST_PORT else 0, default_folder() / JOURNAL)
    for user, chat_id in LINKED.items():
        if chat_id not in telegram.messenger.chats:
            telegram.open_chat(PEOPLE[user][0], chat_id=chat_id, language=LANGUAGES[user])
    return Companions(
        addresses={CHATS: telegram.url},
        about={
            "board of the tasks": f"{{url}}{BOARD}",
            "figures": "{url}/metrics",
            "chats of the bot": f"{telegram.url} (a local Telegram: nothing leaves this machine)",
        },
        commands={"look at the bot": f"bot status --state '{database.safe_dsn}'"},
        services=lambda url: _beside(database, url, telegram),
    )


def _beside(database: Database, url: str, telegram: BotApiServer) -> list[Service]:
    """What runs, now that it is known where the site is: the chats lead back there."""
    telegram.lead_back({"aftercommit": f"{url}/", tasks.title: f"{url}{BOARD}"})
    return [telegram, BotBeside(database, url, telegram)]


def _reach_this_machine_directly() -> None:
    """Where the environment names a proxy, site and Bot API would be looked for behind it."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = ",".join(filter(None, (given, "127.0.0.1,localhost,::1")))


def _listening(port: int, journal: Path) -> BotApiServer:
    try:
        return BotApiServer(port=port, first_name=NAME, limits=LIMITS, journal=journal)
    except AddressTaken:
        return BotApiServer(port=0, first_name=NAME, limits=LIMITS, journal=journal)


class BotBeside(Service):
    """The bot of the tasks. It asks the site once when it starts, so it starts when the site is there to answer."""

    name = "bot"

    def __init__(self, database: Database, url: str, telegram: BotApiServer) -> None:
        """Not started; its state is in the same database."""
        super().__init__()
        self._url = url
        # What the environment says counts: a credential, when the site asks for one.
        given: dict[str, str | None] = {
            "token": telegram.token,
            "api": telegram.url,
            "feed": f"{url}{EVENTS_PATH}",
            "page": f"{url}{BOARD}/{{task_id}}",
            "redeem": f"{url}{REDEEM}",
            "state": database.dsn,
        }
        self.settings = bot_settings(given).told(pace=PACE)

    async def run(self) -> None:
        """Until stopped."""
        await self._until_served()
        if self.stopping.is_set():
            return
        said = ""
        while not self.stopping.is_set():
            try:
                await self._run_bot()
            except (StateTaken, StateUnavailable) as problem:
                # One that was killed holds its state until the database notices; another `up` may hold it for long.
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
        """Once, before anybody has talked to this bot: whoever is unlinked later stays so."""
        store = open_store(self.settings.state)
        try:
            # Locked first: another `up` of older code may be at work on these tables.
            store.lock()
            store.prepare()
            if store.links() or store.offset():
                return
            for user, chat_id in LINKED.items():
                name, language = PEOPLE[user][0], LANGUAGES[user]
                store.put_link(Link(chat_id, str(user), name, language, None, utc_now()))
        finally:
            store.close()
