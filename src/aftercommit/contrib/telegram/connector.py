"""Checks the backend: once when the bot starts, and once for each /connect.

Nothing polls until the backend has answered once, and there are no automatic retries: no retry storm.
"""

import asyncio
import logging
import math
import time

from aftercommit.contrib.telegram.memory import Memory
from aftercommit.contrib.telegram.poller import Poller
from aftercommit.contrib.telegram.reader import BackendReader
from aftercommit.contrib.telegram.redaction import without_userinfo
from aftercommit.contrib.telegram.settings import BotSettings
from aftercommit.contrib.telegram.trouble import BackendTrouble
from aftercommit.service import Waker, until_one_ends
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.bot")


class Connector:
    """Checks the backend, and starts the poller after the first answer."""

    def __init__(
        self, settings: BotSettings, memory: Memory, reader: BackendReader, poller: Poller, ending: Waker
    ) -> None:
        """When `ending` is set, nothing new is checked or started."""
        self._settings = settings
        self._memory = memory
        self._reader = reader
        self._ending = ending
        self._asking = asyncio.Lock()
        self._asked = 0
        self._asked_at: float | None = None
        self.poller = poller
        self.started = asyncio.Event()
        # The trouble at the last check; None before the first one.
        self.problem: BackendTrouble | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the backend has answered once, and the poller runs."""
        return self.started.is_set()

    @property
    def seconds_until_next(self) -> int:
        """Seconds until another check is allowed; 0 while one is running, because callers share its answer."""
        if self._asked_at is None or self._asking.locked():
            return 0
        return max(0, math.ceil(self._asked_at + self._settings.connect_seconds - time.monotonic()))

    async def connect(self) -> bool:
        """Check once, unless connected; returns whether it is connected. Concurrent callers share the answer."""
        asked = self._asked
        async with self._asking:
            if not self.is_connected and self._asked == asked and not self._ending.is_set():
                await self._ask()
        return self.is_connected

    async def _ask(self) -> None:
        links = await self._memory.keep(lambda store: store.links())
        user = links[0].user_id if links else self._settings.health_user
        asking = asyncio.ensure_future(self._reader.health(user))
        await until_one_ends(asking, self._ending.wait())
        if asking.cancelled():
            return
        self.problem = problem = asking.result()
        await self._memory.keep(lambda store: store.note_trouble(None if problem is None else str(problem)))
        self._asked += 1
        self._asked_at = time.monotonic()
        feed = without_userinfo(self._settings.feed)
        if problem is not None:
            remedy = f"the bot does not poll; {problem.remedy}; then send /connect or restart the bot"
            case = {"kind": problem.kind, "error": problem.reason, "remedy": remedy}
            log_event(logger, logging.ERROR, "bot_not_connected", feed=feed, **case)
        elif not self._ending.is_set():
            await self.poller.start()
            log_event(logger, logging.INFO, "bot_polling", feed=feed, links=len(links))
            self.started.set()
