"""A strand: the events of one feed for one key, as far as this process knows. No I/O.

A strand knows its head for certain and keeps the newest entries in a ring. A reader holds a number. The ring has
everything after that number, or says that it does not reach back that far. All rings together are bounded in bytes;
the oldest entries are dropped first.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from operator import attrgetter
from typing import Final
from uuid import UUID

import msgspec

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.entry import Entry
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.strands.found import Found, place_of
from aftercommit.service import Waker

# The memory of an entry besides its body: the objects around it, measured with sys.getsizeof and rounded up.
ENTRY_BYTES: Final = 400
# How much a strand sets aside while it is loaded. Loading takes milliseconds; a hanging database must not cost more.
PENDING_BYTES: Final = 4 << 20
_number: Final = attrgetter("number")
_ts: Final = attrgetter("ts")


class Loaded(msgspec.Struct, frozen=True):
    """A strand as the database has it at one moment, with its newest entries in order.

    `first` is the lowest number that is still kept. After `floor`, `entries` has every entry. `gaps` are ranges of
    numbers that no event ever had; it is empty where a strand is only a part of the log.
    """

    epoch: UUID
    head: int
    head_ts: datetime | None
    first: int
    total: int | None
    entries: Sequence[Entry]
    floor: int
    gaps: tuple[tuple[int, int], ...] = ()


class Budget:
    """The bytes that all rings together may hold."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        # One reference for each entry in a ring, in order of arrival.
        self._arrivals: deque[Strand] = deque()
        self._dead = 0

    def take(self, strand: "Strand", size: int) -> None:
        """Count one more entry. Drops the oldest entries of all rings, this one included, until all fit."""
        self.used += size
        self._arrivals.append(strand)
        while self.used > self.max_bytes:
            oldest = self._arrivals.popleft()
            if oldest.current:
                self.used -= oldest.drop_oldest()
            else:
                self._dead -= 1

    def give_back(self, entries: int, size: int) -> None:
        """A strand with so many entries was dropped."""
        self.used -= size
        self._dead += entries
        if self._dead > 1000 and self._dead * 2 > len(self._arrivals):
            self._arrivals = deque(strand for strand in self._arrivals if strand.current)
            self._dead = 0


class Strand:
    """One strand, as far as this process knows it.

    `head` is the highest number, `total` the number of events (None where counting would cost too much). The ring has
    every entry after `floor`. Once `current` is False, nothing is added any more: ask the hub for the strand again.
    """

    __slots__ = tuple(
        "current epoch feed first floor gaps head head_ts key loading rules total used_at "
        "_bell _budget _bytes _entries _holders _pending _pending_bytes _start".split()
    )

    def __init__(self, feed: Feed, key: str, budget: Budget) -> None:
        """Not loaded yet: events that arrive before `fill` are set aside."""
        self.feed = feed
        self.key = key
        # The version of the redaction with which the entries are made.
        self.rules = feed.version
        self.head = 0
        self.head_ts: datetime | None = None
        self.first = 1
        self.total: int | None = None
        self.epoch = UUID(int=0)
        self.gaps: tuple[tuple[int, int], ...] = ()
        self.current = True
        self.used_at = 0.0
        self.loading: asyncio.Task[None] | None = None
        self._budget = budget
        self._bytes = 0
        self._entries: list[Entry] = []
        # Index of the oldest entry: removing the first item of a long list each time would move all others.
        self._start = 0
        self.floor = 0
        self._pending: list[Entry] | None = []
        self._pending_bytes = 0
        self._bell: Waker | None = None
        self._holders = 0

    @property
    def is_held(self) -> bool:
        """Whether a reader waits for new events, or is inside `held()`."""
        return self._holders > 0 or (self._bell is not None and bool(self._bell.sleepers))

    @property
    def _has_all(self) -> bool:
        return self.floor < self.first

    @property
    def ring(self) -> Sequence[Entry]:
        """The entries in the ring, in order."""
        return self._entries[self._start :]

    def after(self, number: int, limit: int, chosen: Chosen, upto: int | None = None) -> Found | None:
        """The first matching entries after a number; None when the ring does not reach back that far.

        Entries after `upto` are ignored. `more` is left False: `page_after` finds it out.
        """
        if number < self.floor:
            return None
        begin = self._index(number)
        end = len(self._entries) if upto is None else self._index(upto)
        if chosen.tests:
            found = list(islice(filter(chosen.matches, islice(self._entries, begin, max(begin, end))), limit))
        else:
            found = self._entries[begin : min(end, begin + limit)]
        if len(found) == limit:
            return Found(found, place_of(found[-1]))
        return Found(found, self._end(number, end))

    def page_after(self, after: Cursor, end: Cursor, limit: int, chosen: Chosen) -> Found | None:
        """Like `after`, and whether more entries match up to the end; if none do, it has looked up to the end."""
        found = self.after(after.number, limit, chosen, end.number)
        if found is None or len(found.entries) < limit or found.looked.number >= end.number:
            return found
        following = self.after(found.looked.number, 1, chosen, end.number)
        if following is not None and following.entries:
            return msgspec.structs.replace(found, more=True)
        return msgspec.structs.replace(found, looked=end)

    def latest(self, limit: int, chosen: Chosen, upto: int | None = None) -> Found | None:
        """The last matching entries, in order; None when the ring has too few and there may be older ones."""
        end = len(self._entries) if upto is None else self._index(upto)
        if chosen.tests:
            backwards = (self._entries[index] for index in range(end - 1, self._start - 1, -1))
            found = list(islice(filter(chosen.matches, backwards), limit))[::-1]
        else:
            found = self._entries[max(self._start, end - limit) : end]
        if len(found) < limit and not self._has_all:
            return None
        return Found(found, self._end(0, end))

    def before(self, number: int, limit: int, chosen: Chosen) -> Found | None:
        """The last matching entries before a number; None when the ring cannot tell whether there are more."""
        found: list[Entry] = []
        for index in range(self._index(number - 1) - 1, self._start - 1, -1):
            entry = self._entries[index]
            if chosen.matches(entry):
                if len(found) == limit:
                    return Found(found[::-1], place_of(found[-1]), more=True)
                found.append(entry)
        return Found(found[::-1], Cursor(0)) if self._has_all else None

    def before_moment(self, moment: datetime) -> Cursor | None:
        """The place of the last event before a moment; None when the ring does not reach back that far."""
        if self.head_ts is None or self.head_ts < moment:
            return Cursor(self.head, self.head_ts)
        index = bisect_left(self._entries, moment, lo=self._start, key=_ts)
        if index > self._start:
            return place_of(self._entries[index - 1])
        return Cursor(0) if self._has_all else None

    def entry(self, number: int) -> Entry | None:
        """The entry with this number, if the ring has it."""
        index = self._index(number) - 1
        if index >= self._start and self._entries[index].number == number:
            return self._entries[index]
        return None

    def changed(self) -> Waker:
        """Rings when the head moves and when the strand stops being current. Check both before you wait."""
        if self._bell is None:
            self._bell = Waker()
        return self._bell

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps the strand in memory while the block runs, even if nobody asks for it."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1

    def wants(self, number: int) -> bool:
        """Whether an event with this number is new. While the strand is loaded, any may be."""
        return number > self.head or self._pending is not None

    def add(self, entry: Entry) -> bool:
        """Add an event from the log; False if it is known already, or set aside because the strand is being loaded.

        A strand that would set aside too much stops being current.
        """
        if self._pending is not None:
            self._pending.append(entry)
            self._pending_bytes += _size(entry)
            if self._pending_bytes > PENDING_BYTES:
                self.retire()
            return False
        if entry.number <= self.head:
            return False
        self.head, self.head_ts = entry.number, entry.ts
        if self.total is not None:
            self.total += 1
        self._keep(entry)
        return True

    def fill(self, loaded: Loaded) -> None:
        """Take what the database had, then what has arrived since: each number once, in order."""
        pending, self._pending = self._pending or [], None
        self.epoch, self.first, self.total = loaded.epoch, loaded.first, loaded.total
        self.head, self.head_ts, self.floor = loaded.head, loaded.head_ts, loaded.floor
        self.gaps = loaded.gaps
        for entry in loaded.entries:
            self._keep(entry)
        for entry in pending:
            self.add(entry)

    def retire(self) -> None:
        """Stop being current: drop all entries and wake everybody who waits."""
        if self.current:
            self.current = False
            self._budget.give_back(len(self._entries) - self._start, self._bytes)
            self._entries, self._start, self._bytes = [], 0, 0
            if self._pending is not None:
                self._pending = []
            self.floor = self.head
            self.ring_bell()

    def ring_bell(self) -> None:
        """Wake everybody who waits now. The bell is not left set: a later reader looks at the head first."""
        if self._bell is not None:
            self._bell.set()
            self._bell.clear()

    def drop_oldest(self) -> int:
        """Drop the oldest entry; returns its size in bytes."""
        entry = self._entries[self._start]
        size = _size(entry)
        self._bytes -= size
        self.floor = entry.number
        self._entries[self._start] = _NOTHING
        self._start += 1
        if self._start * 2 > len(self._entries):
            del self._entries[: self._start]
            self._start = 0
        return size

    def cursor(self, number: int) -> Cursor | None:
        """The cursor at the head, or at an entry in the ring; None for any other number."""
        if number == self.head:
            return Cursor(number, self.head_ts)
        entry = self.entry(number)
        return place_of(entry) if entry is not None else None

    def _keep(self, entry: Entry) -> None:
        size = _size(entry)
        self._entries.append(entry)
        self._bytes += size
        self._budget.take(self, size)

    def _index(self, number: int) -> int:
        """The index after the entry with this number, or where it would be."""
        entries, start = self._entries, self._start
        if start < len(entries):
            # The numbers of a stream have no gaps within an epoch of the log, so the index is mostly a subtraction.
            index = start + number - entries[start].number
            if start <= index < len(entries) and entries[index].number == number:
                return index + 1
        return bisect_right(entries, number, lo=start, key=_number)

    def _end(self, number: int, end: int) -> Cursor:
        """How far a search looked that began after a number and saw all entries before the index `end`."""
        if end == len(self._entries):
            return Cursor(self.head, self.head_ts) if self.head >= number else Cursor(number)
        if end > self._start and self._entries[end - 1].number >= number:
            return place_of(self._entries[end - 1])
        return Cursor(number)


def _size(entry: Entry) -> int:
    return len(entry.body) + ENTRY_BYTES


_NOTHING: Final = Entry(0, 0, datetime.fromtimestamp(0, UTC), UUID(int=0), b"", ())
