"""Cuts a list of events into slices and decides what to do when one fails. Nothing runs here."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from aftercommit.consumer.outcome import Failed, concerns_all
from aftercommit.consumer.slice import WIDEST_GUARD, Aggregate, Slice
from aftercommit.consumer.slices import SliceFailed, SliceItem

FIRST: Final = 16
LARGEST: Final = 1000
QUICK: Final = 0.05
SLOW: Final = 0.1
# Events between two savepoints, after a slice was undone.
FIRST_GUARD: Final = 8
# A handler that loses its connection this often in a row, while the database accepts others, is the cause.
MOST_LOSSES: Final = 3


@dataclass(slots=True)
class SlicePace:
    """What the slices so far teach about the next: how many events it takes, and how often it sets a savepoint.

    `guard_events`: a savepoint every so many events, while handlers fail; 0 while none do.
    """

    size: int = FIRST
    guard_events: int = 0

    def done(self, work: Slice, seconds: float) -> None:
        """A slice was committed; after a quick one the next may be larger, after a slow one smaller."""
        if seconds > SLOW:
            self.size = max(1, self.size // 2)
        elif seconds < QUICK and len(work.items) >= self.size:
            self.size = min(LARGEST, self.size * 2)
        self.guard_events = work.guard_events if work.failures or work.guard_events < WIDEST_GUARD else 0


class Walk:
    """The events still to be handled, in order, and the next slice of them. `alone`: one each.

    `most_outside_calls`: how many events share a slice if their handlers act outside the transaction. `apart`: an event
    that is known to fail has a slice of its own.
    """

    def __init__(
        self,
        items: Sequence[SliceItem],
        *,
        pace: SlicePace | None = None,
        alone: bool = False,
        strict: bool = False,
        apart: bool = False,
        most_outside_calls: int = 1,
    ) -> None:
        self.waiting = deque(items)
        self._all = len(items)
        self._pace = pace or SlicePace()
        self._alone = alone
        self._strict = strict
        self._apart = apart
        self._most_outside_calls = most_outside_calls
        self._known: dict[int, Failed] = {}
        self._singly = 0
        self._losses = 0

    @property
    def may_rest(self) -> bool:
        """Whether an event got to its end, and no failure is known that would be forgotten."""
        return len(self.waiting) < self._all and not self._known

    def next(self) -> Slice:
        """The next slice, from the front."""
        segment = self._segment()
        known = {place: self._known[id(item)] for place, item in enumerate(segment) if id(item) in self._known}
        # Without an inbox nothing tells events apart that a handler has committed in the middle of a slice.
        guard_events = 0 if self._apart or len(segment) == 1 else self._pace.guard_events
        return Slice(segment, known=known, guard_events=guard_events, strict=self._strict, beyond=self._behind)

    def done(self, work: Slice, seconds: float) -> None:
        """The slice was committed."""
        left = work.left
        if not left and not work.behind:
            for item in work.items:
                self.waiting.popleft()
                self._known.pop(id(item), None)
        else:
            self._remove(work, left)
        self._losses = 0
        self._singly = max(0, self._singly - len(work.items))
        if not self._alone and self._singly == 0 and (len(work.items) > 1 or self._pace.size == 1):
            self._pace.done(work, seconds)

    def _remove(self, work: Slice, left: list[SliceItem]) -> None:
        gone = {id(item) for item in work.items}.difference(id(item) for item in left)
        gone.update(id(item) for item in work.behind)
        self._known = {key: failure for key, failure in self._known.items() if key not in gone}
        self.waiting = deque(item for item in self.waiting if id(item) not in gone)

    def failed(self, work: Slice, problem: SliceFailed) -> None:
        """The slice was undone: its events go again without the one to blame, or one by one to find it."""
        self._losses = 0
        for place, failure in work.failures.items():
            self.blame(work.items[place], failure)
        if len(work.items) == 1:
            self.blame(work.items[0], problem.failure)
        elif problem.index is None or concerns_all(problem.failure):
            self._singly = len(work.items)
        else:
            self.blame(work.items[problem.index], problem.failure)
            self._pace.guard_events = self._pace.guard_events or FIRST_GUARD

    def lost(self, work: Slice, problem: BaseException) -> None:
        """The slice's connection broke; that counts as a failed attempt only if it keeps happening to one event."""
        self._losses = self._losses + 1 if len(work.items) == 1 else 0
        if self._losses >= MOST_LOSSES:
            self._losses = 0
            self.blame(work.items[0], Failed(problem))
        else:
            self._singly = max(self._singly, len(work.items))

    def go_alone(self) -> None:
        """Give each event a slice of its own from now on."""
        self._alone = True

    def blame(self, item: SliceItem, failure: Failed) -> None:
        """Remember that this event failed: its next slice records it and does not call its handler again."""
        self._known[id(item)] = failure

    def _segment(self) -> list[SliceItem]:
        first = self.waiting[0]
        size = 1 if self._alone or self._singly > 0 or first.alone else self._pace.size
        if first.outside:
            size = min(size, self._most_outside_calls)
        if self._apart and self._fails(first):
            size = 1
        segment: list[SliceItem] = []
        for item in self.waiting:
            if len(segment) == size or item.alone != first.alone or (self._apart and segment and self._fails(item)):
                break
            if item.outside != first.outside and not self._fails(item):
                break
            segment.append(item)
        return segment

    def _fails(self, item: SliceItem) -> bool:
        return item.failure is not None or id(item) in self._known

    def _behind(self, aggregates: Collection[Aggregate]) -> list[SliceItem]:
        """The waiting events of these aggregates; those of the slice itself are found by the slice."""
        return [item for item in self.waiting if item.record.aggregate in aggregates]


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
