"""One lock around what the server knows, and a way to wait for it to change: from any thread, and in any event loop."""

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
    """Somebody who waits for a condition."""

    def __init__(self, look: Callable[[], Found | None]) -> None:
        self.look = look
        self.found: Future[Found] = Future()

    def is_over(self) -> bool:
        if not self.found.done() and (found := self.look()) is not None:
            # Whoever waited may give up at this very moment, in a thread of its own.
            with suppress(InvalidStateError):
                self.found.set_result(found)
        return self.found.done()


class Changes:
    """Hold `lock` to read or to change; call `tell` after a change, with the lock held.

    Changes are numbered, and the things that changed are remembered for a while: whoever shows them asks what is new.
    `listeners` are called with them before anybody who waits goes on.
    """

    def __init__(self) -> None:
        """Nothing has happened."""
        self.lock = threading.RLock()
        self.number = 0
        self._recent: deque[tuple[int, object]] = deque(maxlen=_REMEMBERED)
        self.listeners: list[Callable[[Sequence[object]], object]] = []
        self._waiting: list[_Waiting[object]] = []

    def tell(self, *changed: object) -> None:
        """These things have changed: look again on behalf of everybody who waits."""
        self.number += 1
        self._recent.extend((self.number, each) for each in changed)
        for listener in self.listeners:
            listener(changed)
        self._waiting = [waiting for waiting in self._waiting if not waiting.is_over()]

    def until(self, look: Callable[[], Found | None]) -> "Future[Found]":
        """What the look finds, once it finds something. It is called with the lock held, after each change."""
        waiting = _Waiting(look)
        with self.lock:
            if not waiting.is_over():
                self._waiting.append(waiting)  # type: ignore[arg-type]
        return waiting.found

    def since(self, number: int) -> Sequence[object] | None:
        """What has changed after this number, each thing once; None when that is not remembered any more."""
        if number > self.number or (len(self._recent) == _REMEMBERED and number < self._recent[0][0]):
            return None
        return list({id(each): each for at, each in self._recent if at > number}.values())

    async def found(self, look: Callable[[], Found | None], otherwise: Callable[[], str], timeout: float) -> Found:
        """The same, awaited; AssertionError says what did not come."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(self.until(look))
        except TimeoutError:
            raise AssertionError(f"{otherwise()} (waited {timeout:g} s)") from None

    def found_blocking(self, look: Callable[[], Found | None], otherwise: Callable[[], str], timeout: float) -> Found:
        """The same, for tests that have no event loop."""
        future = self.until(look)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise AssertionError(f"{otherwise()} (waited {timeout:g} s)") from None
