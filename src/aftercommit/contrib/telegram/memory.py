"""Async access to the bot's state: runs the store's methods in one thread, one at a time."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aftercommit.backoff import Exponential
from aftercommit.contrib.telegram.states.sql import Store
from aftercommit.errors import StateUnavailable
from aftercommit.service import Waker, wait_for_any
from aftercommit.telemetry import log_event
from aftercommit.text import readable

logger = logging.getLogger("aftercommit.bot")

Result = TypeVar("Result")
_AGAIN = Exponential(base=0.5, maximum=10.0)


class Memory:
    """A store with its thread."""

    def __init__(self, store: Store, stopping: Waker) -> None:
        self._store = store
        self._stopping = stopping
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bot-state")

    async def open(self) -> None:
        """Lock the state, and create or upgrade its tables. Waits for a database that is away."""
        await self.keep(lambda store: store.lock())
        await self.keep(lambda store: store.prepare())

    async def do(self, work: Callable[[Store], Result]) -> Result:
        """Run a method of the store; may raise StateUnavailable."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._store)

    async def keep(self, work: Callable[[Store], Result]) -> Result:
        """The same, but retry until it succeeds. Raises StateUnavailable only if the bot is stopped meanwhile."""
        failures = 0
        while True:
            try:
                return await self.do(work)
            except StateUnavailable as problem:
                failures += 1
                wait = _AGAIN(failures, problem) or 0.0
                log_event(logger, logging.ERROR, "bot_state_unavailable", error=readable(problem), retry_in=wait)
                await wait_for_any(wait, self._stopping)
                if self._stopping.is_set():
                    raise

    async def close(self) -> None:
        """Close the store and end the thread."""
        await self.do(lambda store: store.close())
        self._thread.shutdown(wait=False)
