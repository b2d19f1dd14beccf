"""Cuts a list of events into slices and decides what to do when one fails. Nothing runs here."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aftercommit.consumer.outcome import Failed, concerns_all
from aftercommit.consumer.slices import SliceFailed, SliceItem, SliceResult

FIRST: Final = 16
LARGEST: Final = 1000
QUICK: Final = 0.05
SLOW: Final = 0.1
# A handler that loses its connection this often in a row, while the database accepts others, is the cause.
MOST_LOSSES: Final = 3
# Events between two savepoints, after a slice was undone; beyond the widest guard, none are set.
FIRST_GUARD: Final = 8
WIDEST_GUARD: Final = 64
# The server keeps so many subtransactions of a session in memory; with more, every snapshot becomes slower.
MOST_SAVEPOINTS: Final = 60


@dataclass(slots=True)
class SlicePace:
    """What the slices so far teach about the next: how many events it takes, and how often it sets a savepoint.

    `guard_events`: a savepoint every so many events, while handlers fail that have written; 0 while none do.
    """

    size: int = FIRST
    guard_events: int = 0

    def done(self, result: SliceResult) -> None:
        """A slice was committed; after quick handlers the next may be larger, after slow ones smaller.

        How long BEGIN and COMMIT take is no reason for more of them.
        """
        if result.seconds > SLOW or result.left:
            self.size = max(1, self.size // 2)
        elif result.seconds < QUICK and len(result.items) >= self.size:
            self.size = min(LARGEST, self.size * 2)
        if result.undone:
            self.guard_events = max(2, self.guard_events // 2)
        elif self.guard_events:
            self.guard_events = self.guard_events * 2 if self.guard_events < WIDEST_GUARD else 0


class Walk:
    """The events still to be handled, in order, and how many the next slice takes. `alone`: one each.

    `most_outside_calls`: how many events share a slice whose handlers act outside the transaction.
    """

    def __init__(
        self,
        items: Sequence[SliceItem],
        *,
        pace: SlicePace | None = None,
        alone: bool = False,
        most_outside_calls: int = 1,
    ) -> None:
        self.waiting = deque(items)
        self._all = len(items)
        self._known: dict[int, Failed] = {}
        self._pace = pace or SlicePace()
        self._alone = alone
        self._most_outside_calls = most_outside_calls
        self._singly = 0
        self._losses = 0

    @property
    def guard_events(self) -> int:
        """How often the next slice sets a savepoint."""
        return 0 if self._alone or self._singly > 0 else self._pace.guard_events

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
        first = self.waiting[0]
        size = 1 if self._alone or self._singly > 0 or first.goes_alone else self._pace.size
        if first.outside:
            size = min(size, self._most_outside_calls)
        if self.guard_events:
            size = min(size, MOST_SAVEPOINTS * self.guard_events)
        segment: list[SliceItem] = []
        for item in self.waiting:
            if len(segment) == size or item.goes_alone != first.goes_alone or item.outside != first.outside:
                break
            if item.failure is not None or id(item) in self._known:
                break
            segment.append(item)
        return segment

    def done(self, result: SliceResult) -> None:
        """The slice was committed; what it did not get to comes next."""
        left = [result.items[place] for place in result.left]
        for _ in result.items:
            self.waiting.popleft()
        self.waiting.extendleft(reversed(left))
        self._losses = 0
        is_single = self._alone or self._singly > 0
        self._singly = max(0, self._singly - 1)
        if not is_single:
            self._pace.done(result)

    def failed(self, segment: Sequence[SliceItem], problem: SliceFailed, *, survives: bool = False) -> None:
        """The slice was undone: its events go again without the one to blame, or one by one to find it."""
        self._losses = 0
        for place, failure in problem.failures.items():
            self.blame(segment[place], failure)
        if len(segment) == 1:
            self.blame(segment[0], problem.failure)
        elif problem.index is None or concerns_all(problem.failure):
            self._singly = len(segment)
        else:
            self.blame(segment[problem.index], problem.failure)
            if survives:
                self._pace.guard_events = self._pace.guard_events or FIRST_GUARD

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
        self._alone = True

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
