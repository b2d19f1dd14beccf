"""Lets others have their turn while much is to be done by the one thread that also serves everybody."""

import asyncio
import time
from typing import Final

# As long as anybody may wait for one piece of work: readers do not notice it, and the way round costs next to nothing.
SLICE_SECONDS: Final = 0.01


class TimeSlice:
    """Counts the time since the others last had their turn. What is made per event may take microseconds or long."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        """It is our turn."""
        self._since = time.perf_counter()

    def is_over(self) -> bool:
        """Whether it is time to `give` the others theirs."""
        return time.perf_counter() - self._since >= SLICE_SECONDS

    async def give(self) -> None:
        """Let everybody run who can."""
        await asyncio.sleep(0)
        self._since = time.perf_counter()
