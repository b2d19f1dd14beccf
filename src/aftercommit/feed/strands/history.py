"""Reads strands from the database: once when a strand is first asked for, and what is older than its ring.

Whatever the place and the direction, a page costs about what it returns. One filter walks along its facet's index. Of
several, the one of which the fewest events match is walked and the others are compared; filters by function are
compared here. That can take several rounds, which are bounded, and the answer says how far it looked.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from aftercommit.errors import CursorGone, DatabaseUnavailable
from aftercommit.feed.declaration.cursor import Cursor, same_moment
from aftercommit.feed.declaration.entry import Entry, HeldVersion, StoredEvent
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.declaration.selection import Everything
from aftercommit.feed.strands.connections import HistoryConnections
from aftercommit.feed.strands.entries import EntryMaker
from aftercommit.feed.strands.queries import Direction, FeedQueries, allowed_name
from aftercommit.feed.strands.strand import Loaded
from aftercommit.feed.strands.time_slice import TimeSlice
from aftercommit.postgres import lives
from aftercommit.postgres.records import BYTES_AT_ONCE, feed_rows
from aftercommit.postgres.shape import Shape

# Events of one facet among which the others are looked for, and how often in one request.
WINDOW: Final = 1000
ROUNDS: Final = 50
_LOAD_BYTES: Final = 1 << 20


class Found(NamedTuple):
    """Entries of a strand in order, how far was looked, and whether there are more up to the end in that direction.

    The newest that were asked for may be fewer although there are older ones: `previous` is how far back was looked.
    `held` is the event before which they had to end (`holding`).
    """

    entries: list[Entry]
    looked: Cursor
    more: bool
    epoch: UUID | None
    previous: Cursor | None = None
    held: HeldVersion | None = None


class _Walk(NamedTuple):
    """A part of a strand that is gone through in one direction, up to and including `end`.

    Forwards it begins behind `start`, where a reader stands; backwards it begins with it. `place` is the number of the
    cursor that has to be good still.
    """

    feed: Feed
    key: Any
    direction: Direction
    start: int
    end: Cursor
    chosen: Chosen
    place: int

    @property
    def is_over(self) -> bool:
        return self.start >= self.end.number if self.direction == "asc" else self.start < self.end.number

    @property
    def parameters(self) -> dict[str, Any]:
        forwards = self.direction == "asc"
        low, high = (self.start, self.end.number) if forwards else (self.end.number - 1, self.start)
        return {"key": self.key, "low": low, "high": high, "place": self.place, "types": list(self.feed.types or ())}

    def beyond(self, looked: Cursor) -> "_Walk":
        """What is left when one has been up to there."""
        if self.direction == "asc":
            return self._replace(start=looked.number, place=looked.number)
        return self._replace(start=looked.number - 1)


class _Batch(NamedTuple):
    """Entries of one round, how far it looked, and what the database says about the cursor."""

    entries: list[Entry]
    looked: Cursor
    state: "_State"


class _State(NamedTuple):
    """What tells whether a cursor is still good: the row of `feed_page` before its event."""

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
        """The first number that is kept, or the next to be given."""
        return self.first if self.first is not None else (self.known or 0) + 1

    def require(self, after: Cursor) -> None:
        """CursorGone, if one cannot go on from here. From the very beginning means from the oldest that is kept."""
        if after.number == 0:
            return
        self.require_known(after)
        if self.place_ts is None and self.dropped:
            said = f"events after {after.number} are no longer kept: the oldest is {self.oldest}"
            raise CursorGone("retention", said, Cursor(self.oldest - 1, self.first_ts))

    def require_known(self, place: Cursor) -> None:
        """_OtherHistory, if it is of a life that this log has not had. Whether its event is kept does not matter.

        Between the end of one life and the base of the next there is no event, and a cursor that lies there is good.
        """
        known = self.known or 0
        if place.number > max(known, self.base):
            raise _OtherHistory(f"the cursor is at {place.number}, and the newest event is {known}")
        if self.place_ts is not None and place.ts is not None and not same_moment(self.place_ts, place.ts):
            raise _OtherHistory(f"event {place.number} does not have the time in the cursor")

    @property
    def end(self) -> Cursor:
        """Behind everything there is."""
        return Cursor(max(self.known or 0, self.base), self.known_ts)


class _OtherHistory(Exception):
    """A cursor names an event that this log does not have, and never had."""


class History:
    """Answers from the database for the feeds of one hub."""

    def __init__(
        self, connections: HistoryConnections, maker: EntryMaker, feeds: Iterable[Feed], preload_entries: int
    ) -> None:
        """`preload_entries` are loaded with a strand."""
        self._connections = connections
        self._maker = maker
        self._queries = {feed: FeedQueries(feed) for feed in feeds}
        self._preload_entries = preload_entries

    async def load(self, feed: Feed, key: str) -> Loaded:
        """A strand as it is now."""
        limit = max(self._preload_entries, feed.limits.default)
        parameters = {
            "key": feed.select.parameter(feed.outbox, key),
            "low": 0,
            "high": 2**63 - 1,
            "limit": limit,
            "types": list(feed.types or ()),
            "max_bytes": _LOAD_BYTES,
        }
        rows = await self._connections.ask(self._queries[feed].load, parameters)
        total, kept, _, known, epoch, known_ts, gaps = rows[0][:7]
        first = kept if kept is not None else (known or 0) + 1
        entries, more = await self._entries(feed, [row[7:] for row in rows], "desc")
        # Where nothing is kept, the last number of a stream is known all the same.
        nothing = Cursor(known or 0, known_ts) if feed.select.by_stream else Cursor(0)
        head = Cursor(entries[-1].number, entries[-1].ts) if entries else nothing
        has_all = not more and len(entries) < limit
        floor = first - 1 if has_all else entries[0].number - 1
        # Where a strand is a part of the log, its numbers say nothing about what is missing.
        is_whole = feed.select.by_stream or isinstance(feed.select, Everything)
        never_given = tuple((low, high) for low, high in gaps) if is_whole else ()
        return Loaded(epoch, head.number, head.ts, first, total, entries, floor, never_given)

    async def forward(self, feed: Feed, key: str, after: Cursor, end: Cursor, limit: int, chosen: Chosen) -> Found:
        """The entries behind a cursor up to an end; CursorGone when it no longer says where to go on."""
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
                last = found[limit - 1]
                return Found(found[:limit], Cursor(last.number, last.ts), True, epoch)
            walk = walk.beyond(looked)
            if walk.is_over or _is_large(found):
                break
        return Found(found, looked, not walk.is_over, epoch)

    async def latest(self, feed: Feed, key: str, end: Cursor, limit: int, chosen: Chosen) -> Found:
        """The last entries up to an end, in order; fewer, and how far back was looked, where more would cost much."""
        walk = _Walk(feed, feed.select.parameter(feed.outbox, key), "desc", end.number, Cursor(1), chosen, 0)
        found, walk, batch = await self._back(walk, limit)
        previous = batch.looked if len(found) < limit and not walk.is_over else None
        return Found(found[:limit][::-1], end, False, batch.state.epoch, previous)

    async def before(self, feed: Feed, key: str, before: Cursor, limit: int, chosen: Chosen) -> Found:
        """The last entries before a cursor; CursorGone when it is of another life of the log.

        It ends with the oldest that is kept: who reads back has asked for nothing beyond.
        """
        number = before.number
        walk = _Walk(feed, feed.select.parameter(feed.outbox, key), "desc", number - 1, Cursor(1), chosen, number)
        found, walk, batch = await self._back(walk, limit + 1)
        try:
            batch.state.require_known(before)
        except _OtherHistory as other:
            raise await self._gone(feed, key, before, batch.state, other) from None
        if len(found) > limit:
            last = found[limit - 1]
            return Found(found[:limit][::-1], Cursor(last.number, last.ts), True, batch.state.epoch)
        return Found(found[::-1], batch.looked, not walk.is_over, batch.state.epoch)

    async def before_moment(self, feed: Feed, key: str, moment: datetime) -> tuple[Cursor, UUID]:
        """The last place before a moment, number 0 when all that is kept came later; and the log's epoch."""
        parameters = {"key": feed.select.parameter(feed.outbox, key), "moment": moment}
        rows = await self._connections.ask(self._queries[feed].moment, parameters)
        number, ts, epoch = rows[0]
        return Cursor(number, ts) if ts is not None else Cursor(0), epoch

    async def _gone(self, feed: Feed, key: str, place: Cursor, state: _State, other: Exception) -> Exception:
        """What to tell a reader who has seen what this log does not have.

        Whoever tells the time of what it has seen last has seen everything up to then, and nothing that came later.
        Whoever tells a number above all others has seen everything there is.
        """
        schema = feed.outbox.schema
        again = DatabaseUnavailable(f"the log of {schema!r} was restored or lags behind its primary: try again")
        if await lives.is_due(self._connections.ask, feed.outbox.shape):
            return again
        told = place.ts if place.ts is not None and place.ts.timestamp() > 0 else None
        seen, epoch = await self.before_moment(feed, key, (told or datetime.now(UTC)) + timedelta(milliseconds=1))
        if epoch != state.epoch:
            # A new life began after the page was read, and the cursor may be good in it.
            return again
        return CursorGone("epoch", str(other), seen if told else state.end)

    async def _back(self, walk: _Walk, wanted: int) -> tuple[list[Entry], _Walk, _Batch]:
        """The entries of a walk backwards, newest first, what is left of it, and its last round."""
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
        """The next entries of a walk: as many as are wanted, or fewer when it has looked at enough for one round."""
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
        rows = await self._connections.ask(queries.page(walk.direction, driver, tuple(rest)), parameters)
        entries, more = await self._entries(walk.feed, [row[8:] for row in rows], walk.direction)
        if walk.direction == "desc":
            entries.reverse()
        looked = walk.end
        if entries and (more or len(entries) >= wanted):
            looked = Cursor(entries[-1].number, entries[-1].ts)
        return _Batch([entry for entry in entries if walk.chosen.matches(entry)], looked, _State(*rows[0][:8]))

    async def _heard(self, walk: _Walk) -> _Walk:
        """As far as one looks in one round among what a reader hears of, where not all of it is wanted.

        Nobody has an index of that, so that events are looked at one by one.
        """
        if not walk.chosen.tests and walk.feed.types is None:
            return walk
        statement = self._queries[walk.feed].reach(walk.direction, None)
        rows = await self._connections.ask(statement, {**walk.parameters, "window": WINDOW})
        return walk._replace(end=Cursor(*rows[0])) if rows else walk

    async def _fewest(self, walk: _Walk, indexed: Sequence[tuple[int, frozenset[str]]]) -> tuple[int, Cursor]:
        """The facet whose next events reach furthest, and how far: it is walked, and no further in this round."""
        best, reached = indexed[0][0], Cursor(walk.start)
        for place, allowed in indexed:
            statement = self._queries[walk.feed].reach(walk.direction, place)
            parameters = {**walk.parameters, "values": sorted(allowed), "window": WINDOW}
            rows = await self._connections.ask(statement, parameters)
            if not rows:
                return place, walk.end
            number, ts = rows[0]
            if abs(number - walk.start) >= abs(reached.number - walk.start):
                best, reached = place, Cursor(number, ts)
        return best, reached

    async def _entries(
        self, feed: Feed, rows: Sequence[Sequence[Any]], direction: Direction
    ) -> tuple[list[Entry], bool]:
        """The events of these rows in ascending order, and whether some were left out to bound the memory."""
        present = [row for row in rows if row[0] is not None]
        entries: list[Entry] = []
        time_slice = TimeSlice()
        for each in stored_of(present, feed.outbox.shape):
            if time_slice.is_over():
                await time_slice.give()
            entries.append(self._maker.entry_of(feed, each))
        # Rows rise whatever the direction, and what was left out lies at its end.
        return entries, bool(present) and present[-1 if direction == "asc" else 0][-1]


def stored_of(rows: Iterable[Sequence[Any]], shape: Shape) -> list[StoredEvent]:
    """Rows of `feed_cut`, whose last column is not an event's."""
    return [StoredEvent(*parts) for parts in feed_rows((row[:-1] for row in rows), shape)]


def _is_large(entries: Iterable[Entry]) -> bool:
    """Whether these fill an answer: the next begins where it ends."""
    return sum(len(entry.body) for entry in entries) >= BYTES_AT_ONCE // 2
