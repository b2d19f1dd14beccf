"""Schedules the turns of all linked chats: at most `turns` run at once, and the ones that are due longest go first."""

import asyncio
import heapq
import logging
import time
from itertools import count
from typing import Final

from aftercommit.contrib.telegram.chat_turns import ChatTurns
from aftercommit.contrib.telegram.delivery import Delivery
from aftercommit.contrib.telegram.memory import Memory
from aftercommit.contrib.telegram.reader import BackendReader
from aftercommit.contrib.telegram.sender import Sender
from aftercommit.contrib.telegram.settings import BotSettings
from aftercommit.errors import StateError, StateUnavailable, TelegramRefused
from aftercommit.service import Probe, Service, Waker, wait_for_any
from aftercommit.telemetry import log_event
from aftercommit.text import readable

logger = logging.getLogger("aftercommit.bot")

_STATE_SECONDS: Final = 5.0
_BROKEN_SECONDS: Final = 60.0
_LOOK_AGAIN: Final = 30.0
# Time for messages on their way when the bot is stopped.
STOP_SECONDS: Final = 10.0


class Poller(Service):
    """Runs the turns of all linked chats."""

    name = "poller"

    def __init__(
        self, settings: BotSettings, memory: Memory, reader: BackendReader, sender: Sender, probe: Probe | None = None
    ) -> None:
        super().__init__(probe)
        self._settings = settings
        self._memory = memory
        delivery = Delivery(settings, memory, sender, self.reach, self.add)
        self.chats = ChatTurns(settings, memory, reader, delivery, self)
        self._due: list[tuple[float, int, int]] = []
        self._entries: dict[int, int] = {}
        self._order = count()
        self._turns: dict[int, asyncio.Task[None]] = {}
        self._news = Waker()
        self._fatal: BaseException | None = None

    def add(self, chat_id: int, seconds: float = 0.0) -> None:
        """Poll for this chat."""
        self.chats.add(chat_id)
        if chat_id not in self._turns:
            self._schedule(chat_id, seconds)

    async def run(self) -> None:
        """Run until stopped. Messages on their way are finished and stored; nothing new is started."""
        links = await self._memory.keep(lambda store: store.links())
        for number, link in enumerate(links):
            # Spread over the first interval.
            self.add(link.chat_id, self._settings.pace.poll * number / len(links))
        try:
            while not self.stopping.is_set() and self._fatal is None:
                wait = self._begin_turns()
                await wait_for_any(wait, self.stopping, self._news)
                self._news.clear()
        finally:
            await self._finish()
        if self._fatal is not None:
            raise self._fatal

    def _begin_turns(self) -> float:
        """Start due turns, as far as there is room; returns seconds until the next check."""
        now = time.monotonic()
        if (held := self.chats.outage.wait(now)) > 0:
            return held
        room = 1 if self.chats.outage.is_on else self._settings.turns
        while self._due and len(self._turns) < room:
            moment, entry, chat_id = self._due[0]
            if moment > now:
                return moment - now
            heapq.heappop(self._due)
            if self._entries.get(chat_id) == entry:
                del self._entries[chat_id]
                self._turns[chat_id] = asyncio.create_task(self._turn(chat_id), name=f"turn {chat_id}")
        return _LOOK_AGAIN

    async def _turn(self, chat_id: int) -> None:
        """Run one turn of a chat, and schedule the next one."""
        seat = self.chats.seats[chat_id]
        wait: float | None = _BROKEN_SECONDS
        try:
            wait = await self.chats.take(chat_id, seat)
        except StateUnavailable as problem:
            wait = _STATE_SECONDS
            log_event(logger, logging.ERROR, "bot_state_unavailable", chat_id=chat_id, error=readable(problem))
        except (TelegramRefused, StateError) as problem:
            self._fatal = problem
        except Exception as problem:  # noqa: BLE001 - an error of one chat must not stop the others
            log_event(logger, logging.ERROR, "bot_turn_failed", problem, chat_id=chat_id, error=readable(problem))
        except BaseException as problem:
            if not isinstance(problem, asyncio.CancelledError):
                self._fatal = problem
            raise
        finally:
            del self._turns[chat_id]
            if wait is None and self.chats.seats.get(chat_id) is seat:
                del self.chats.seats[chat_id]
            else:
                self._schedule(chat_id, wait or 0.0)
            self._news.set()

    def _schedule(self, chat_id: int, seconds: float) -> None:
        # Only the last entry of a chat counts; older ones in the heap are skipped.
        entry = self._entries[chat_id] = next(self._order)
        heapq.heappush(self._due, (time.monotonic() + seconds, entry, chat_id))
        self._news.set()

    async def _finish(self) -> None:
        self.stopping.set()
        turns = list(self._turns.values())
        if self._fatal is not None:
            for turn in turns:
                turn.cancel()
        if turns:
            _, late = await asyncio.wait(turns, timeout=STOP_SECONDS)
            for turn in late:
                turn.cancel()
            await asyncio.gather(*turns, return_exceptions=True)
