"""Queues of events per aggregate, for a consumer that handles several aggregates at a time. Nothing runs here."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final
from uuid import UUID

from aftercommit.consumer.slice import Aggregate
from aftercommit.consumer.slices import SliceItem

# So many aggregates are known to be slow; the one that was slow the longest time ago is forgotten first.
MOST_SLOW: Final = 1000


class AggregateQueues:
    """The events that were read and are not handled, in the order of each aggregate.

    An aggregate is at work in one slice at most. One whose handlers are slow has slices of its own.
    """

    def __init__(self) -> None:
        self.events = 0
        self.bytes = 0
        self.ready = 0
        self.letters: dict[UUID, Aggregate] = {}
        self._queues: dict[Aggregate, deque[SliceItem]] = {}
        # Aggregates with events that no slice has, in turn.
        self._turns: dict[bool, deque[Aggregate]] = {False: deque(), True: deque()}
        self._busy: set[Aggregate] = set()
        self._slow: dict[Aggregate, None] = {}
        # Positions of new events, ascending, because a dict keeps the order in which they were read.
        self._positions: dict[int, None] = {}
        # How many new events each aggregate has here, those at work included.
        self._new: Counter[Aggregate] = Counter()

    @property
    def lowest(self) -> int | None:
        """The lowest position that is not finished; None if all are."""
        return next(iter(self._positions), None)

    @property
    def aggregates_with_letters(self) -> set[Aggregate]:
        """The aggregates that have letters here."""
        return set(self.letters.values())

    def has_new(self, aggregate: Aggregate) -> bool:
        """Whether new events of the aggregate are here, or at work."""
        return aggregate in self._new

    def add(self, items: Iterable[SliceItem]) -> None:
        """Events of the log, behind all others."""
        for item in items:
            self._positions[item.position] = None
            self._new[item.record.aggregate] += 1
            self._put(item)

    def add_letters(self, items: Sequence[SliceItem]) -> None:
        """Dead letters: each comes before the new events of its aggregate, and behind its other letters."""
        for item in items:
            self.letters[item.record.event_id] = item.record.aggregate
            queue = self._queues.get(item.record.aggregate, ())
            self._put(item, sum(1 for each in queue if each.due_at is not None))

    def take(self, size: int, *, slow: bool, slots: int = 1) -> list[SliceItem]:
        """The next events for one of so many free slots, all new or all letters.

        They are of one slow aggregate, or of a share of the quick ones. Where each has a slot, none waits for another.
        """
        turns, taken = self._turns[slow], list[SliceItem]()
        most = 1 if slow else -(-len(turns) // slots)
        skipped: list[Aggregate] = []
        while turns and len(taken) < size and most > 0:
            aggregate = turns.popleft()
            queue = self._queues[aggregate]
            is_letter = queue[0].due_at is not None
            if taken and is_letter != (taken[0].due_at is not None):
                skipped.append(aggregate)
                continue
            self._busy.add(aggregate)
            self.ready -= len(queue)
            while queue and len(taken) < size and (queue[0].due_at is not None) == is_letter:
                taken.append(queue.popleft())
            most -= 1
        turns.extendleft(reversed(skipped))
        return taken

    def give_back(self, taken: Sequence[SliceItem], left: Sequence[SliceItem]) -> None:
        """A slice ended: what is left of the events that it took comes first again, the others are finished.

        Letters that are left are read again, and with them all letters of their aggregate, so that none overtakes.
        """
        kept = {id(item) for item in left}
        for item in reversed(taken):
            if id(item) in kept and item.due_at is None:
                self._queues[item.record.aggregate].appendleft(item)
            else:
                self._finish(item)
        for aggregate in {item.record.aggregate for item in left if item.due_at is not None}:
            queue = self._queues[aggregate]
            while queue and queue[0].due_at is not None:
                self._finish(queue.popleft())
        for aggregate in dict.fromkeys(item.record.aggregate for item in taken):
            self._busy.discard(aggregate)
            self._wait_for_turn(aggregate)

    def remove(self, aggregates: Collection[Aggregate]) -> list[SliceItem]:
        """Take away what waits of these aggregates, which are at work in a slice."""
        removed: list[SliceItem] = []
        for aggregate in aggregates:
            queue = self._queues[aggregate]
            removed += queue
            queue.clear()
        for item in removed:
            self._finish(item)
        return removed

    def note_pace(self, aggregates: Iterable[Aggregate], slow: Collection[Aggregate]) -> None:
        """Which of the aggregates of a slice were slow."""
        for aggregate in aggregates:
            self._slow.pop(aggregate, None)
            if aggregate in slow:
                self._slow[aggregate] = None
        while len(self._slow) > MOST_SLOW:
            del self._slow[next(iter(self._slow))]

    def _put(self, item: SliceItem, place: int | None = None) -> None:
        aggregate = item.record.aggregate
        queue = self._queues.get(aggregate)
        is_new = queue is None
        if queue is None:
            queue = self._queues[aggregate] = deque()
        self.events += 1
        self.bytes += len(item.record.payload)
        queue.insert(len(queue) if place is None else place, item)
        if aggregate in self._busy:
            return
        if is_new:
            self._wait_for_turn(aggregate)
        else:
            self.ready += 1

    def _wait_for_turn(self, aggregate: Aggregate) -> None:
        queue = self._queues[aggregate]
        if queue:
            self.ready += len(queue)
            self._turns[aggregate in self._slow].append(aggregate)
        else:
            del self._queues[aggregate]

    def _finish(self, item: SliceItem) -> None:
        self.events -= 1
        self.bytes -= len(item.record.payload)
        if item.due_at is None:
            del self._positions[item.position]
            self._new[item.record.aggregate] -= 1
            if not self._new[item.record.aggregate]:
                del self._new[item.record.aggregate]
        else:
            self.letters.pop(item.record.event_id, None)
