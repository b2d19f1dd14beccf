"""Whether the backend answers: asked once when the bot starts, and once more whenever somebody asks for it.

Until it has answered once nothing polls, and nothing tries by itself: a backend that is down is not knocked at.
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
    """Asks, and starts the poller once."""

    def __init__(
        self, settings: BotSettings, memory: Memory, reader: BackendReader, poller: Poller, ending: Waker
    ) -> None:
        """Once the bot is `ending`, nothing is asked or started any more."""
        self._settings = settings
        self._memory = memory
        self._reader = reader
        self._ending = ending
        self._asking = asyncio.Lock()
        self._asked = 0
        self._asked_at: float | None = None
        self.poller = poller
        self.started = asyncio.Event()
        # What was wrong when it was asked last; None before there is an answer, too.
        self.problem: BackendTrouble | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the backend has answered once, and the poller runs."""
        return self.started.is_set()

    @property
    def seconds_until_next(self) -> int:
        """How long to wait before asking again, so that nobody makes the bot knock and knock.

        Not at all while a question is under way: whoever asks for one shares its answer.
        """
        if self._asked_at is None or self._asking.locked():
            return 0
        return max(0, math.ceil(self._asked_at + self._settings.connect_seconds - time.monotonic()))

    async def connect(self) -> bool:
        """Ask once, unless it is connected; whether it is now. Who comes meanwhile shares the answer."""
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
            remedy = f"nothing is polled; {problem.remedy}; /connect asks once more, and so does a start"
            case = {"kind": problem.kind, "error": problem.reason, "remedy": remedy}
            log_event(logger, logging.ERROR, "bot_not_connected", feed=feed, **case)
        elif not self._ending.is_set():
            await self.poller.start()
            log_event(logger, logging.INFO, "bot_polling", feed=feed, links=len(links))
            self.started.set()
