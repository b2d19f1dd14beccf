"""How many may do something at the same time, without one that hangs stopping all others."""

import asyncio
from collections import Counter
from typing import Final

# If no place is released for this long, one waiter may start beyond the limit.
STUCK_SECONDS: Final = 0.25


class ElasticLimit:
    """So many places. Of those who wait, the one whose owner has the fewest places goes first.

    Places that are held for long do not make others wait: if none comes back for `STUCK_SECONDS`, there is one more,
    for owners without a place, and for those who name no owner. That lasts until places are free again.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.used = 0
        self._extra = 0
        self._held: Counter[object] = Counter()
        self._waiting: dict[asyncio.Future[None], object] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._moved = False

    async def acquire(self, owner: object = None) -> None:
        """Take a place, or wait for one."""
        if self._has_place(owner):
            self._take(owner)
        else:
            await self._wait(owner)

    def release(self, owner: object = None) -> None:
        """Give the place back."""
        self.used -= 1
        self._moved = True
        if owner is not None:
            self._held[owner] -= 1
        if self.used < self.places:
            self._extra = 0
        self._grant()

    def _has_place(self, owner: object) -> bool:
        return self.used < self.places + (0 if self._held[owner] else self._extra)

    def _take(self, owner: object) -> None:
        self.used += 1
        if owner is not None:
            self._held[owner] += 1

    async def _wait(self, owner: object) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[granted] = owner
        self._watch()
        try:
            await granted
        except asyncio.CancelledError:
            if self._waiting.pop(granted, self) is self:
                # It was granted at the same moment.
                self.release(owner)
            raise

    def _grant(self) -> None:
        """Let the next one begin, if there is a place for it."""
        first = min(self._waiting, key=lambda each: self._held[self._waiting[each]], default=None)
        if first is not None and self._has_place(self._waiting[first]):
            self._take(self._waiting.pop(first))
            first.set_result(None)

    def _watch(self) -> None:
        if self._alarm is None and self._waiting:
            self._moved = False
            self._alarm = asyncio.get_running_loop().call_later(STUCK_SECONDS, self._look)

    def _look(self) -> None:
        self._alarm = None
        if not self._moved and not all(self._held[owner] for owner in self._waiting.values()):
            self._extra = self.used - self.places + 1
            self._grant()
        self._watch()
