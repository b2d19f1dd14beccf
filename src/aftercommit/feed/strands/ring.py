"""The newest entries of a strand, and the bytes that all strands together may hold. No I/O.

A reader holds a number. The ring has everything after that number, or says that it does not reach back that far. When
all rings together are too large, the oldest entries are dropped first.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from aftercommit.feed.declaration.cursor import Cursor, same_moment
from aftercommit.feed.declaration.entry import Entry
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.declaration.page import Page, place_of

# The memory of an entry besides its body: the objects around it, measured with sys.getsizeof and rounded up.
ENTRY_BYTES: Final = 400
# How many arrivals of dropped rings are removed at once.
SWEPT_AT_ONCE: Final = 250
_number: Final = attrgetter("number")
_ts: Final = attrgetter("ts")


class Budget:
    """The bytes that all rings together may hold."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        # One reference for each entry in a ring, in order of arrival: all of `_older`, then all of `_arrivals`.
        self._older: deque[Ring] = deque()
        self._arrivals: deque[Ring] = deque()
        self._dead = 0

    @property
    def arrivals(self) -> int:
        """How many arrivals are remembered, those of dropped rings included."""
        return len(self._older) + len(self._arrivals)

    def take(self, ring: "Ring", size: int) -> None:
        """Count one more entry. Drops the oldest entries of all rings, this one included, until all fit."""
        self.used += size
        self._arrivals.append(ring)
        while self.used > self.max_bytes:
            oldest = (self._older or self._arrivals).popleft()
            if oldest.is_open:
                self.used -= oldest.drop_oldest()
            else:
                self._dead -= 1
        self._sweep()

    def give_back(self, entries: int, size: int) -> None:
        """A ring with so many entries was dropped."""
        self.used -= size
        self._dead += entries
        self._sweep()

    def _sweep(self) -> None:
        """Forget some arrivals of dropped rings, if they are the most. A few at a time: there may be a million."""
        if self._dead <= 1000 or self._dead * 2 <= self.arrivals:
            return
        for _ in range(min(SWEPT_AT_ONCE, len(self._arrivals))):
            ring = self._arrivals.popleft()
            if ring.is_open:
                self._older.append(ring)
            else:
                self._dead -= 1
        if not self._arrivals:
            self._older, self._arrivals = self._arrivals, self._older


class Ring(msgspec.Struct, gc=False, eq=False):
    """The newest entries of a strand, in order: every entry after `floor`, up to `head`.

    `first` is the lowest number that the database still keeps. A ring that `is_open` no longer has no entries.
    """

    head: int = 0
    head_ts: datetime | None = None
    first: int = 1
    floor: int = 0
    is_open: bool = True
    size: int = 0
    # How many entries are withheld or held.
    unusual: int = 0
    # A tuple as long as nothing is added or dropped: the garbage collector visits every list, and no tuple of entries.
    _entries: list[Entry] | tuple[Entry, ...] = ()
    # Index of the oldest entry: removing the first item of a long list each time would move all others.
    _start: int = 0

    def __len__(self) -> int:
        """How many entries it has."""
        return len(self._entries) - self._start

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries, in order."""
        return self._entries[self._start :]

    @property
    def _has_all(self) -> bool:
        return self.floor < self.first

    def after(self, number: int, limit: int, chosen: Chosen, upto: int | None = None) -> Page | None:
        """The first matching entries after a number; None when the ring does not reach back that far.

        Entries after `upto` are ignored. `has_more` is left False: `page_after` finds it out.
        """
        if number < self.floor:
            return None
        begin = self._index(number)
        end = len(self._entries) if upto is None else self._index(upto)
        found: Sequence[Entry] = self._entries[begin : min(end, begin + limit)]
        if chosen.tests:
            found = list(islice(filter(chosen.matches, islice(self._entries, begin, max(begin, end))), limit))
        if len(found) == limit:
            return Page(found, place_of(found[-1]))
        return Page(found, self._end(number, end))

    def page_after(self, after: Cursor, end: Cursor, limit: int, chosen: Chosen) -> Page | None:
        """Like `after`, and whether more entries match up to the end; if none do, it has looked up to the end."""
        found = self.after(after.number, limit, chosen, end.number)
        if found is None or len(found.entries) < limit or found.looked.number >= end.number:
            return found
        following = self.after(found.looked.number, 1, chosen, end.number)
        if following is not None and following.entries:
            return msgspec.structs.replace(found, has_more=True)
        return msgspec.structs.replace(found, looked=end)

    def following(self, after: Cursor, end: Cursor, limit: int) -> Page | None:
        """`page_after` without filters, for a cursor at an entry of the ring and the end at its head; or None."""
        entries, begin = self._entries, self._index(after.number)
        here = entries[begin - 1] if begin > self._start else None
        if here is None or here.number != after.number:
            return None
        if after.ts is not None and not same_moment(here.ts, after.ts):
            return None
        found = entries[begin : begin + limit]
        if begin + limit < len(entries):
            return Page(found, place_of(found[-1]), has_more=True, is_plain=not self.unusual)
        return Page(found, end, is_plain=not self.unusual)

    def latest(self, limit: int, chosen: Chosen, upto: int | None = None) -> Page | None:
        """The last matching entries, in order; None when the ring has too few and there may be older ones."""
        end = len(self._entries) if upto is None else self._index(upto)
        found: Sequence[Entry] = self._entries[max(self._start, end - limit) : end]
        if chosen.tests:
            backwards = (self._entries[index] for index in range(end - 1, self._start - 1, -1))
            found = list(islice(filter(chosen.matches, backwards), limit))[::-1]
        if len(found) < limit and not self._has_all:
            return None
        return Page(found, self._end(0, end))

    def before(self, number: int, limit: int, chosen: Chosen) -> Page | None:
        """The last matching entries before a number; None when the ring cannot tell whether there are more."""
        found: list[Entry] = []
        for index in range(self._index(number - 1) - 1, self._start - 1, -1):
            entry = self._entries[index]
            if chosen.matches(entry):
                if len(found) == limit:
                    return Page(found[::-1], place_of(found[-1]), has_more=True)
                found.append(entry)
        return Page(found[::-1], Cursor(0)) if self._has_all else None

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

    def cursor(self, number: int) -> Cursor | None:
        """The cursor at the head, or at an entry in the ring; None for any other number."""
        if number == self.head:
            return Cursor(number, self.head_ts)
        entry = self.entry(number)
        return place_of(entry) if entry is not None else None

    def fill(self, entries: Sequence[Entry]) -> None:
        """Begin with these entries."""
        self._entries, self.size = tuple(entries), sum(map(size_of, entries))
        self.unusual = sum(map(_is_unusual, entries))

    def keep(self, entry: Entry) -> int:
        """Add an entry; returns its size in bytes."""
        size = size_of(entry)
        self._list().append(entry)
        self.size += size
        self.unusual += _is_unusual(entry)
        return size

    def drop_oldest(self) -> int:
        """Drop the oldest entry; returns its size in bytes."""
        entry = self._entries[self._start]
        size = size_of(entry)
        self.size -= size
        self.unusual -= _is_unusual(entry)
        self.floor = entry.number
        entries = self._list()
        entries[self._start] = _NOTHING
        self._start += 1
        if self._start == len(entries):
            self._entries, self._start = (), 0
        elif self._start * 2 > len(entries):
            del entries[: self._start]
            self._start = 0
        return size

    def close(self) -> None:
        """Drop all entries for good."""
        self.is_open, self.floor = False, self.head
        self._entries, self._start, self.size, self.unusual = (), 0, 0, 0

    def _list(self) -> list[Entry]:
        if isinstance(self._entries, tuple):
            self._entries = list(self._entries)
        return self._entries

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


def size_of(entry: Entry) -> int:
    """The bytes that an entry takes in memory."""
    return len(entry.body) + ENTRY_BYTES


def _is_unusual(entry: Entry) -> bool:
    return entry.withheld or entry.held is not None


_NOTHING: Final = Entry(0, 0, datetime.fromtimestamp(0, UTC), "", b"", ())
