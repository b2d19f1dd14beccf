"""The strands in memory: loaded on the first request, updated by the tailers, dropped when no reader asks for them.

A strand is registered before it is loaded, so that it misses no event that is appended meanwhile. Numbers tell which
events came twice.
"""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from aftercommit.errors import DatabaseUnavailable
from aftercommit.feed.declaration.entry import StoredEvent
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.strands.entry_maker import EntryMaker
from aftercommit.feed.strands.history import History
from aftercommit.feed.strands.ring import Budget
from aftercommit.feed.strands.strand import Loaded, Strand
from aftercommit.feed.strands.time_slice import TimeSlice
from aftercommit.outbox.declaration import Outbox

# How many strands in use are passed over, at most, to find one to drop for a new one.
PASSED_OVER: Final = 250


class KeptStrands:
    """The strands in memory, least recently used first. Tailers hand their events to it.

    Nothing here takes a time that grows with the number of strands, except in slices.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        history: History,
        maker: EntryMaker,
        ring_bytes: int,
        max_strands: int,
        reach: Callable[..., Awaitable[None]],
    ) -> None:
        """`reach` is that of the hub: loading passes through points at which tests wait."""
        # By outbox, and there by feed and key as one text: the garbage collector visits no text, but every new tuple.
        self._strands: dict[Outbox, OrderedDict[str, Strand]] = defaultdict(OrderedDict)
        self.budget = Budget(ring_bytes)
        self._feeds: dict[Outbox, list[Feed]] = defaultdict(list)
        for feed in feeds:
            self._feeds[feed.outbox].append(feed)
        self._history = history
        self._maker = maker
        self._reach = reach
        self._max_strands = max_strands
        self._loads: set[asyncio.Task[None]] = set()
        self._changed: dict[Outbox, set[Strand]] = defaultdict(set)

    def __len__(self) -> int:
        """How many strands are in memory."""
        return sum(map(len, self._strands.values()))

    def find(self, feed: Feed, key: str, *, touch: bool = False) -> Strand | None:
        """The strand, if it is in memory; with `touch` it counts as just used."""
        strands, place = self._strands[feed.outbox], _place(feed, key)
        strand = strands.get(place)
        if touch and strand is not None:
            strand.used_at = time.monotonic()
            strands.move_to_end(place)
        return strand

    def touch(self, strand: Strand) -> bool:
        """Count a strand as just used; False if it was dropped."""
        strands, place = self._strands[strand.feed.outbox], _place(strand.feed, strand.key)
        if strands.get(place) is not strand:
            return False
        strand.used_at = time.monotonic()
        strands.move_to_end(place)
        return True

    def load(self, feed: Feed, key: str, accepts: Callable[[Loaded], bool]) -> Strand:
        """Register a strand and begin to load it; `strand.loading` is the task. `accepts` is that of its tailer."""
        self._make_room()
        strand = self._strands[feed.outbox][_place(feed, key)] = Strand(feed, key, self.budget)
        strand.used_at = time.monotonic()
        strand.loading = asyncio.create_task(self._load(strand, accepts), name=f"load {feed.name} {key:.40}")
        self._loads.add(strand.loading)
        strand.loading.add_done_callback(partial(self._load_is_over, strand))
        return strand

    def forget(self, strand: Strand) -> None:
        """Drop a strand; readers ask the hub for it again."""
        strands, place = self._strands[strand.feed.outbox], _place(strand.feed, strand.key)
        if strands.get(place) is strand:
            del strands[place]
        strand.retire()

    async def drop_idle(self, idle_seconds: float) -> None:
        """Drop every strand that nobody has asked for in this time."""
        before = time.monotonic() - idle_seconds
        time_slice = TimeSlice()
        for strands in tuple(self._strands.values()):
            while strands and (strand := _first(strands)).used_at <= before:
                self._drop_unless_in_use(strand)
                if time_slice.is_over():
                    await time_slice.give()

    async def close(self, within_seconds: float) -> None:
        """Drop all strands and end what is being loaded."""
        for outbox in tuple(self._strands):
            await self.give_up(outbox)
        if self._loads:
            _, left = await asyncio.wait(self._loads, timeout=within_seconds)
            for load in left:
                load.cancel()

    def take(self, outbox: Outbox, stored: StoredEvent) -> None:
        """Add an event to the strands it belongs to."""
        strands = self._strands[outbox]
        for feed in self._feeds[outbox]:
            if not feed.takes(stored.record.event_type):
                continue
            number, entry = feed.select.number_of(stored), None
            for key in feed.select.keys_of(stored):
                strand = strands.get(_place(feed, key))
                if strand is not None and strand.wants(number):
                    # Made only for strands in memory, and once for all of them.
                    entry = entry or self._maker.entry_of(feed, stored)
                    if strand.add(entry):
                        self._changed[outbox].add(strand)
                    elif not strand.current:
                        # More has come than it sets aside. Its readers wake up and have it loaded again.
                        self.forget(strand)

    async def page_is_through(self, outbox: Outbox) -> None:
        """Wake the readers of the strands that have changed."""
        await _each_in_slices(self._changed.pop(outbox, ()), Strand.ring_bell)

    async def give_up(self, outbox: Outbox) -> None:
        """Drop the strands of an outbox: its log is not the one that they were read from, or too far ahead.

        At once nobody finds them any more. Then their readers are woken.
        """
        self._changed.pop(outbox, None)
        await _each_in_slices(self._strands.pop(outbox, OrderedDict()).values(), Strand.retire)

    async def _load(self, strand: Strand, accepts: Callable[[Loaded], bool]) -> None:
        try:
            await self._reach("feed.loading", feed=strand.feed.name, key=strand.key)
            async with self._history.connections.answered():
                loaded = await self._history.load(strand.feed, strand.key)
            await self._reach("feed.loaded", feed=strand.feed.name, key=strand.key)
        except asyncio.CancelledError:
            # The hub has ended. Those who wait for the strand were not cancelled themselves.
            self.forget(strand)
            raise DatabaseUnavailable("the feeds were stopped while this one was being loaded: try again") from None
        except BaseException:
            self.forget(strand)
            raise
        if strand.current:
            if not accepts(loaded):
                self.forget(strand)
                raise DatabaseUnavailable(f"the log of {strand.feed.outbox.schema!r} has just been restored: try again")
            strand.fill(loaded)
        strand.loading = None

    def _load_is_over(self, strand: Strand, task: asyncio.Task[None]) -> None:
        # An error refers to the strand that it is the error of.
        strand.loading = None
        self._loads.discard(task)
        # A reader that waits sees the error. If none waits, asyncio would complain about an error unseen.
        task.cancelled() or task.exception()

    def _make_room(self) -> None:
        """Drop the least recently used strands, as many as are too many for one more."""
        passed_over = 0
        while passed_over < PASSED_OVER and len(self) >= self._max_strands:
            oldest = min((_first(each) for each in self._strands.values() if each), key=_used_at)
            passed_over += not self._drop_unless_in_use(oldest)

    def _drop_unless_in_use(self, strand: Strand) -> bool:
        """Drop a strand. One that is being loaded or waited for counts as just used instead."""
        if strand.is_held or strand.loading is not None:
            self.touch(strand)
            return False
        self.forget(strand)
        return True


def _place(feed: Feed, key: str) -> str:
    """A strand's place among those of its outbox. No name of a feed has a blank."""
    return f"{feed.name} {key}"


def _first(strands: OrderedDict[str, Strand]) -> Strand:
    """The least recently used one."""
    return next(iter(strands.values()))


def _used_at(strand: Strand) -> float:
    return strand.used_at


async def _each_in_slices(strands: Iterable[Strand], do: Callable[[Strand], None]) -> None:
    """Do something with each strand; readers are served meanwhile. Nobody else may change the collection."""
    time_slice = TimeSlice()
    for strand in strands:
        do(strand)
        if time_slice.is_over():
            await time_slice.give()
