"""The bot: connects its state, Telegram and the feed, and runs until stopped."""

import asyncio
import logging
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

from aftercommit.clock import utc_now
from aftercommit.contrib.telegram.answers import ApiResult, Denied, Reply, reason_of, wait_after
from aftercommit.contrib.telegram.api import BotApi
from aftercommit.contrib.telegram.commands import Commands, described
from aftercommit.contrib.telegram.connector import Connector
from aftercommit.contrib.telegram.listening import Listening
from aftercommit.contrib.telegram.memory import Memory
from aftercommit.contrib.telegram.pacing import Pacing
from aftercommit.contrib.telegram.poller import STOP_SECONDS, Poller
from aftercommit.contrib.telegram.reader import BackendReader
from aftercommit.contrib.telegram.redaction import Redaction, without_userinfo
from aftercommit.contrib.telegram.sender import Sender
from aftercommit.contrib.telegram.settings import BotSettings
from aftercommit.contrib.telegram.state import UPDATES
from aftercommit.contrib.telegram.states import open_store
from aftercommit.contrib.telegram.states.sql import Store
from aftercommit.contrib.telegram.texts import FALLBACK
from aftercommit.errors import StateUnavailable, TelegramRefused
from aftercommit.service import Probe, Service, Waker, until_one_ends, wait_for_any
from aftercommit.telemetry import log_event
from aftercommit.text import readable

logger = logging.getLogger("aftercommit.bot")

_UPKEEP_SECONDS: Final = 3600.0
_BEAT_SECONDS: Final = 5.0


class Bot(Service):
    """Sends linked chats their users' events.

    At start it checks the backend once. If that fails, the bot still answers commands, and polls after `/connect`.
    """

    name = "bot"

    def __init__(
        self,
        settings: BotSettings,
        *,
        store: Store | None = None,
        pacing: Pacing | None = None,
        probe: Probe | None = None,
    ) -> None:
        """`store` and `pacing` replace the ones from the settings."""
        super().__init__(probe)
        self.settings = settings
        self._store = store
        self._pacing = pacing
        # Set when the bot is stopped, and when a part of it has failed.
        self._ending = Waker()
        self.username: str | None = None

    async def run(self) -> None:
        """Run until stopped. Raises StateTaken, StateError, or TelegramRefused if Telegram refuses the token."""
        settings = self.settings
        self._ending.clear()
        memory = Memory(self._store or open_store(settings.state), self._ending)
        passing_on = asyncio.create_task(self._pass_on())
        beating: asyncio.Task[None] | None = None
        addresses = (settings.api, settings.feed, settings.redeem)
        redaction = Redaction(settings.token, *addresses, credential=settings.credential)
        api = BotApi(settings.token, settings.api, seconds=settings.send_seconds, redaction=redaction)
        reader = BackendReader(settings, redaction)
        # Answers of servers are logged, and may quote secrets.
        logger.addFilter(redaction)
        try:
            await memory.open()
            beating = asyncio.create_task(self._beat(memory), name="beat")
            self.username = await self._introduce(api, memory)
            if self.username is not None:
                await self._work(memory, api, reader, self.username)
        except StateUnavailable:
            # Stopping does not wait for a database that is away.
            if not self.stopping.is_set():
                raise
        finally:
            passing_on.cancel()
            if beating is not None:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
            await reader.close()
            await api.close()
            await memory.close()
            logger.removeFilter(redaction)

    async def _work(self, memory: Memory, api: BotApi, reader: BackendReader, username: str) -> None:
        settings = self.settings
        sender = Sender(api, self._pacing or Pacing(since=time.monotonic()), self._ending)
        poller = Poller(settings, memory, reader, sender, probe=self._probe)
        connector = Connector(settings, memory, reader, poller, self._ending)
        commands = Commands(settings, memory, reader, connector, self.reach)
        wait = settings.update_seconds
        listening = Listening(api, memory, sender, commands, poller, username, wait, probe=self._probe)
        addresses = {"feed": without_userinfo(settings.feed), "api": without_userinfo(settings.api)}
        log_event(logger, logging.INFO, "bot_started", username=username, **addresses)
        parts = [
            asyncio.create_task(listening.run(), name="listening"),
            asyncio.create_task(self._connected(connector), name="connector"),
            asyncio.create_task(self._upkeep(memory), name="upkeep"),
        ]
        try:
            await until_one_ends(self.stopping.wait(), *(asyncio.shield(part) for part in parts))
        finally:
            await self._end(listening, connector, parts)

    async def _end(self, listening: Listening, connector: Connector, parts: "list[asyncio.Task[None]]") -> None:
        """Finish messages on their way, start nothing new, and raise what failed."""
        self._ending.set()
        listening.stopping.set()
        connector.poller.stopping.set()
        await asyncio.wait(parts[:1], timeout=STOP_SECONDS)
        for part in parts:
            part.cancel()
        outcomes = await asyncio.gather(*parts, return_exceptions=True)
        # Last, because a late /connect may have started it.
        outcomes += await asyncio.gather(connector.poller.stop(), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome

    async def _connected(self, connector: Connector) -> None:
        """Check the backend once; then wait for the poller to start and end."""
        await connector.connect()
        await self.reach("bot.checked", connected=connector.is_connected)
        await connector.started.wait()
        await connector.poller.wait()

    async def _introduce(self, api: BotApi, memory: Memory) -> str | None:
        """The bot's username; waits until Telegram can be reached. None if the bot is stopped first."""
        failures = 0
        while not self.stopping.is_set():
            reply = await api.get_me()
            if isinstance(reply, ApiResult) and isinstance(reply.result, dict):
                await self._offer_commands(api)
                return str(reply.result.get("username") or "")
            failures += 1
            await self._wait_for_telegram(reply, failures, memory)
        return None

    async def _wait_for_telegram(self, reply: Reply, failures: int, memory: Memory) -> None:
        if isinstance(reply, Denied):
            raise TelegramRefused(reply.reason)
        wait = wait_after(reply, failures)
        if failures == 1:
            reason = reason_of(reply)
            log_event(logger, logging.WARNING, "bot_telegram_unreachable", error=reason, retry_in=wait)
            said = f"cannot reach Telegram ({reason}). The bot keeps trying"
            await memory.keep(lambda store: store.note_trouble(said, UPDATES))
        await wait_for_any(wait, self.stopping)

    async def _offer_commands(self, api: BotApi) -> None:
        """Set the command menu. The bot works without it."""
        for language, table in self.settings.texts.tables.items():
            reply = await api.set_my_commands(described(table), None if language == FALLBACK else language)
            if not isinstance(reply, ApiResult):
                log_event(logger, logging.INFO, "bot_commands_not_offered", language=language, error=reason_of(reply))

    async def _upkeep(self, memory: Memory) -> None:
        """Delete old records of undelivered events."""
        while not self._ending.is_set():
            before = utc_now() - timedelta(days=self.settings.failures_days)
            try:
                await memory.do(partial(Store.forget_failures, before=before))
            except StateUnavailable as problem:
                log_event(logger, logging.ERROR, "bot_state_unavailable", error=readable(problem))
            await wait_for_any(_UPKEEP_SECONDS, self._ending)

    async def _beat(self, memory: Memory) -> None:
        """Record regularly that the bot runs, for `bot status`: a held lock does not prove that it works."""
        while True:
            with suppress(StateUnavailable):
                await memory.do(lambda store: store.beat(utc_now()))
            await asyncio.sleep(_BEAT_SECONDS)

    async def _pass_on(self) -> None:
        await self.stopping.wait()
        self._ending.set()
