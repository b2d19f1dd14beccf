"""Reads strands from the database: a whole strand when it is first asked for, and pages that its ring no longer has.

A page costs about what it returns, wherever it lies and in both directions. One filter walks along the index of its
facet. Of several filters, the most selective one is walked and the others are compared in the database; filters by
function are compared here. That may take several rounds. Rounds are bounded, and the answer says how far they looked.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from aftercommit.errors import CursorGone, DatabaseUnavailable
from aftercommit.feed.declaration.cursor import LARGEST, Cursor, same_moment
from aftercommit.feed.declaration.entry import Entry, StoredEvent
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.filters import EVERYTHING, Chosen
from aftercommit.feed.declaration.page import Page, place_of
from aftercommit.feed.declaration.selection import Everything
from aftercommit.feed.strands.connections import HistoryConnections
from aftercommit.feed.strands.entry_cache import EntryCache
from aftercommit.feed.strands.entry_maker import EntryMaker
from aftercommit.feed.strands.queries import Direction, FeedQueries, allowed_name
from aftercommit.feed.strands.strand import Loaded
from aftercommit.feed.strands.time_slice import TimeSlice
from aftercommit.postgres import lives
from aftercommit.postgres.records import BYTES_AT_ONCE, feed_rows
from aftercommit.postgres.shape import Shape

# How many events of one facet are compared with the other filters in one round, and how many rounds a request has.
WINDOW: Final = 1000
ROUNDS: Final = 10
_LOAD_BYTES: Final = 1 << 20


class _Walk(NamedTuple):
    """A range of a strand that is read in one direction, up to and including `end`.

    Forwards it begins after `start`, backwards with it. `place` is the number of the cursor that has to be valid.
    """

    feed: Feed
    key: Any
    direction: Direction
    start: int
    end: Cursor
    chosen: Chosen
    place: int

    @classmethod
    def back(cls, feed: Feed, key: str, start: int, chosen: Chosen = EVERYTHING, place: int = 0) -> "_Walk":
        return cls(feed, feed.select.parameter(feed.outbox, key), "desc", start, Cursor(1), chosen, place)

    @property
    def is_over(self) -> bool:
        return self.start >= self.end.number if self.direction == "asc" else self.start < self.end.number

    @property
    def parameters(self) -> dict[str, Any]:
        forwards = self.direction == "asc"
        low, high = (self.start, self.end.number) if forwards else (self.end.number - 1, self.start)
        return {"key": self.key, "low": low, "high": high, "place": self.place, "types": list(self.feed.types or ())}

    def beyond(self, looked: Cursor) -> "_Walk":
        """What is left to read after that place."""
        if self.direction == "asc":
            return self._replace(start=looked.number, place=looked.number)
        return self._replace(start=looked.number - 1)


class _Batch(NamedTuple):
    """The entries of one round, how far it looked, and what the database says about the cursor."""

    entries: list[Entry]
    looked: Cursor
    state: "_State"


class _State(NamedTuple):
    """Tells whether a cursor is still valid: the columns of `feed_page` before its event."""

    place_ts: datetime | None
    first: int | None
    first_ts: datetime | None
    known: int | None
    epoch: UUID
    known_ts: datetime | None
    base: int
    dropped: int | None

    @property
    def oldest(self) -> int:
        """The first number that is kept; the next one to be assigned where none is."""
        return self.first if self.first is not None else (self.known or 0) + 1

    def require(self, after: Cursor) -> None:
        """Raise CursorGone if a reader cannot go on from here. Number 0 means from the oldest event that is kept."""
        if after.number == 0:
            return
        self.require_known(after)
        if self.place_ts is None and self.dropped:
            message = f"events after {after.number} are no longer kept: the oldest is {self.oldest}"
            raise CursorGone("retention", message, Cursor(self.oldest - 1, self.first_ts))

    def require_known(self, place: Cursor) -> None:
        """Raise _OtherHistory if the cursor is of events that this log never had, whether its event is kept or not.

        Between the end of one epoch and the base of the next there is no event, and a cursor in between is valid.
        """
        known = self.known or 0
        if place.number > max(known, self.base):
            raise _OtherHistory(f"the cursor is at {place.number}, and the newest event is {known}")
        if self.place_ts is not None and place.ts is not None and not same_moment(self.place_ts, place.ts):
            raise _OtherHistory(f"event {place.number} does not have the time in the cursor")

    @property
    def end(self) -> Cursor:
        """The place after the newest event."""
        return Cursor(max(self.known or 0, self.base), self.known_ts)


class _OtherHistory(Exception):
    """A cursor names an event that this log never had."""


class History:
    """Reads the feeds of one hub from the database."""

    def __init__(
        self, connections: HistoryConnections, maker: EntryMaker, feeds: Iterable[Feed], preload_entries: int
    ) -> None:
        """`load` reads `preload_entries` entries along with a strand."""
        self.connections = connections
        self._maker = maker
        self._made = EntryCache()
        self._queries = {feed: FeedQueries(feed) for feed in feeds}
        self._preload_entries = preload_entries
        # One object for all strands: there are many, and the garbage collector visits each.
        self._epochs: dict[UUID, UUID] = {}

    def _entry(self, feed: Feed, stored: StoredEvent) -> Entry:
        """The entry of an event, as it was made before if nothing has changed since."""
        entry = self._made.find(feed, stored)
        if entry is None:
            # Read before the entry is made: rules that change meanwhile make it anew the next time.
            rules = feed.version
            entry = self._maker.entry_of(feed, stored)
            self._made.keep(feed, stored, entry, rules)
        return entry

    async def load(self, feed: Feed, key: str) -> Loaded:
        """Read a strand as it is now, with its newest entries."""
        limit = max(self._preload_entries, feed.limits.default)
        parameters = {**_Walk.back(feed, key, LARGEST).parameters, "limit": limit, "max_bytes": _LOAD_BYTES}
        rows = await self.connections.ask(self._queries[feed].load, parameters)
        total, kept, _, known, epoch, known_ts, gaps = rows[0][:7]
        first = kept if kept is not None else (known or 0) + 1
        entries, more = await self._entries(feed, [row[7:] for row in rows], "desc")
        # The last number of a stream is known even when retention has removed all of its events.
        nothing = Cursor(known or 0, known_ts) if feed.select.by_stream else Cursor(0)
        head = place_of(entries[-1]) if entries else nothing
        has_all = not more and len(entries) < limit
        floor = first - 1 if has_all else entries[0].number - 1
        # In a strand that is only a part of the log, a missing number means nothing.
        is_whole = feed.select.by_stream or isinstance(feed.select, Everything)
        never_given = tuple((low, high) for low, high in gaps) if is_whole else ()
        self._epochs = {epoch: self._epochs.get(epoch, epoch)}
        return Loaded(self._epochs[epoch], head.number, head.ts, first, total, entries, floor, never_given)

    async def forward(self, feed: Feed, key: str, after: Cursor, end: Cursor, limit: int, chosen: Chosen) -> Page:
        """The entries after a cursor, up to an end. Raises CursorGone if the cursor is no longer valid."""
        walk = _Walk(feed, feed.select.parameter(feed.outbox, key), "asc", after.number, end, chosen, after.number)
        found: list[Entry] = []
        looked, epoch = after, None
        for _ in range(ROUNDS):
            batch = await self._round(walk, limit + 1 - len(found))
            try:
                # Also in later rounds: retention may have overtaken us.
                batch.state.require(looked)
            except _OtherHistory as other:
                raise await self._gone(feed, key, looked, batch.state, other) from None
            found += batch.entries
            looked, epoch = batch.looked, batch.state.epoch
            if len(found) > limit:
                return Page(found[:limit], place_of(found[limit - 1]), True, epoch)
            walk = walk.beyond(looked)
            if walk.is_over or _is_large(found):
                break
        return Page(found, looked, not walk.is_over, epoch)

    async def latest(self, feed: Feed, key: str, end: Cursor, limit: int, chosen: Chosen) -> Page:
        """The last entries up to an end, in order; fewer, with `previous`, if finding more would cost too much."""
        found, walk, batch = await self._back(_Walk.back(feed, key, end.number, chosen), limit)
        previous = batch.looked if len(found) < limit and not walk.is_over else None
        return Page(found[:limit][::-1], end, False, batch.state.epoch, previous)

    async def before(self, feed: Feed, key: str, before: Cursor, limit: int, chosen: Chosen) -> Page:
        """The last entries before a cursor, down to the oldest that is kept.

        Raises CursorGone if the cursor is of another epoch of the log, never because of retention.
        """
        whole = _Walk.back(feed, key, before.number - 1, chosen, before.number)
        found, walk, batch = await self._back(whole, limit + 1)
        try:
            batch.state.require_known(before)
        except _OtherHistory as other:
            raise await self._gone(feed, key, before, batch.state, other) from None
        if len(found) > limit:
            return Page(found[:limit][::-1], place_of(found[limit - 1]), True, batch.state.epoch)
        return Page(found[::-1], batch.looked, not walk.is_over, batch.state.epoch)

    async def before_moment(self, feed: Feed, key: str, moment: datetime) -> Page:
        """No entries: `looked` is the place of the last event before a moment, 0 when all kept events came later."""
        parameters = {"key": feed.select.parameter(feed.outbox, key), "moment": moment}
        rows = await self.connections.ask(self._queries[feed].moment, parameters)
        number, ts, epoch = rows[0]
        return Page([], Cursor(number, ts) if ts is not None else Cursor(0), epoch=epoch)

    async def _gone(self, feed: Feed, key: str, place: Cursor, state: _State, other: Exception) -> Exception:
        """The error for a reader who has seen events that this log does not have.

        A cursor with a time restarts at that time: its reader has seen everything before, and nothing after. A cursor
        without one restarts at the end.
        """
        schema = feed.outbox.schema
        again = DatabaseUnavailable(f"the log of {schema!r} was restored or lags behind its primary: try again")
        if await lives.is_due(self.connections.ask, feed.outbox.shape):
            return again
        told = place.ts if place.ts is not None and place.ts.timestamp() > 0 else None
        seen = await self.before_moment(feed, key, (told or datetime.now(UTC)) + timedelta(milliseconds=1))
        if seen.epoch != state.epoch:
            # A new epoch began after the page was read, and the cursor may be valid in it.
            return again
        return CursorGone("epoch", str(other), seen.looked if told else state.end)

    async def _back(self, walk: _Walk, wanted: int) -> tuple[list[Entry], _Walk, _Batch]:
        """Walk backwards: the entries, newest first, what is left of the walk, and its last round."""
        batch = await self._round(walk, wanted)
        found, walk = list(batch.entries), walk.beyond(batch.looked)
        for _ in range(ROUNDS - 1):
            if len(found) >= wanted or walk.is_over or _is_large(found):
                break
            batch = await self._round(walk, wanted - len(found))
            found += batch.entries
            walk = walk.beyond(batch.looked)
        return found, walk, batch

    async def _round(self, walk: _Walk, wanted: int) -> _Batch:
        """The next entries of a walk; fewer than wanted when one round has looked at enough."""
        queries, paths = self._queries[walk.feed], walk.feed.facet_paths
        indexed = [(place, allowed) for place, allowed in walk.chosen.tests if paths[place] is not None]
        driver: int | None = None
        if walk.feed.select.by_audience:
            walk = await self._heard(walk)
        elif len(indexed) == 1:
            driver = indexed[0][0]
        elif indexed:
            driver, end = await self._fewest(walk, indexed)
            walk = walk._replace(end=end)
        if len(indexed) < len(walk.chosen.tests):
            wanted = max(wanted, WINDOW)
        rest = {place: sorted(allowed) for place, allowed in indexed if place != driver}
        parameters = {
            **walk.parameters,
            **{allowed_name(place): values for place, values in rest.items()},
            "values": sorted(dict(indexed)[driver]) if driver is not None else [],
            "limit": wanted,
            "max_bytes": BYTES_AT_ONCE,
        }
        rows = await self.connections.ask(queries.page(walk.direction, driver, tuple(rest)), parameters)
        entries, more = await self._entries(walk.feed, [row[8:] for row in rows], walk.direction)
        if walk.direction == "desc":
            entries.reverse()
        looked = walk.end
        if entries and (more or len(entries) >= wanted):
            looked = place_of(entries[-1])
        return _Batch([entry for entry in entries if walk.chosen.matches(entry)], looked, _State(*rows[0][:8]))

    async def _heard(self, walk: _Walk) -> _Walk:
        """The part of a walk along an audience's events that one round covers, if not all of them are wanted.

        No index covers an audience together with filters or types, so these events are compared one by one.
        """
        if not walk.chosen.tests and walk.feed.types is None:
            return walk
        statement = self._queries[walk.feed].reach(walk.direction, None)
        rows = await self.connections.ask(statement, {**walk.parameters, "window": WINDOW})
        return walk._replace(end=Cursor(*rows[0])) if rows else walk

    async def _fewest(self, walk: _Walk, indexed: Sequence[tuple[int, frozenset[str]]]) -> tuple[int, Cursor]:
        """The facet whose next `WINDOW` events reach furthest, and where they end: this round walks it up to there."""
        best, reached = indexed[0][0], Cursor(walk.start)
        for place, allowed in indexed:
            statement = self._queries[walk.feed].reach(walk.direction, place)
            parameters = {**walk.parameters, "values": sorted(allowed), "window": WINDOW}
            rows = await self.connections.ask(statement, parameters)
            if not rows:
                return place, walk.end
            number, ts = rows[0]
            if abs(number - walk.start) >= abs(reached.number - walk.start):
                best, reached = place, Cursor(number, ts)
        return best, reached

    async def _entries(
        self, feed: Feed, rows: Sequence[Sequence[Any]], direction: Direction
    ) -> tuple[list[Entry], bool]:
        """The entries of these rows in ascending order, and whether rows were left out to bound the memory."""
        present = [row for row in rows if row[0] is not None]
        entries: list[Entry] = []
        time_slice = TimeSlice()
        for each in stored_of(present, feed.outbox.shape):
            if time_slice.is_over():
                await time_slice.give()
            entries.append(self._entry(feed, each))
        # Rows ascend in both directions. The last row in the direction says whether there are more.
        return entries, bool(present) and present[-1 if direction == "asc" else 0][-1]


def stored_of(rows: Iterable[Sequence[Any]], shape: Shape) -> list[StoredEvent]:
    """The events in rows of `feed_cut`; the last column is not part of an event."""
    return [StoredEvent(*parts) for parts in feed_rows((row[:-1] for row in rows), shape)]


def _is_large(entries: Iterable[Entry]) -> bool:
    """Whether these entries fill an answer by their bytes."""
    return sum(len(entry.body) for entry in entries) >= BYTES_AT_ONCE // 2
