"""A strand: the events of one feed for one key, as far as this process knows. No I/O.

A strand knows its head for certain and keeps the newest entries in a ring.

There may be tens of thousands of strands. So that the garbage collector does not visit each of them, strands and rings
are structs without its bookkeeping, and nothing that they hold refers back to them once they are loaded.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from aftercommit.feed.declaration.entry import Entry
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.declaration.page import Page
from aftercommit.feed.strands.ring import Budget, Ring, size_of
from aftercommit.service import Waker

# How much a strand sets aside while it is loaded. Loading takes milliseconds; a hanging database must not cost more.
PENDING_BYTES: Final = 4 << 20
_NO_EPOCH: Final = UUID(int=0)


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


class Bell(Waker):
    """Wakes everybody who waits for a strand's news. `listeners` are called instead of woken."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: dict[Callable[[], None], None] = {}

    @property
    def is_heard(self) -> bool:
        """Whether anybody would notice."""
        return bool(self.sleepers or self.listeners)

    def ring(self) -> None:
        """Wake everybody who waits now. The bell is not left set: a later reader looks at the head first."""
        self.set()
        self.clear()
        for listener in tuple(self.listeners):
            listener()


class Pending(msgspec.Struct, gc=False):
    """What has arrived while a strand is loaded."""

    entries: list[Entry] = msgspec.field(default_factory=list)
    size: int = 0


class Strand(msgspec.Struct, gc=False, eq=False):
    """One strand, as far as this process knows it.

    `total` is the number of events (None where counting would cost too much). While the strand is loaded, events that
    arrive are set aside in `pending`. Once `current` is False, nothing is added any more: ask the hub for the strand
    again.
    """

    feed: Feed
    key: str
    budget: Budget
    # The version of the redaction with which the entries are made.
    rules: str = ""
    ring: Ring = msgspec.field(default_factory=Ring)
    total: int | None = None
    epoch: UUID = _NO_EPOCH
    gaps: tuple[tuple[int, int], ...] = ()
    current: bool = True
    used_at: float = 0.0
    loading: asyncio.Task[None] | None = None
    pending: Pending | None = msgspec.field(default_factory=Pending)
    _bell: Bell | None = None
    _holders: int = 0

    def __post_init__(self) -> None:
        self.rules = self.feed.version

    @property
    def head(self) -> int:
        """The highest number."""
        return self.ring.head

    @property
    def head_ts(self) -> datetime | None:
        """The time of the event with the highest number."""
        return self.ring.head_ts

    @property
    def is_held(self) -> bool:
        """Whether a reader waits for new events, or is inside `held()`."""
        return self._holders > 0 or (self._bell is not None and self._bell.is_heard)

    def after(self, number: int, limit: int, chosen: Chosen) -> Page | None:
        """The first matching entries after a number; None when the ring does not reach back that far."""
        return self.ring.after(number, limit, chosen)

    def changed(self) -> Bell:
        """Rings when the head moves and when the strand stops being current. Check both before you wait."""
        if self._bell is None:
            self._bell = Bell()
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
        return number > self.ring.head or self.pending is not None

    def add(self, entry: Entry) -> bool:
        """Add an event from the log; False if it is known already, or set aside because the strand is being loaded.

        A strand that would set aside too much stops being current.
        """
        if self.pending is not None:
            self.pending.entries.append(entry)
            self.pending.size += size_of(entry)
            if self.pending.size > PENDING_BYTES:
                self.retire()
            return False
        if entry.number <= self.ring.head:
            return False
        self.ring.head, self.ring.head_ts = entry.number, entry.ts
        if self.total is not None:
            self.total += 1
        self.budget.take(self.ring, self.ring.keep(entry))
        return True

    def fill(self, loaded: Loaded) -> None:
        """Take what the database had, then what has arrived since: each number once, in order."""
        pending, self.pending = self.pending, None
        self.epoch, self.total, self.gaps = loaded.epoch, loaded.total, loaded.gaps
        ring = self.ring
        ring.head, ring.head_ts, ring.first, ring.floor = loaded.head, loaded.head_ts, loaded.first, loaded.floor
        ring.fill(loaded.entries)
        for entry in loaded.entries:
            self.budget.take(ring, size_of(entry))
        for entry in pending.entries if pending is not None else ():
            self.add(entry)

    def retire(self) -> None:
        """Stop being current: drop all entries and wake everybody who waits."""
        if self.current:
            self.current = False
            self.budget.give_back(len(self.ring), self.ring.size)
            self.ring.close()
            if self.pending is not None:
                self.pending = Pending()
            self.ring_bell()

    def ring_bell(self) -> None:
        """Wake everybody who waits now."""
        if self._bell is not None:
            self._bell.ring()
