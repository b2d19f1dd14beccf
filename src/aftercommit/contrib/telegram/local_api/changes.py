"""One lock around the server's data, and a way to wait for changes from any thread or event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Generic, TypeVar

Found = TypeVar("Found")
PATIENCE = 60.0
_REMEMBERED = 5_000


class _Waiting(Generic[Found]):
    """A pending wait for a condition."""

    def __init__(self, look: Callable[[], Found | None]) -> None:
        self.look = look
        self.found: Future[Found] = Future()

    def is_over(self) -> bool:
        if not self.found.done() and (found := self.look()) is not None:
            # The waiting thread may give up at this very moment.
            with suppress(InvalidStateError):
                self.found.set_result(found)
        return self.found.done()


class Changes:
    """Hold `lock` to read or change data; call `tell` after a change, with the lock held.

    Changes are numbered, and the recent ones are remembered, so that a viewer can ask for news. `listeners` get each
    change before any waiter continues.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.number = 0
        self._recent: deque[tuple[int, object]] = deque(maxlen=_REMEMBERED)
        self.listeners: list[Callable[[Sequence[object]], object]] = []
        self._waiting: list[_Waiting[object]] = []

    def tell(self, *changed: object) -> None:
        """These objects have changed: check all pending waits."""
        self.number += 1
        self._recent.extend((self.number, each) for each in changed)
        for listener in self.listeners:
            listener(changed)
        self._waiting = [waiting for waiting in self._waiting if not waiting.is_over()]

    def until(self, look: Callable[[], Found | None]) -> "Future[Found]":
        """The first result of `look` that is not None. It is called after each change, with the lock held."""
        waiting = _Waiting(look)
        with self.lock:
            if not waiting.is_over():
                self._waiting.append(waiting)  # type: ignore[arg-type]
        return waiting.found

    def since(self, number: int) -> Sequence[object] | None:
        """The objects changed after this number, without duplicates; None if that is no longer known."""
        if number > self.number or (len(self._recent) == _REMEMBERED and number < self._recent[0][0]):
            return None
        return list({id(each): each for at, each in self._recent if at > number}.values())

    async def within(self, seconds: float, look: Callable[[], Found | None]) -> Found | None:
        """Await `until` for so many seconds; None after that."""
        future = self.until(look)
        if future.done():
            return future.result()
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            return None

    async def found(self, look: Callable[[], Found | None], otherwise: Callable[[], str], timeout: float) -> Found:
        """Await `until`; after the timeout raise AssertionError with what was missing."""
        found = await self.within(timeout, look)
        if found is None:
            raise AssertionError(f"{otherwise()} (waited {timeout:g} s)")
        return found

    def found_blocking(self, look: Callable[[], Found | None], otherwise: Callable[[], str], timeout: float) -> Found:
        """The same, blocking."""
        future = self.until(look)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise AssertionError(f"{otherwise()} (waited {timeout:g} s)") from None
