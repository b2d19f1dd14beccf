"""A strand: the events of one feed for one key, as far as this process knows. Nothing is read here.

It knows its head for certain and keeps the newest entries in a ring. A reader holds an integer; what it has not seen is
in the ring, or the ring says that it is not. All rings together are bounded in bytes, and the oldest entries go first.
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
from aftercommit.service import Waker

# What an entry costs beside its body: the objects around it, measured with sys.getsizeof and rounded up.
ENTRY_BYTES: Final = 400
# What a strand sets aside while it is being loaded. That takes milliseconds; a database that hangs must not cost more.
PENDING_BYTES: Final = 4 << 20
_number: Final = attrgetter("number")
_ts: Final = attrgetter("ts")


class EntryWindow(msgspec.Struct, frozen=True):
    """Entries after a place, and how far was looked: what is not among them up to there does not match."""

    entries: Sequence[Entry]
    looked_upto: int
    ts: datetime | None


class Backwards(msgspec.Struct, frozen=True):
    """Entries before a place, in order, and whether there are more further back."""

    entries: Sequence[Entry]
    more: bool


class Loaded(msgspec.Struct, frozen=True):
    """What the database says about a strand at one moment: the newest entries in order, and what lies around them.

    `first` is the lowest number that is still kept, `floor` the number behind which the entries are all there are.
    `gaps` are ranges of numbers that were never given, where all others are in the strand.
    """

    epoch: UUID
    head: int
    head_ts: datetime | None
    first: int
    total: int | None
    entries: Sequence[Entry]
    floor: int
    gaps: tuple[tuple[int, int], ...] = ()


class Bell(Waker):
    """Rings for everybody who waits at this moment, and for nobody later: who comes looks at the head first."""

    def ring(self) -> None:
        """Wake them."""
        super().set()
        super().clear()


class Budget:
    """The bytes that all rings together may hold."""

    def __init__(self, max_bytes: int) -> None:
        """Empty."""
        self.most = max_bytes
        self.used = 0
        # One reference for each entry of a ring, in the order in which they came.
        self._arrivals: deque[Strand] = deque()
        self._dead = 0

    def take(self, strand: "Strand", size: int) -> None:
        """Room for one more entry, which may cost others theirs, or itself."""
        self.used += size
        self._arrivals.append(strand)
        while self.used > self.most:
            oldest = self._arrivals.popleft()
            if oldest.current:
                self.used -= oldest.drop_oldest()
            else:
                self._dead -= 1

    def give_back(self, entries: int, size: int) -> None:
        """A strand has gone with so many entries."""
        self.used -= size
        self._dead += entries
        if self._dead > 1000 and self._dead * 2 > len(self._arrivals):
            self._arrivals = deque(strand for strand in self._arrivals if strand.current)
            self._dead = 0


class Strand:
    """What this process knows of one strand.

    `head` is the highest number there is, `total` how many events (None where nobody counts). Once `current` is False
    nothing is added any more: ask the hub for the strand again.
    """

    __slots__ = (
        "_bell",
        "_budget",
        "_bytes",
        "_entries",
        "_floor",
        "_holders",
        "_pending",
        "_pending_bytes",
        "_start",
        "current",
        "epoch",
        "feed",
        "first",
        "gaps",
        "head",
        "head_ts",
        "key",
        "loading",
        "total",
        "used_at",
    )

    def __init__(self, feed: Feed, key: str, budget: Budget) -> None:
        """Registered, and not loaded: what arrives from now on is kept until it is."""
        self.feed = feed
        self.key = key
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
        # The ring begins here in the list: taking the first out of a long list each time would move all others.
        self._start = 0
        self._floor = 0
        self._pending: list[Entry] | None = []
        self._pending_bytes = 0
        self._bell: Bell | None = None
        self._holders = 0

    @property
    def is_held(self) -> bool:
        """Whether somebody waits for news of it, or said that they will."""
        return self._holders > 0 or (self._bell is not None and bool(self._bell.sleepers))

    @property
    def floor(self) -> int:
        """Every entry with a higher number is in the ring."""
        return self._floor

    @property
    def _has_all(self) -> bool:
        return self._floor < self.first

    @property
    def ring(self) -> Sequence[Entry]:
        """The entries in the ring, in order."""
        return self._entries[self._start :]

    def after(self, number: int, limit: int, chosen: Chosen, upto: int | None = None) -> EntryWindow | None:
        """The first entries behind a number that match, or None when the ring does not reach back that far.

        With `upto` the strand ends there, whatever has come since.
        """
        if number < self._floor:
            return None
        begin = self._place(number)
        end = len(self._entries) if upto is None else self._place(upto)
        if chosen.tests:
            found = list(islice(filter(chosen.matches, islice(self._entries, begin, max(begin, end))), limit))
        else:
            found = self._entries[begin : min(end, begin + limit)]
        if len(found) == limit:
            return EntryWindow(found, found[-1].number, found[-1].ts)
        return EntryWindow(found, *self._end(number, end))

    def latest(self, limit: int, chosen: Chosen, upto: int | None = None) -> EntryWindow | None:
        """The last entries that match, in order; None when there may be more of them than the ring has."""
        end = len(self._entries) if upto is None else self._place(upto)
        if chosen.tests:
            backwards = (self._entries[place] for place in range(end - 1, self._start - 1, -1))
            found = list(islice(filter(chosen.matches, backwards), limit))[::-1]
        else:
            found = self._entries[max(self._start, end - limit) : end]
        if len(found) < limit and not self._has_all:
            return None
        return EntryWindow(found, *self._end(0, end))

    def before(self, number: int, limit: int, chosen: Chosen) -> Backwards | None:
        """The last entries before a number that match, or None when it takes more than the ring to tell."""
        found: list[Entry] = []
        for place in range(self._place(number - 1) - 1, self._start - 1, -1):
            entry = self._entries[place]
            if chosen.matches(entry):
                if len(found) == limit:
                    return Backwards(found[::-1], True)
                found.append(entry)
        return Backwards(found[::-1], False) if self._has_all else None

    def before_moment(self, moment: datetime) -> Cursor | None:
        """The last place before a moment, or None when the ring does not reach back that far."""
        if self.head_ts is None or self.head_ts < moment:
            return Cursor(self.head, self.head_ts)
        place = bisect_left(self._entries, moment, lo=self._start, key=_ts)
        if place > self._start:
            return Cursor(self._entries[place - 1].number, self._entries[place - 1].ts)
        return Cursor(0) if self._has_all else None

    def entry(self, number: int) -> Entry | None:
        """The entry of this number, if the ring has it."""
        place = self._place(number) - 1
        if place >= self._start and self._entries[place].number == number:
            return self._entries[place]
        return None

    def changed(self) -> Bell:
        """Rings when the head moves, and when the strand is no longer current. Look at both before you wait."""
        if self._bell is None:
            self._bell = Bell()
        return self._bell

    @contextmanager
    def held(self) -> Iterator[None]:
        """Kept while the block runs, however long nobody asks for it."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1

    def wants(self, number: int) -> bool:
        """Whether an event of this number would be news, or may be: while the strand is being loaded nobody knows."""
        return number > self.head or self._pending is not None

    def add(self, entry: Entry) -> bool:
        """An event from the log; False when it is known already. While the strand is being loaded it is set aside.

        When that becomes too much, the strand is no longer current.
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
        """What the database had, and then what has arrived since: each number once, in order."""
        pending, self._pending = self._pending or [], None
        self.epoch, self.first, self.total = loaded.epoch, loaded.first, loaded.total
        self.head, self.head_ts, self._floor = loaded.head, loaded.head_ts, loaded.floor
        self.gaps = loaded.gaps
        for entry in loaded.entries:
            self._keep(entry)
        for entry in pending:
            self.add(entry)

    def retire(self) -> None:
        """No longer current: forgets its entries, and everybody who waits is woken."""
        if self.current:
            self.current = False
            self._budget.give_back(len(self._entries) - self._start, self._bytes)
            self._entries, self._start, self._bytes = [], 0, 0
            if self._pending is not None:
                self._pending = []
            self._floor = self.head
            self.ring_bell()

    def ring_bell(self) -> None:
        """Wake those who wait for news."""
        if self._bell is not None:
            self._bell.ring()

    def drop_oldest(self) -> int:
        """Let the oldest entry go; returns its bytes."""
        entry = self._entries[self._start]
        size = _size(entry)
        self._bytes -= size
        self._floor = entry.number
        self._entries[self._start] = _NOTHING
        self._start += 1
        if self._start * 2 > len(self._entries):
            del self._entries[: self._start]
            self._start = 0
        return size

    def cursor(self, number: int) -> Cursor | None:
        """The cursor at an entry or at the head, if their time is known here."""
        if number == self.head:
            return Cursor(number, self.head_ts)
        entry = self.entry(number)
        return Cursor(number, entry.ts) if entry is not None else None

    def _keep(self, entry: Entry) -> None:
        size = _size(entry)
        self._entries.append(entry)
        self._bytes += size
        self._budget.take(self, size)

    def _place(self, number: int) -> int:
        """The place in the list behind the entry of this number, or where it would be."""
        entries, start = self._entries, self._start
        if start < len(entries):
            # The numbers of a stream have no gaps within a life of the log, so that the place can mostly be told.
            place = start + number - entries[start].number
            if start <= place < len(entries) and entries[place].number == number:
                return place + 1
        return bisect_right(entries, number, lo=start, key=_number)

    def _end(self, number: int, end: int) -> tuple[int, datetime | None]:
        """How far was looked when everything up to a place in the list was: never back before where one began."""
        if end == len(self._entries):
            return (self.head, self.head_ts) if self.head >= number else (number, None)
        if end > self._start and self._entries[end - 1].number >= number:
            return self._entries[end - 1].number, self._entries[end - 1].ts
        return number, None


def _size(entry: Entry) -> int:
    return len(entry.body) + ENTRY_BYTES


_NOTHING: Final = Entry(0, 0, datetime.fromtimestamp(0, UTC), UUID(int=0), b"", ())
