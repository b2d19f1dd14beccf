"""Waits until a service reaches a named point, holds it there, or lets it fail: tests without sleeps.

Give a `Signals()` as `probe=` to a Relay, LogWorker or Listener. `await signals.wait("relay.appended")` returns once a
relay has reached this point.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0


class Hold:
    """Holds a service at a point until `release`."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.arrived = asyncio.Event()
        self.released = asyncio.Event()
        self.detail: dict[str, Any] = {}

    async def wait(self, timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait until a service is here; returns the details of the point."""
        try:
            await asyncio.wait_for(self.arrived.wait(), timeout)
        except TimeoutError:
            raise AssertionError(f"no service reached {self.point!r} within {timeout:g} s") from None
        return self.detail

    def release(self) -> None:
        """Let the service go on."""
        self.released.set()


class Signals:
    """A probe that records the points that services reach."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.details: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._news = asyncio.Event()
        self._holds: dict[str, Hold] = {}
        self._breaks: dict[str, Callable[[], BaseException]] = {}

    async def __call__(self, point: str, detail: dict[str, Any]) -> None:
        """Services call it at each point."""
        self.counts[point] += 1
        self.totals[point] += int(detail.get("count", 0))
        self.details[point].append(detail)
        self._news.set()
        hold = self._holds.pop(point, None)
        if hold is not None:
            hold.detail = detail
            hold.arrived.set()
            await hold.released.wait()
        problem = self._breaks.pop(point, None)
        if problem is not None:
            raise problem()

    async def wait(self, point: str, times: int = 1, timeout: float = PATIENCE) -> None:
        """Wait until the point has been reached so many times in all."""
        await self.until(lambda: self.counts[point] >= times, f"{point!r} was not reached {times} times", timeout)

    async def wait_total(self, point: str, count: int, timeout: float = PATIENCE) -> None:
        """Wait until the counts that the point reports (events appended, handled, …) add up to so many."""
        await self.until(lambda: self.totals[point] >= count, f"{point!r} did not add up to {count}", timeout)

    async def next(self, point: str, timeout: float = PATIENCE) -> None:
        """Wait until the point is reached once more."""
        await self.wait(point, self.counts[point] + 1, timeout)

    async def until(self, condition: Callable[[], bool], otherwise: str, timeout: float = PATIENCE) -> None:
        """Wait until the condition is true; it is checked each time a point is reached."""
        async with asyncio.timeout(timeout) as limit:
            try:
                while not condition():
                    self._news.clear()
                    await self._news.wait()
            except asyncio.CancelledError:
                if limit.expired():
                    raise AssertionError(f"{otherwise} within {timeout:g} s; reached: {dict(self.counts)}") from None
                raise

    def hold(self, point: str) -> Hold:
        """Hold the next service that reaches the point."""
        hold = self._holds[point] = Hold(point)
        return hold

    def fail(self, point: str, error: Callable[[], BaseException]) -> None:
        """Raise this error in the next service that reaches the point."""
        self._breaks[point] = error
