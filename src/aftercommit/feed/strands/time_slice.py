"""Interrupts long work on the event loop, so that everybody else is served meanwhile."""

import asyncio
import time
from typing import Final

# The longest that anybody waits for one piece of work. Readers do not notice it, and yielding this often costs little.
SLICE_SECONDS: Final = 0.002


class TimeSlice:
    """Measures the time since the work last yielded: making an entry may take microseconds, or long."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def is_over(self) -> bool:
        """Whether it is time to `give` the others a turn."""
        return time.perf_counter() - self._since >= SLICE_SECONDS

    async def give(self) -> None:
        """Yield to everybody else once."""
        await asyncio.sleep(0)
        self._since = time.perf_counter()
