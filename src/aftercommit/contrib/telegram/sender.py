"""Sends messages as fast as Telegram allows: one at a time to a chat, and chats in turn."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from aftercommit.contrib.telegram.answers import Later, Reply
from aftercommit.contrib.telegram.api import BotApi
from aftercommit.contrib.telegram.pacing import Pacing
from aftercommit.service import Waker, wait_for_any
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.bot")

# The wait if Telegram limits the bot without saying for how long.
_UNSAID_SECONDS = 5.0
_LONGEST_WAIT = 5.0
_HELD = "Telegram has asked to wait"
_BUSY = "too many messages are on their way"
STOPPING = Later("the bot is stopping")
STALE = Later("the chat is no longer linked as it was")

Still = Callable[[], Awaitable[bool]]


class Sender:
    """Sends all messages of the bot."""

    def __init__(self, api: BotApi, pacing: Pacing, stopping: Waker) -> None:
        """When `stopping` is set, nothing new is sent."""
        self._api = api
        self._pacing = pacing
        self._stopping = stopping
        self._queue = asyncio.Lock()
        self._answered = Waker()
        self._chats: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: Counter[int] = Counter()

    async def send(
        self,
        chat_id: int,
        text: str,
        *,
        topic: int | None = None,
        still: Still | None = None,
        max_wait_seconds: float | None = None,
    ) -> Reply:
        """Send as soon as the limits allow, to a topic if there is one.

        `still` is called right before sending; if it returns False, nothing is sent (STALE).

        If the wait is longer than `max_wait_seconds`, this returns a limited `Later` at once. Without that argument,
        it does so only for long waits that Telegram asked for.
        """
        async with AsyncExitStack() as alone:
            try:
                async with asyncio.timeout(max_wait_seconds):
                    await alone.enter_async_context(self._alone(chat_id))
                    longest = _LONGEST_WAIT if max_wait_seconds is None else max_wait_seconds
                    later = await self._turn_of(chat_id, longest)
            except TimeoutError:
                later = Later(_BUSY, max_wait_seconds, limited=True)
            if later is not None:
                return later
            if still is not None and not await self._asked(still):
                return STALE
            return await self._send(chat_id, text, topic)

    async def _asked(self, still: Still) -> bool:
        agreed = False
        try:
            agreed = await still()
        finally:
            if not agreed:
                self._pacing.withdrawn()
                self._answered.set()
        return agreed

    @asynccontextmanager
    async def _alone(self, chat_id: int) -> AsyncIterator[None]:
        """Hold the chat's lock; unused locks are dropped."""
        self._waiting[chat_id] += 1
        try:
            async with self._chats[chat_id]:
                yield
        finally:
            self._waiting[chat_id] -= 1
            if not self._waiting[chat_id]:
                del self._waiting[chat_id], self._chats[chat_id]

    async def _turn_of(self, chat_id: int, longest: float) -> Later | None:
        """Wait until this message may go; if that takes too long, return why."""
        while (wait := self._pacing.chat_wait(chat_id, time.monotonic())) > 0:
            if wait > longest:
                return Later(_HELD, wait, limited=True)
            await wait_for_any(wait, self._stopping)
            if self._stopping.is_set():
                return STOPPING
        # First come, first served: the lock keeps the order.
        async with self._queue:
            while not self._stopping.is_set():
                overall = self._pacing.overall_wait(time.monotonic())
                if overall == 0:
                    self._pacing.sent(chat_id)
                    return None
                if overall is not None and overall > longest:
                    return Later(_HELD, overall, limited=True)
                self._answered.clear()
                await wait_for_any(_LONGEST_WAIT if overall is None else overall, self._stopping, self._answered)
        return STOPPING

    async def _send(self, chat_id: int, text: str, topic: int | None) -> Reply:
        try:
            reply = await self._api.send_message(chat_id, text, topic)
        finally:
            self._pacing.answered(chat_id, time.monotonic())
            self._answered.set()
        if isinstance(reply, Later) and reply.limited:
            seconds = reply.seconds if reply.seconds is not None else _UNSAID_SECONDS
            everybody = self._pacing.limited(chat_id, seconds, time.monotonic())
            log_event(logger, logging.WARNING, "bot_limited", chat_id=chat_id, seconds=seconds, everybody=everybody)
            return Later(reply.reason, seconds, limited=True)
        return reply
