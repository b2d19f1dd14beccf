"""The feeds of one process: a tailer for each log, the strands in memory, and pages of them.

A strand is loaded when it is first asked for, and then follows the log without another query. One that nobody has asked
for in a while is dropped: ask the hub for it each time, and keep the object only while you wait for its news.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from aftercommit.errors import DatabaseUnavailable, DeclarationError, FeedsFailed
from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.feed import Feed, all_different
from aftercommit.feed.declaration.filters import EVERYTHING, Chosen
from aftercommit.feed.declaration.page import Page
from aftercommit.feed.strands.connections import HistoryConnections
from aftercommit.feed.strands.entry_maker import EntryMaker
from aftercommit.feed.strands.history import History
from aftercommit.feed.strands.kept_strands import KeptStrands
from aftercommit.feed.strands.page_reader import PageReader
from aftercommit.feed.strands.strand import Strand
from aftercommit.feed.strands.tailer import Tailer, Unread
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.database import Database
from aftercommit.postgres.listen import Listener
from aftercommit.service import Probe, Service, finish_all, until_one_ends

BEGIN_SECONDS: Final = 5.0
# How long queries under way may take when the hub ends, should the database not answer.
END_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class HubSettings:
    """How much a hub keeps in memory, and how it reads.

    `ring_bytes` bounds the entries of all strands together. A strand is loaded with `preload_entries` entries. It is
    dropped when nobody has asked for it in `idle_seconds`; beyond `max_strands`, the least recently used is dropped.
    `connections` bounds the connections for reading history. A tailer that is more than `max_lag_events` behind skips
    to the end of the log, and strands are loaded again.
    """

    ring_bytes: int = 64 << 20
    preload_entries: int = 100
    idle_seconds: float = 300.0
    max_strands: int = 20_000
    connections: int = 4
    max_lag_events: int = 50_000

    def __post_init__(self) -> None:
        """Refuse numbers that are not positive."""
        counts = (self.ring_bytes, self.preload_entries, self.max_strands, self.connections, self.max_lag_events)
        if min(counts) < 1 or self.idle_seconds <= 0:
            raise DeclarationError(f"{self!r}: all of these must be positive")


class FeedHub(Service):
    """Serves the feeds of a process. Start the hub before its listener."""

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
        """Without a listener the log is polled."""
        super().__init__(probe)
        self.settings = settings or HubSettings()
        self.feeds = all_different(feeds)
        self._connections = HistoryConnections(database, self.settings.connections)
        self._maker = EntryMaker()
        # How many items of each feed could not be made, by the feed's name.
        self.withheld: Mapping[str, int] = self._maker.withheld
        history = History(self._connections, self._maker, self.feeds, self.settings.preload_entries)
        ring_bytes, max_strands = self.settings.ring_bytes, self.settings.max_strands
        self._kept = KeptStrands(self.feeds, history, self._maker, ring_bytes, max_strands, self.reach)
        outboxes = dict.fromkeys(feed.outbox for feed in self.feeds)
        self._tailers = {outbox: self._tailer(outbox, database, listener) for outbox in outboxes}
        self._pages = PageReader(self._kept, history, self._tailers, self.strand)
        self._has_ended = False

    @property
    def is_following(self) -> bool:
        """Whether every log is being read right now. If not, pages may be out of date."""
        return not self.unread

    def unread_for(self, feed: Feed) -> float:
        """For how many seconds the log of this feed was not looked at: newer events are unknown here."""
        return self._tailers[feed.outbox].unread_for

    @property
    def unread(self) -> list[Unread]:
        """The logs that are not being read right now, and since when."""
        return [unread for tailer in self._tailers.values() if (unread := tailer.unread) is not None]

    @property
    def read_at(self) -> dict[str, datetime]:
        """When each log was last read, by the schema of its outbox; without those that never were."""
        return {outbox.schema: tailer.read_at for outbox, tailer in self._tailers.items() if tailer.read_at is not None}

    @property
    def positions(self) -> dict[str, int]:
        """Up to which position each log was read, by the schema of its outbox."""
        return {outbox.schema: tailer.position for outbox, tailer in self._tailers.items()}

    @property
    def questions(self) -> int:
        """How many queries readers have cost so far."""
        return self._connections.questions

    @property
    def unanswered(self) -> int:
        """How many readers gave up waiting for the database."""
        return self._connections.unanswered

    @property
    def held(self) -> frozenset[str]:
        """The names of the feeds with an event that this process is too old to read."""
        return frozenset(name for name, _ in self._maker.held)

    @property
    def strands(self) -> int:
        """How many strands are in memory."""
        return len(self._kept)

    @property
    def ring_bytes(self) -> int:
        """How many bytes all rings hold."""
        return self._kept.budget.used

    async def start(self) -> Self:
        """Run in the background."""
        self._has_ended = False
        return await super().start()

    async def run(self) -> None:
        """Follow all logs until stopped; raises the first error."""
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
                await self._kept.close(END_SECONDS)
                await self._connections.close()

    async def strand(self, feed: Feed, key: str) -> Strand:
        """The strand, with its head known. Costs a query when it is not in memory.

        Raises UnknownStrand when the key is not possible in this feed, DatabaseUnavailable when the strand cannot be
        loaded now, and FeedsFailed when this hub can never load it.
        """
        known = self._kept.find(feed, key)
        if known is not None and known.rules != feed.version:
            # Its items were made with other rules of redaction.
            self._kept.forget(known)
        while True:
            strand = self._kept.find(feed, key) or await self._register(feed, key)
            if strand.loading is not None:
                await asyncio.shield(strand.loading)
            if strand.current and self._kept.touch(strand):
                return strand

    def strand_in_memory(self, feed: Feed, key: str) -> Strand | None:
        """What `strand` would return without a query; otherwise None."""
        strand = self._kept.find(feed, key, touch=True)
        if strand is None or strand.rules != feed.version or strand.loading is not None or not strand.current:
            return None
        return strand

    async def page(
        self, strand: Strand, after: Cursor | None, limit: int, chosen: Chosen = EVERYTHING, *, upto: int | None = None
    ) -> Page:
        """The matching entries after a cursor; without one, the newest that match. See `PageReader.page`."""
        return await self._pages.page(strand, after, limit, chosen, upto=upto)

    def page_in_memory(self, strand: Strand, after: Cursor | None, limit: int, chosen: Chosen) -> Page | None:
        """What `page` would return without a query; otherwise None."""
        return self._pages.page_in_memory(strand, after, limit, chosen)

    async def page_before(self, strand: Strand, before: Cursor, limit: int, chosen: Chosen = EVERYTHING) -> Page:
        """The matching entries right before a cursor. See `PageReader.page_before`."""
        return await self._pages.page_before(strand, before, limit, chosen)

    async def before_moment(self, strand: Strand, moment: datetime) -> Cursor:
        """The place after which a strand has the events of this moment and later."""
        return await self._pages.before_moment(strand, moment)

    async def _register(self, feed: Feed, key: str) -> Strand:
        # Refuse an impossible key before it takes a place in memory.
        feed.select.parameter(feed.outbox, key)
        self._check_running()
        tailer = self._tailers[feed.outbox]
        if not tailer.has_begun.is_set():
            try:
                await asyncio.wait_for(tailer.has_begun.wait(), BEGIN_SECONDS)
            except TimeoutError:
                self._check_running()
                message = f"the feeds of {feed.outbox.schema!r} have not reached their database yet: try again"
                raise DatabaseUnavailable(message) from None
        return self._kept.find(feed, key) or self._kept.load(feed, key, tailer.accepts)

    def _check_running(self) -> None:
        """No tailer would keep a strand up to date that is loaded when the hub has ended or is about to."""
        if self._has_ended and not self.stopping.is_set():
            raise FeedsFailed("The feeds of this server have failed: restart the server")
        if self._has_ended or self._task is None or self._task.done():
            raise DatabaseUnavailable("the feeds are not running: start the hub")

    def _tailer(self, outbox: Outbox, database: Database, listener: Listener | None) -> Tailer:
        chosen = [feed.types for feed in self.feeds if feed.outbox is outbox]
        types = None if None in chosen else {each for types in chosen for each in types or ()}
        most = self.settings.max_lag_events
        return Tailer(outbox, database, types, self._kept, max_lag_events=most, listener=listener, probe=self._probe)

    async def _drop_idle(self) -> None:
        while not self.stopping.is_set():
            await self.pause(self.settings.idle_seconds / 4)
            await self._kept.drop_idle(self.settings.idle_seconds)
