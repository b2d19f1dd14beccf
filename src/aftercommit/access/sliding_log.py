"""What was let through in the last seconds, moment by moment: the part of a rate limit that only counts.

Pure. Moments are whole microseconds on whatever clock the caller has; what is as old as the window counts no more.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

SECOND: Final = 1_000_000
# So many moments at most are kept apart in a window. Limits up to this are exact to the microsecond.
MOST_MOMENTS: Final = 1_000


class SlidingLog:
    """How much was let through, and when. `total` is what counts now, as of the last `slide`."""

    __slots__ = ("counts", "moments", "total")

    def __init__(self, entries: Mapping[int, int] | None = None) -> None:
        """Empty, or with so many at each of these moments."""
        held = sorted((entries or {}).items())
        self.moments: deque[int] = deque(moment for moment, count in held if count > 0)
        self.counts: deque[int] = deque(count for _, count in held if count > 0)
        self.total = sum(self.counts)

    def slide(self, since: int) -> None:
        """Forget what is not later than this."""
        moments, counts = self.moments, self.counts
        while moments and moments[0] <= since:
            moments.popleft()
            self.total -= counts.popleft()

    def add(self, moment: int, count: int = 1) -> int:
        """Count so many; the moment at which they count, never before one that is known."""
        if self.moments and moment <= self.moments[-1]:
            moment = self.moments[-1]
            self.counts[-1] += count
        else:
            self.moments.append(moment)
            self.counts.append(count)
        self.total += count
        return moment

    def take_back(self) -> int | None:
        """Count one less; the moment at which it was, None when there is none."""
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
        """The clock was set: everything happened so much later than it was thought to."""
        self.moments = deque(moment + by for moment in self.moments)

    def has_room_from(self, most: int) -> int:
        """The moment whose passing leaves no more than `most`; the last one if even that does not."""
        left = self.total
        for moment, count in zip(self.moments, self.counts, strict=True):
            left -= count
            if left <= most:
                return moment
        return self.moments[-1]


def stamp(now: int, limit: int, seconds: int) -> int:
    """The moment under which a request of now is counted. Large limits are counted by thousandths of the window: at the
    end of each, so that no more than the limit passes.
    """
    tick = 1 if limit <= MOST_MOMENTS else seconds * SECOND // MOST_MOMENTS
    return -(-now // tick) * tick


def added_up(*lists: Iterable[tuple[int, int]]) -> dict[int, int]:
    """How much at each moment, over all lists."""
    found: dict[int, int] = {}
    for entries in lists:
        for moment, count in entries:
            found[moment] = found.get(moment, 0) + count
    return found
