"""Counts the requests of a sliding window: the pure part of a rate limit.

Times are whole microseconds on the caller's clock. A request as old as the window does not count any more.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

SECOND: Final = 1_000_000
# At most so many different times are kept in a window. Limits up to this are exact to the microsecond.
MOST_MOMENTS: Final = 1_000


class SlidingLog:
    """The requests that passed, by time. `total` counts those in the window as of the last `slide`."""

    __slots__ = ("counts", "moments", "total")

    def __init__(self, entries: Mapping[int, int] | None = None) -> None:
        """Empty, or with these counts by time."""
        held = sorted((entries or {}).items())
        self.moments: deque[int] = deque(moment for moment, count in held if count > 0)
        self.counts: deque[int] = deque(count for _, count in held if count > 0)
        self.total = sum(self.counts)

    def slide(self, since: int) -> None:
        """Forget requests up to this time."""
        moments, counts = self.moments, self.counts
        while moments and moments[0] <= since:
            moments.popleft()
            self.total -= counts.popleft()

    def add(self, moment: int, count: int = 1) -> int:
        """Count requests; returns the time they count for, which is not before the last one."""
        if self.moments and moment <= self.moments[-1]:
            moment = self.moments[-1]
            self.counts[-1] += count
        else:
            self.moments.append(moment)
            self.counts.append(count)
        self.total += count
        return moment

    def take_back(self) -> int | None:
        """Uncount the last request; returns its time, or None if there is none."""
        if not self.moments:
            return None
        moment = self.moments[-1]
        self.counts[-1] -= 1
        self.total -= 1
        if not self.counts[-1]:
            self.moments.pop()
            self.counts.pop()
        return moment

    def shift(self, by: int) -> None:
        """The clock was set: move all times by this much."""
        self.moments = deque(moment + by for moment in self.moments)

    def has_room_from(self, most: int) -> int:
        """The time that must leave the window so that at most `most` requests remain, or the last time."""
        left = self.total
        for moment, count in zip(self.moments, self.counts, strict=True):
            left -= count
            if left <= most:
                return moment
        return self.moments[-1]


def tick_of(limit: int, seconds: int) -> int:
    """The times that requests count for are multiples of this: of a thousandth of the window for large limits."""
    return 1 if limit <= MOST_MOMENTS else seconds * SECOND // MOST_MOMENTS


def stamp(now: int, tick: int) -> int:
    """The time that a request counts for. It is rounded up, so that no more than the limit passes."""
    return -(-now // tick) * tick


def added_up(*lists: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The counts of all lists, added up by time."""
    found: dict[int, int] = {}
    for entries in lists:
        for moment, count in entries:
            found[moment] = found.get(moment, 0) + count
    return found
