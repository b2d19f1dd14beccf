"""Watch services at work, without sleeping: wait until a named point is reached, hold the service there, or break it.

Give a `Signals()` as `probe=` to a Relay, LogWorker or Listener. Points are named "relay.appended",
"consumer.handled" and so on; `await signals.wait("relay.appended")` returns once one has been reached.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0


class Hold:
    """A service standing at a point until it is let go."""

    def __init__(self, point: str) -> None:
        """Nobody has arrived."""
        self.point = point
        self.arrived = asyncio.Event()
        self.released = asyncio.Event()
        self.detail: dict[str, Any] = {}

    async def wait(self, timeout: float = PATIENCE) -> dict[str, Any]:
        """Until somebody stands here; what the point said about itself."""
        await _within(self.arrived.wait(), timeout, f"nobody reached {self.point!r}")
        return self.detail

    def release(self) -> None:
        """Go on."""
        self.released.set()


class Signals:
    """A probe that remembers the points that were reached."""

    def __init__(self) -> None:
        """Nothing reached, nothing held, nothing broken."""
        self.counts: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.details: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._news = asyncio.Event()
        self._holds: dict[str, Hold] = {}
        self._breaks: dict[str, Callable[[], BaseException]] = {}

    async def __call__(self, point: str, detail: dict[str, Any]) -> None:
        """Called by services at each point."""
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
        """Until the point has been reached so many times since the beginning."""
        await self.until(lambda: self.counts[point] >= times, f"{point!r} was not reached {times} times", timeout)

    async def wait_total(self, point: str, count: int, timeout: float = PATIENCE) -> None:
        """Until the counts the point reported add up to so many (events appended, handled, …)."""
        await self.until(lambda: self.totals[point] >= count, f"{point!r} did not add up to {count}", timeout)

    async def next(self, point: str, timeout: float = PATIENCE) -> None:
        """Until the point is reached once more than now."""
        await self.wait(point, self.counts[point] + 1, timeout)

    async def until(self, condition: Callable[[], bool], otherwise: str, timeout: float = PATIENCE) -> None:
        """Until the condition holds; it is looked at each time any point is reached."""
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
        """The next service that reaches the point gets this error."""
        self._breaks[point] = error


async def _within(waiting: Any, timeout: float, otherwise: str) -> None:
    try:
        await asyncio.wait_for(waiting, timeout)
    except TimeoutError:
        raise AssertionError(f"{otherwise} within {timeout:g} s") from None
