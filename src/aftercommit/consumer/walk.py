"""Cuts a list of events into slices and decides what to do when one fails. Nothing runs here."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slices import SliceFailed, SliceItem

FIRST: Final = 16
LARGEST: Final = 1000
QUICK: Final = 0.05
SLOW: Final = 0.1
# A handler that loses its connection this often in a row, while the database accepts others, is the cause.
MOST_LOSSES: Final = 3
# Deadlocks, serialisation failures, lock timeouts and idle timeouts concern the whole transaction. They are more likely
# the larger it is, and often hit an event behind the one that caused them. The same holds for an aborted transaction
# and for a temporary table that exists already.
SHARED_MATTERS: Final = ("40", "55P03", "25P02", "25P03", "25P04", "42P07")


class Walk:
    """The events still to be handled, in order, and how many the next slice takes. `alone`: one each."""

    def __init__(self, items: Sequence[SliceItem], *, alone: bool = False, slice_size: int = FIRST) -> None:
        self.waiting = deque(items)
        self._all = len(items)
        self._known: dict[int, Failed] = {}
        self._size = 1 if alone else slice_size
        self._grows = not alone
        self._singly = 0
        self._losses = 0

    @property
    def size(self) -> int:
        """How many events a slice takes, by the handlers' pace so far."""
        return self._size

    @property
    def may_rest(self) -> bool:
        """Whether an event got to its end, and no failure is known that would be forgotten."""
        return len(self.waiting) < self._all and not self._known

    def failure(self) -> Failed | None:
        """The failure of the next event, if it is known already."""
        return self.waiting[0].failure or self._known.pop(id(self.waiting[0]), None)

    def take(self, *, strict: bool) -> tuple[SliceItem, list[SliceItem]]:
        """Take the next event away and, under strict ordering, those behind it of the same aggregate."""
        item = self.waiting.popleft()
        self._singly = max(0, self._singly - 1)
        if not strict:
            return item, []
        behind = [other for other in self.waiting if other.record.aggregate == item.record.aggregate]
        self.waiting = deque(other for other in self.waiting if other.record.aggregate != item.record.aggregate)
        for other in behind:
            self._known.pop(id(other), None)
        return item, behind

    def segment(self) -> list[SliceItem]:
        """The events of the next slice, from the front."""
        size = 1 if self._singly > 0 else self._size
        segment: list[SliceItem] = []
        for item in self.waiting:
            full = len(segment) == size or (segment and (item.goes_alone or segment[0].goes_alone))
            if full or item.failure is not None or id(item) in self._known:
                break
            segment.append(item)
        return segment

    def done(self, segment: Sequence[SliceItem], seconds: float) -> None:
        """The slice was committed; after a quick one the next may be larger, after a slow one smaller."""
        for _ in segment:
            self.waiting.popleft()
        self._losses = 0
        self._singly = max(0, self._singly - 1)
        if not self._grows:
            return
        if seconds > SLOW:
            self._size = max(1, self._size // 2)
        elif seconds < QUICK and len(segment) == self._size:
            self._size = min(LARGEST, self._size * 2)

    def failed(self, segment: Sequence[SliceItem], problem: SliceFailed) -> None:
        """The slice was undone: its events go again without the one to blame, or one by one to find it."""
        self._losses = 0
        if len(segment) == 1:
            self.blame(segment[0], problem.failure)
        elif problem.index is None or str(getattr(problem.failure.error, "sqlstate", "")).startswith(SHARED_MATTERS):
            self._singly = len(segment)
        else:
            self.blame(segment[problem.index], problem.failure)

    def lost(self, segment: Sequence[SliceItem], problem: BaseException) -> None:
        """The slice's connection broke; that counts as a failed attempt only if it keeps happening to one event."""
        self._losses = self._losses + 1 if len(segment) == 1 else 0
        if self._losses >= MOST_LOSSES:
            self._losses = 0
            self.blame(segment[0], Failed(problem))
        else:
            self._singly = max(self._singly, len(segment))

    def go_alone(self) -> None:
        """Give each event a slice of its own from now on."""
        self._size, self._grows = 1, False

    def blame(self, item: SliceItem, failure: Failed) -> None:
        """Remember that this event failed; `failure` says so when its turn comes."""
        self._known[id(item)] = failure


def by_aggregate(items: Sequence[SliceItem], groups: int) -> list[list[SliceItem]]:
    """At most so many groups that can go side by side: an aggregate's events stay together and in order."""
    if groups <= 1:
        return [list(items)] if items else []
    result: list[list[SliceItem]] = [[] for _ in range(groups)]
    group_of: dict[tuple[str, str], list[SliceItem]] = {}
    for item in items:
        aggregate = item.record.aggregate
        if aggregate not in group_of:
            group_of[aggregate] = min(result, key=len)
        group_of[aggregate].append(item)
    return [group for group in result if group]
