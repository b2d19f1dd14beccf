"""Reads the log of an outbox once for all of its feeds in this process, and hands the events to the strands in memory.

The tailer wakes on notifications if there is a listener, and polls in any case. After an outage it goes on from its
position. If that position is gone (the log was restored, or retention has passed it) or too far back, all strands of
the outbox are given up: readers ask for them again with their cursors, and learn whether they missed something.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from aftercommit.feed.strands.connections import reading_connection
from aftercommit.feed.strands.history import stored_of
from aftercommit.feed.strands.kept_strands import KeptStrands
from aftercommit.feed.strands.strand import Loaded
from aftercommit.feed.strands.tail_position import TailPosition, Tip
from aftercommit.feed.strands.time_slice import TimeSlice
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.blocks import name_literal
from aftercommit.postgres.bounded import Unanswered
from aftercommit.postgres.database import Database, privilege
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.records import BYTES_AT_ONCE
from aftercommit.postgres.resilience import DatabaseService, close_quietly
from aftercommit.postgres.statements import Statements
from aftercommit.schema.requirement import require_schema
from aftercommit.service import Probe, Waker
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.feed")

# Where notifications arrive, a poll only finds what they missed, and shows that the database answers: streams send no
# heartbeats after three seconds without an answer.
POLL: Final = 2.0
POLL_WITHOUT_LISTENER: Final = 0.05
# A log that was not looked at for so many seconds counts as unread: the database is away, or hangs.
OVERDUE: Final = 10.0
PAGE: Final = 1000
_AT_ONCE: Final = 100


class Unread(NamedTuple):
    """A log that is not being read: its outbox, when it last was read, and whether the database hangs or is away."""

    outbox: str
    since: datetime | None
    hangs: bool


class Tailer(DatabaseService):
    """Reads the log of one outbox from its end onwards. `position` is that of the last event it has read."""

    may_be_cut = True

    def __init__(
        self,
        outbox: Outbox,
        database: Database,
        types: Iterable[str] | None,
        strands: KeptStrands,
        *,
        max_lag_events: int,
        listener: Listener | None = None,
        probe: Probe | None = None,
    ) -> None:
        """Reads only events of these types (None: all). Without a listener it polls more often."""
        super().__init__(probe)
        self.name = f"tailer {outbox.schema}"
        self._place = TailPosition(max_lag_events)
        self.is_following = False
        # When the log was last read, with or without news.
        self.read_at: datetime | None = None
        self._looked = time.monotonic()
        self.has_begun = asyncio.Event()
        self.news = listener.subscribe(outbox.shape.log_channel) if listener is not None else Waker()
        self._outbox = outbox
        self._database = database
        self._types = sorted(types) if types is not None else None
        self._strands = strands
        self._listener = listener
        self._statement = _statement(Statements(outbox.shape))

    @property
    def position(self) -> int:
        """The position of the last event that was read."""
        return self._place.position

    @property
    def unread(self) -> Unread | None:
        """None while the log is being read."""
        if self.is_following and self.unread_for <= OVERDUE:
            return None
        # A query that has been running for so long hangs, even if its own timeout is longer.
        hangs = self.is_following or isinstance(self.outage, Unanswered)
        return Unread(self._outbox.schema, self.read_at, hangs)

    @property
    def unread_for(self) -> float:
        """Seconds since the log was last looked at. A hanging database shows here first."""
        return time.monotonic() - self._looked

    def accepts(self, loaded: Loaded) -> bool:
        """Whether a strand was loaded from the epoch that the tailer reads: it could not keep another up to date."""
        if loaded.epoch != self._place.epoch:
            # The log was just restored. Look soon.
            self.news.set()
            return False
        if loaded.entries:
            self._place.loaded(loaded.entries[-1].position)
        return True

    async def session(self) -> None:
        """Follow the log on one connection, until it breaks or the service stops."""
        connection = await reading_connection(self._database)
        try:
            await require_schema(connection, self._outbox.shape)
            if self._place.epoch is None:
                await self._begin(connection)
            self.session_is_up()
            while not self.stopping.is_set():
                behind = await self._read(connection)
                self.is_following, self.read_at, self._looked = True, datetime.now(UTC), time.monotonic()
                if not behind:
                    await self.reach("feed.idle", position=self.position)
                    listening = self._listener is not None and self._listener.working
                    await self.pause(POLL if listening else POLL_WITHOUT_LISTENER, self.news)
        except psycopg.errors.InsufficientPrivilege as problem:
            raise privilege(connection.info.user, self._outbox.shape, problem) from problem
        finally:
            self.is_following = False
            await close_quietly(connection)

    async def _begin(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Begin at the end of the log. Strands are loaded with older events when a reader asks for them."""
        row = await (await connection.execute(Statements(self._outbox.shape)["head"])).fetchone()
        assert row is not None, "head has its one row from the first migration on"
        await self._look_for_indexes(connection)
        self._place.begin(*row)
        self._looked = time.monotonic()
        self.has_begun.set()
        await self.reach("feed.begun", position=self.position)

    async def _look_for_indexes(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Warn about each missing index of a facet: without it, a filter works but is slow."""
        shape = self._outbox.shape
        for facet in shape.facets:
            query = Statements(shape).render("index_is_valid", index_name=name_literal(shape.schema, facet.name))
            row = await (await connection.execute(query.encode())).fetchone()
            if row is None or not row[0]:
                remedy = "run `aftercommit migrate up` in a program that declares the feed"
                fields = {"outbox": shape.schema, "index": facet.name, "facet": ".".join(facet.path)}
                log_event(logger, logging.WARNING, "feed_index_missing", remedy=remedy, **fields)

    async def _read(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Read one page; True when there is more."""
        # Taken before the query: a strand loaded while it runs may be ahead of its answer.
        end = self._place.end
        asked = {"after": self.position, "size": PAGE, "types": self._types, "max_bytes": BYTES_AT_ONCE}
        rows = await (await connection.execute(self._statement, asked, prepare=True)).fetchall()
        tip = Tip(*rows[0][:5])
        await self.reach("feed.read", position=self.position, head=tip.position)
        if reason := self._place.lost(tip, end):
            await self._give_up(reason, tip)
            return False
        if tip.position == self.position:
            return False
        events = [row[5:] for row in rows if row[5] is not None]
        upto = min(tip.position, self.position + PAGE)
        if events and events[-1][-1]:
            # Cut to bound the memory: the rest of the page was not read.
            upto = stored_of(events[-1:], self._outbox.shape)[0].record.position or upto
        await self._hand_on(events)
        self._place.move(upto, tip)
        await self._strands.page_is_through(self._outbox)
        await self.reach("feed.tailed", count=len(events), position=self.position)
        return upto < tip.position

    async def _hand_on(self, events: list[tuple[Any, ...]]) -> None:
        """In slices: making entries takes time (long texts are redacted), and the same thread serves all readers."""
        time_slice = TimeSlice()
        for start in range(0, len(events), _AT_ONCE):
            for event in stored_of(events[start : start + _AT_ONCE], self._outbox.shape):
                if time_slice.is_over():
                    await time_slice.give()
                self._strands.take(self._outbox, event)

    async def _give_up(self, reason: str, tip: Tip) -> None:
        fields = {"outbox": self._outbox.schema, "position": self.position, "head": tip.position}
        log_event(logger, logging.WARNING, "feed_began_anew", reason=reason, **fields)
        self._place.begin(tip.position, tip.ts, tip.epoch)
        await self._strands.give_up(self._outbox)


def _statement(statements: Statements) -> bytes:
    parts = {"columns": statements.part("feed_columns"), "bytes": statements.part("feed_bytes")}
    order = {"number": sql.Identifier("position"), "direction": sql.SQL("asc")}
    candidates = statements.part("feed_tail_candidates", **parts)
    page = statements.part("feed_cut", candidates=candidates, **parts, **order)
    return statements.render("feed_tail", page=page).encode()
