"""The feeds of one process: the tailers, the strands that are kept, and the way to history.

A strand is loaded when it is first asked for and then follows the log without another query. It is registered before
it is loaded, so what is appended meanwhile is not missed, and numbers tell what came twice. A strand that nobody has
asked for in a while is dropped. Ask for it again each time; keep the object only while you wait for its news.
"""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from aftercommit.errors import DatabaseUnavailable, DeclarationError, FeedsFailed
from aftercommit.feed.declaration.cursor import Cursor, same_moment
from aftercommit.feed.declaration.entry import StoredEvent
from aftercommit.feed.declaration.feed import Feed, all_different
from aftercommit.feed.declaration.filters import EVERYTHING, Chosen
from aftercommit.feed.declaration.page import Page
from aftercommit.feed.strands import holding, ring
from aftercommit.feed.strands.connections import HistoryConnections
from aftercommit.feed.strands.entries import EntryMaker
from aftercommit.feed.strands.history import Found, History
from aftercommit.feed.strands.strand import Budget, Strand
from aftercommit.feed.strands.tailer import Following, Tailer, Unread
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.database import Database
from aftercommit.postgres.listen import Listener
from aftercommit.service import Probe, Service, finish_all, until_one_ends

BEGIN_SECONDS: Final = 5.0
# What is under way when the hub ends has so long, should the database not answer it.
END_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class HubSettings:
    """How much a hub keeps in memory and how it reads.

    `ring_bytes` bounds the entries of all strands together; `preload_entries` are loaded with a strand. One that
    nobody has asked for in `idle_seconds` is dropped, and beyond `max_strands` the one that was not asked for longest.
    History is read on so many `connections`. A tailer that is more than `max_lag_events` behind begins anew at the end.
    """

    ring_bytes: int = 64 << 20
    preload_entries: int = 100
    idle_seconds: float = 300.0
    max_strands: int = 20_000
    connections: int = 4
    max_lag_events: int = 50_000

    def __post_init__(self) -> None:
        """Refuse numbers that could not work."""
        counts = (self.ring_bytes, self.preload_entries, self.max_strands, self.connections, self.max_lag_events)
        if min(counts) < 1 or self.idle_seconds <= 0:
            raise DeclarationError(f"{self!r}: all of these must be positive")


class FeedHub(Service):
    """What serves the feeds of a process; start it, and its listener after it."""

    name = "feeds"

    def __init__(
        self,
        database: Database,
        feeds: Sequence[Feed],
        *,
        listener: Listener | None = None,
        settings: HubSettings | None = None,
        probe: Probe | None = None,
    ) -> None:
        """Not started. Without a listener the log is polled."""
        super().__init__(probe)
        self.settings = settings or HubSettings()
        self.feeds = all_different(feeds)
        self._connections = HistoryConnections(database, self.settings.connections)
        self._maker = EntryMaker()
        self._history = History(self._connections, self._maker, self.feeds, self.settings.preload_entries)
        self._budget = Budget(self.settings.ring_bytes)
        # Least recently asked for first.
        self._strands: OrderedDict[tuple[Feed, str], Strand] = OrderedDict()
        self._loads: set[asyncio.Task[None]] = set()
        self._has_ended = False
        self._changed: dict[Outbox, set[Strand]] = defaultdict(set)
        outboxes = dict.fromkeys(feed.outbox for feed in self.feeds)
        self._tailers = {outbox: self._tailer(outbox, database, listener) for outbox in outboxes}

    @property
    def is_following(self) -> bool:
        """Whether every log is being read right now: without it, what is served may be old."""
        return not self.unread

    def unread_for(self, feed: Feed) -> float:
        """For how many seconds the log of this feed was not looked at: news of that time is not known here."""
        return self._tailers[feed.outbox].unread_for

    @property
    def unread(self) -> list[Unread]:
        """The logs that are not being read right now, and since when."""
        return [unread for tailer in self._tailers.values() if (unread := tailer.unread) is not None]

    @property
    def read_at(self) -> dict[str, datetime]:
        """When the log of each outbox was last read; those that never were are not among them."""
        return {outbox.schema: tailer.read_at for outbox, tailer in self._tailers.items() if tailer.read_at is not None}

    @property
    def positions(self) -> dict[str, int]:
        """Up to where the log of each outbox was read."""
        return {outbox.schema: tailer.position for outbox, tailer in self._tailers.items()}

    @property
    def questions(self) -> int:
        """How many questions readers have cost the database so far."""
        return self._connections.questions

    @property
    def unanswered(self) -> int:
        """How many readers the database has kept waiting for longer than they wait."""
        return self._connections.unanswered

    @property
    def withheld(self) -> Mapping[str, int]:
        """How many items of each feed could not be made."""
        return self._maker.withheld

    @property
    def held(self) -> frozenset[str]:
        """The feeds, by name, in which an event was met that this process is too old to read."""
        return frozenset(name for name, _ in self._maker.held)

    @property
    def strands(self) -> int:
        """How many strands are kept."""
        return len(self._strands)

    @property
    def ring_bytes(self) -> int:
        """What the rings hold."""
        return self._budget.used

    async def start(self) -> Self:
        """Run in the background."""
        self._has_ended = False
        return await super().start()

    async def run(self) -> None:
        """Follow the logs until stopped; the first error is raised, whoever met it."""
        tailers = list(self._tailers.values())
        for tailer in tailers:
            await tailer.start()
        idle = asyncio.create_task(self._drop_idle(), name="drop idle strands")
        try:
            await until_one_ends(idle, *(tailer.wait() for tailer in tailers))
            if not idle.cancelled():
                idle.result()
        finally:
            self._has_ended = True
            try:
                await finish_all(tailer.stop_within(END_SECONDS) for tailer in tailers)
            finally:
                self._give_up(self._strands.values())
                if self._loads:
                    _, left = await asyncio.wait(self._loads, timeout=END_SECONDS)
                    for load in left:
                        load.cancel()
                await self._connections.close()

    async def strand(self, feed: Feed, key: str) -> Strand:
        """The strand, with its head known. Costs a query when it is new here, and none while it is kept.

        UnknownStrand when the key cannot be one; DatabaseUnavailable when it would have to be loaded and cannot, and
        FeedsFailed when it never can here.
        """
        while True:
            strand = self._strands.get((feed, key)) or await self._register(feed, key)
            if strand.loading is not None:
                await asyncio.shield(strand.loading)
            if strand.current:
                strand.used_at = time.monotonic()
                self._strands.move_to_end((feed, key))
                return strand

    async def page(
        self, strand: Strand, after: Cursor | None, limit: int, chosen: Chosen = EVERYTHING, *, upto: int | None = None
    ) -> Page:
        """A page from the ring, or from the database when it is older than that; CursorGone when it is nowhere.

        Without a cursor the newest that match. `upto` bounds it by a head that was read before (an ETag's).
        """
        while True:
            if not strand.current:
                strand = await self.strand(strand.feed, strand.key)
            end = strand.cursor(strand.head if upto is None else min(upto, strand.head))
            end = end or Cursor(strand.head, strand.head_ts)
            found = self._from_ring(strand, after, end, limit, chosen)
            if found is None:
                async with self._connections.answered():
                    found = await self._from_past(strand, after, end, limit, chosen)
                if found.epoch != strand.epoch:
                    # Restored while it was being read: nothing of it is served.
                    self._forget(strand)
                    continue
            found = holding.ahead(found)
            went_on = found.looked.number > (after.number if after is not None else 0)
            place = found.looked if went_on else None
            entries, more, previous, held = found.entries, found.more, found.previous, found.held
            return Page(entries, after, place, more, limit, strand.total, end.number, previous=previous, held=held)

    async def page_before(self, strand: Strand, before: Cursor, limit: int, chosen: Chosen = EVERYTHING) -> Page:
        """The entries right before a cursor that match; CursorGone when it is of another life of the log.

        What lies before an event does not change, so no head bounds it. Where nothing is kept, there is nothing.
        """
        while True:
            if not strand.current:
                strand = await self.strand(strand.feed, strand.key)
            found = ring.before(strand, before, limit, chosen) if self._is_known(strand, before) else None
            if found is None:
                async with self._connections.answered():
                    found = await self._history.before(strand.feed, strand.key, before, limit, chosen)
                if found.epoch != strand.epoch:
                    self._forget(strand)
                    continue
            found = holding.back(found)
            previous = found.looked if found.more else None
            entries, more, total, head = found.entries, found.more, strand.total, strand.head
            return Page(entries, None, None, more, limit, total, head, before, previous, found.held)

    async def before_moment(self, strand: Strand, moment: datetime) -> Cursor:
        """The place behind which a strand has what came at this moment or later."""
        while True:
            if not strand.current:
                strand = await self.strand(strand.feed, strand.key)
            place = strand.before_moment(moment)
            if place is not None:
                return place
            async with self._connections.answered():
                place, epoch = await self._history.before_moment(strand.feed, strand.key, moment)
            if epoch == strand.epoch:
                return place
            self._forget(strand)

    def _from_ring(self, strand: Strand, after: Cursor | None, end: Cursor, limit: int, chosen: Chosen) -> Found | None:
        if after is None:
            return ring.newest(strand, end, limit, chosen)
        return ring.behind(strand, after, end, limit, chosen) if self._is_known(strand, after) else None

    async def _from_past(self, strand: Strand, after: Cursor | None, end: Cursor, limit: int, chosen: Chosen) -> Found:
        feed, key = strand.feed, strand.key
        if after is None:
            return await self._history.latest(feed, key, end, limit, chosen)
        found = await self._history.forward(feed, key, after, end, limit, chosen)
        if after.number > end.number:
            # Another process is ahead of this one; its reader has come here. There is news, then.
            self._tailers[feed.outbox].news.set()
            return found._replace(looked=after, more=False)
        return found

    def _is_known(self, strand: Strand, after: Cursor) -> bool:
        """Whether a cursor is certainly good, as far as memory can tell."""
        newest = strand.head if strand.feed.select.by_stream else self._tailers[strand.feed.outbox].position
        if after.number == 0 or after.number > max(newest, strand.head):
            return after.number == 0
        if after.ts is None:
            return True
        here = strand.cursor(after.number)
        return here is not None and here.ts is not None and same_moment(here.ts, after.ts)

    async def _register(self, feed: Feed, key: str) -> Strand:
        # What cannot be a key is not remembered.
        feed.select.parameter(feed.outbox, key)
        self._check_running()
        tailer = self._tailers[feed.outbox]
        if not tailer.has_begun.is_set():
            await self._begun(tailer)
        if (strand := self._strands.get((feed, key))) is not None:
            return strand
        self._make_room()
        strand = self._strands[feed, key] = Strand(feed, key, self._budget)
        strand.used_at = time.monotonic()
        strand.loading = asyncio.create_task(self._load(strand), name=f"load {feed.name} {key:.40}")
        self._loads.add(strand.loading)
        strand.loading.add_done_callback(self._load_is_over)
        return strand

    def _check_running(self) -> None:
        """Nobody would keep up with a strand that is loaded when the tailers have ended, or are about to."""
        if self._has_ended and not self.stopping.is_set():
            raise FeedsFailed("The feeds of this server have failed: it has to be started anew")
        if self._has_ended or self._task is None or self._task.done():
            raise DatabaseUnavailable("the feeds are not running, so nobody would keep up with this one: start the hub")

    def _load_is_over(self, task: asyncio.Task[None]) -> None:
        self._loads.discard(task)
        # Whoever waits for it sees the error; and maybe nobody waits any more.
        task.cancelled() or task.exception()

    async def _load(self, strand: Strand) -> None:
        try:
            await self.reach("feed.loading", feed=strand.feed.name, key=strand.key)
            async with self._connections.answered():
                loaded = await self._history.load(strand.feed, strand.key)
            await self.reach("feed.loaded", feed=strand.feed.name, key=strand.key)
        except asyncio.CancelledError:
            # The hub has ended. Those who wait for the strand are not the ones who are cancelled.
            self._forget(strand)
            raise DatabaseUnavailable("the feeds have ended while this one was loaded: try again") from None
        except BaseException:
            self._forget(strand)
            raise
        tailer = self._tailers[strand.feed.outbox]
        if strand.current and loaded.epoch != tailer.epoch:
            # The tailer has yet to see that the log is another one; until then nobody may rely on it.
            self._forget(strand)
            tailer.news.set()
            raise DatabaseUnavailable(f"the log of {strand.feed.outbox.schema!r} has just been restored: try again")
        if strand.current:
            strand.fill(loaded)
            if loaded.entries:
                tailer.heard = max(tailer.heard, loaded.entries[-1].position)
        strand.loading = None

    async def _begun(self, tailer: Tailer) -> None:
        try:
            await asyncio.wait_for(tailer.has_begun.wait(), BEGIN_SECONDS)
        except TimeoutError:
            self._check_running()
            raise DatabaseUnavailable(
                f"the feeds of {tailer.name.split()[-1]!r} have not reached their database yet: try again"
            ) from None

    def _tailer(self, outbox: Outbox, database: Database, listener: Listener | None) -> Tailer:
        feeds = [feed for feed in self.feeds if feed.outbox is outbox]
        chosen = [feed.types for feed in feeds]
        types = None if None in chosen else {each for types in chosen for each in types or ()}

        def take(stored: StoredEvent) -> None:
            for feed in feeds:
                self._take(feed, stored)

        def page_is_through() -> None:
            for strand in self._changed.pop(outbox, ()):
                strand.ring_bell()

        def give_up(reason: str) -> None:
            self._give_up(strand for strand in self._strands.values() if strand.feed.outbox is outbox)

        following = Following(take, page_is_through, give_up)
        most = self.settings.max_lag_events
        return Tailer(outbox, database, types, following, max_lag_events=most, listener=listener, probe=self._probe)

    def _take(self, feed: Feed, stored: StoredEvent) -> None:
        if not feed.takes(stored.record.event_type):
            return
        number, entry = feed.select.number_of(stored), None
        for key in feed.select.keys_of(stored):
            strand = self._strands.get((feed, key))
            if strand is not None and strand.wants(number):
                # An item is made for strands that somebody reads, and once for all of them.
                entry = entry or self._maker.entry_of(feed, stored)
                if strand.add(entry):
                    self._changed[feed.outbox].add(strand)
                elif not strand.current:
                    # More has come than it sets aside. Whoever waits for it has it loaded anew.
                    self._forget(strand)

    def _make_room(self) -> None:
        for strand in self._oldest():
            if len(self._strands) < self.settings.max_strands:
                return
            if not strand.is_held and strand.loading is None:
                self._forget(strand)

    async def _drop_idle(self) -> None:
        while not self.stopping.is_set():
            await self.pause(self.settings.idle_seconds / 4)
            before = time.monotonic() - self.settings.idle_seconds
            for strand in self._oldest():
                if strand.used_at > before:
                    break
                if not strand.is_held and strand.loading is None:
                    self._forget(strand)

    def _oldest(self) -> Iterator[Strand]:
        return iter(list(self._strands.values()))

    def _give_up(self, strands: Iterable[Strand]) -> None:
        for strand in list(strands):
            self._forget(strand)

    def _forget(self, strand: Strand) -> None:
        place = (strand.feed, strand.key)
        if self._strands.get(place) is strand:
            del self._strands[place]
        strand.retire()
