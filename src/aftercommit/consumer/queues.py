"""Queues of events per aggregate, for a consumer that handles several aggregates at a time. Nothing runs here."""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from aftercommit.consumer.slices import SliceItem

Aggregate = tuple[str, str]

# So many aggregates are known to be slow; the one that was slow the longest time ago is forgotten first.
MOST_SLOW: Final = 1000


class AggregateQueues:
    """The events of the log that were read and are not finished, in the order of each aggregate.

    An aggregate is at work in one slice at most. One whose handlers are slow does not share a slice with others.
    `events` and `payload_bytes`: how much is in memory. `ready`: how many events a slice could take now.
    """

    def __init__(self) -> None:
        self.payload_bytes = 0
        self.ready = 0
        self._queues: dict[Aggregate, deque[SliceItem]] = {}
        # Aggregates with events that may go, in turn; the slow ones apart.
        self._turns: tuple[OrderedDict[Aggregate, None], OrderedDict[Aggregate, None]] = (OrderedDict(), OrderedDict())
        # At work in a slice, or claimed for letters.
        self._busy: set[Aggregate] = set()
        self._claimed: set[Aggregate] = set()
        self._slow: OrderedDict[Aggregate, None] = OrderedDict()
        self._open: set[int] = set()
        self._positions: deque[int] = deque()

    @property
    def events(self) -> int:
        """How many events are not finished."""
        return len(self._open)

    @property
    def lowest(self) -> int | None:
        """The lowest position that is not finished; None if all are."""
        while self._positions and self._positions[0] not in self._open:
            self._positions.popleft()
        return self._positions[0] if self._positions else None

    def has(self, aggregate: Aggregate) -> bool:
        """Whether an event of the aggregate is waiting here or at work."""
        queue = self._queues.get(aggregate)
        return bool(queue) or (queue is not None and aggregate not in self._claimed)

    def add(self, items: Iterable[SliceItem]) -> None:
        """Events of the log, behind all others."""
        for item in items:
            aggregate = item.record.aggregate
            queue = self._queues.get(aggregate)
            if queue is None:
                queue = self._queues[aggregate] = deque()
            queue.append(item)
            self._open.add(item.position)
            self._positions.append(item.position)
            self.payload_bytes += len(item.record.payload)
            if aggregate in self._busy:
                continue
            self.ready += 1
            if len(queue) == 1:
                self._turns[aggregate in self._slow][aggregate] = None

    def take(self, size: int, slots: int, *, slow: bool) -> list[SliceItem]:
        """The next events for one of so many free slots: of one slow aggregate, or of a share of the quick ones."""
        turns, taken = self._turns[slow], list[SliceItem]()
        most = 1 if slow else -(-len(turns) // slots)
        while turns and most > 0 and len(taken) < size:
            aggregate, _ = turns.popitem(last=False)
            queue = self._queues[aggregate]
            self._busy.add(aggregate)
            self.ready -= len(queue)
            while queue and len(taken) < size:
                taken.append(queue.popleft())
            most -= 1
        return taken

    def claim(self, aggregate: Aggregate) -> bool:
        """Keep slices away from an aggregate whose letters are tried again; False while one is at work on it."""
        if aggregate in self._busy:
            return False
        self._busy.add(aggregate)
        self._claimed.add(aggregate)
        for turns in self._turns:
            if aggregate in turns:
                del turns[aggregate]
                self.ready -= len(self._queues[aggregate])
        return True

    def release(self, aggregates: Iterable[Aggregate]) -> None:
        """Slices may take these aggregates again."""
        for aggregate in aggregates:
            self._busy.discard(aggregate)
            self._claimed.discard(aggregate)
            queue = self._queues.get(aggregate)
            if queue:
                self.ready += len(queue)
                self._turns[aggregate in self._slow][aggregate] = None
            elif queue is not None:
                del self._queues[aggregate]

    def give_back(self, taken: Sequence[SliceItem], left: Sequence[SliceItem]) -> None:
        """A slice ended: what is left of the events that it took comes first again, the others are finished."""
        kept = {item.position for item in left}
        for item in taken:
            if item.position not in kept:
                self._finish(item)
        for item in reversed(left):
            self._queues[item.record.aggregate].appendleft(item)
        self.release(dict.fromkeys(item.record.aggregate for item in taken))

    def waiting(self, aggregate: Aggregate) -> list[SliceItem]:
        """What waits here of an aggregate."""
        return list(self._queues.get(aggregate, ()))

    def withdraw(self, aggregate: Aggregate) -> None:
        """Drop what waits here of an aggregate that is at work or claimed: letters of it were written instead."""
        queue = self._queues.get(aggregate)
        while queue:
            self._finish(queue.popleft())

    def note_pace(self, aggregates: Iterable[Aggregate], slow: Collection[Aggregate]) -> None:
        """Which of the aggregates of a slice were slow."""
        for aggregate in aggregates:
            self._slow.pop(aggregate, None)
            if aggregate in slow:
                self._slow[aggregate] = None
        while len(self._slow) > MOST_SLOW:
            self._slow.popitem(last=False)

    def _finish(self, item: SliceItem) -> None:
        self._open.discard(item.position)
        self.payload_bytes -= len(item.record.payload)
