"""The strands in memory: loaded on the first request, updated by the tailers, dropped when no reader asks for them.

A strand is registered before it is loaded, so that it misses no event that is appended meanwhile. Numbers tell which
events came twice.
"""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Sequence

from aftercommit.errors import DatabaseUnavailable
from aftercommit.feed.declaration.entry import StoredEvent
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.strands.entry_maker import EntryMaker
from aftercommit.feed.strands.history import History
from aftercommit.feed.strands.strand import Budget, Loaded, Strand
from aftercommit.outbox.declaration import Outbox


class KeptStrands:
    """The strands in memory, least recently used first. Tailers hand their events to it."""

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
        self.strands: OrderedDict[tuple[Feed, str], Strand] = OrderedDict()
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

    def load(self, feed: Feed, key: str, accepts: Callable[[Loaded], bool]) -> Strand:
        """Register a strand and begin to load it; `strand.loading` is the task. `accepts` is that of its tailer."""
        if len(self.strands) >= self._max_strands:
            self._drop_while(lambda _: len(self.strands) >= self._max_strands)
        strand = self.strands[feed, key] = Strand(feed, key, self.budget)
        strand.used_at = time.monotonic()
        strand.loading = asyncio.create_task(self._load(strand, accepts), name=f"load {feed.name} {key:.40}")
        self._loads.add(strand.loading)
        strand.loading.add_done_callback(self._load_is_over)
        return strand

    def forget(self, strand: Strand) -> None:
        """Drop a strand; readers ask the hub for it again."""
        place = (strand.feed, strand.key)
        if self.strands.get(place) is strand:
            del self.strands[place]
        strand.retire()

    def drop_idle(self, idle_seconds: float) -> None:
        """Drop every strand that nobody has asked for in this time."""
        before = time.monotonic() - idle_seconds
        self._drop_while(lambda strand: strand.used_at <= before)

    async def close(self, within_seconds: float) -> None:
        """Drop all strands and end what is being loaded."""
        for strand in list(self.strands.values()):
            self.forget(strand)
        if self._loads:
            _, left = await asyncio.wait(self._loads, timeout=within_seconds)
            for load in left:
                load.cancel()

    def take(self, outbox: Outbox, stored: StoredEvent) -> None:
        """Add an event to the strands it belongs to."""
        for feed in self._feeds[outbox]:
            if not feed.takes(stored.record.event_type):
                continue
            number, entry = feed.select.number_of(stored), None
            for key in feed.select.keys_of(stored):
                strand = self.strands.get((feed, key))
                if strand is not None and strand.wants(number):
                    # Made only for strands in memory, and once for all of them.
                    entry = entry or self._maker.entry_of(feed, stored)
                    if strand.add(entry):
                        self._changed[outbox].add(strand)
                    elif not strand.current:
                        # More has come than it sets aside. Its readers wake up and have it loaded again.
                        self.forget(strand)

    def page_is_through(self, outbox: Outbox) -> None:
        """Wake the readers of the strands that have changed."""
        for strand in self._changed.pop(outbox, ()):
            strand.ring_bell()

    def give_up(self, outbox: Outbox) -> None:
        """Drop the strands of an outbox: its log is not the one that they were read from, or too far ahead."""
        for strand in list(self.strands.values()):
            if strand.feed.outbox is outbox:
                self.forget(strand)

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

    def _load_is_over(self, task: asyncio.Task[None]) -> None:
        self._loads.discard(task)
        # A reader that waits sees the error. If none waits, asyncio would complain about an error unseen.
        task.cancelled() or task.exception()

    def _drop_while(self, is_due: Callable[[Strand], bool]) -> None:
        """Drop strands, least recently used first, except those that are being loaded or waited for."""
        for strand in list(self.strands.values()):
            if not is_due(strand):
                return
            if not strand.is_held and strand.loading is None:
                self.forget(strand)
