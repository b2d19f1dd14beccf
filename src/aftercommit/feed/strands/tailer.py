"""One reader of the log for all feeds of an outbox in this process: what it reads goes to the strands that are kept.

Wakes on notifications where there is a listener, and looks now and then in any case. After an outage it goes on from
where it stood. When that place is gone (the log was restored, retention has overtaken it) or too far back to be worth
the way, all strands are given up: readers ask for them anew, with their cursors, and are told if they have missed
something.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import psycopg
from psycopg import sql

from aftercommit.feed.declaration.entry import StoredEvent
from aftercommit.feed.strands.connections import reading_connection
from aftercommit.feed.strands.history import stored_of
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

POLL: Final = 1.0
POLL_WITHOUT_LISTENER: Final = 0.05
# Whoever has not looked for so many seconds cannot: the database is away, or hangs.
OVERDUE: Final = 10.0
PAGE: Final = 1000
_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Following:
    """What a tailer does with what it reads: hands events on, tells that a page is through, gives everything up."""

    take: Callable[[StoredEvent], None]
    page_is_through: Callable[[], None]
    give_up: Callable[[str], None]


class Unread(NamedTuple):
    """A log that is not being read: of which outbox, when it last was, and whether the database hangs or is away."""

    outbox: str
    since: datetime | None
    hangs: bool


class _Tip(NamedTuple):
    """Where the log stands: the columns of `feed_tail` before its event."""

    position: int
    ts: datetime
    epoch: UUID
    before: datetime | None
    follows: bool


class Tailer(DatabaseService):
    """Reads the log of one outbox from its end onwards. `position` is how far it has come."""

    may_be_cut = True

    def __init__(
        self,
        outbox: Outbox,
        database: Database,
        types: Iterable[str] | None,
        following: Following,
        *,
        max_lag_events: int,
        listener: Listener | None = None,
        probe: Probe | None = None,
    ) -> None:
        """Not started. Only events of these types are read (None: all)."""
        super().__init__(probe)
        self.name = f"tailer {outbox.schema}"
        self.position = 0
        # The highest position that somebody else has read here: a strand may be loaded while we are behind it.
        self.heard = 0
        self.epoch: UUID | None = None
        self.is_following = False
        # When the log was last read, whether there was something new or not.
        self.read_at: datetime | None = None
        self._looked = time.monotonic()
        self.has_begun = asyncio.Event()
        self.news = listener.subscribe(outbox.shape.log_channel) if listener is not None else Waker()
        self._outbox = outbox
        self._database = database
        self._types = sorted(types) if types is not None else None
        self._following = following
        self._max_lag_events = max_lag_events
        self._listener = listener
        # The time of the event at our position, as far as it is known: another one there is another log.
        self._ts: datetime | None = None
        self._statement = _statement(Statements(outbox.shape))

    @property
    def unread(self) -> Unread | None:
        """What is wrong with this log; None while it is being read."""
        if self.is_following and self.unread_for <= OVERDUE:
            return None
        # A question that has been under way for so long hangs, however long it may still be waited for.
        hangs = self.is_following or isinstance(self.outage, Unanswered)
        return Unread(self._outbox.schema, self.read_at, hangs)

    @property
    def unread_for(self) -> float:
        """Seconds since the log was last looked at. A database that hangs shows here first."""
        return time.monotonic() - self._looked

    async def session(self) -> None:
        """One life of the connection."""
        connection = await reading_connection(self._database)
        try:
            await require_schema(connection, self._outbox.shape)
            if self.epoch is None:
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
        """From the end: what was before is loaded strand by strand, when somebody asks for it."""
        row = await (await connection.execute(Statements(self._outbox.shape)["head"])).fetchone()
        assert row is not None, "head has its one row from the first migration on"
        await self._look_for_indexes(connection)
        self.position, self._ts, self.epoch = row
        self._looked = time.monotonic()
        self.has_begun.set()
        await self.reach("feed.begun", position=self.position)

    async def _look_for_indexes(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Without its index a filter is answered all the same, and slowly: somebody should know."""
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
        # Before the question: what is heard of while it is under way may be news to its answer.
        end = max(self.position, self.heard)
        asked = {"after": self.position, "size": PAGE, "types": self._types, "max_bytes": BYTES_AT_ONCE}
        rows = await (await connection.execute(self._statement, asked, prepare=True)).fetchall()
        tip = _Tip(*rows[0][:5])
        await self.reach("feed.read", position=self.position, head=tip.position)
        if reason := self._lost_place(tip, end):
            self._give_up(reason, tip)
            return False
        if tip.position == self.position:
            return False
        events = [row[5:] for row in rows if row[5] is not None]
        upto = min(tip.position, self.position + PAGE)
        if events and events[-1][-1]:
            # Cut to bound the memory: what lies behind the last one was not looked at.
            upto = stored_of(events[-1:], self._outbox.shape)[0].record.position or upto
        await self._hand_on(events)
        self._ts = tip.ts if upto == tip.position else None
        self.position = upto
        self._following.page_is_through()
        await self.reach("feed.tailed", count=len(events), position=self.position)
        return upto < tip.position

    async def _hand_on(self, events: list[tuple[Any, ...]]) -> None:
        """Entries are made here: long texts, redacted, would hold up everybody who is served meanwhile."""
        time_slice = TimeSlice()
        for start in range(0, len(events), _AT_ONCE):
            for event in stored_of(events[start : start + _AT_ONCE], self._outbox.shape):
                if time_slice.is_over():
                    await time_slice.give()
                self._following.take(event)

    def _lost_place(self, tip: _Tip, end: int) -> str | None:
        """Why one cannot go on from here; None when one can."""
        if tip.epoch != self.epoch:
            return "the log has a new epoch"
        if tip.position < end:
            return f"the log ends at {tip.position} and had come to {end}"
        if self._ts is not None and tip.before is not None and tip.before != self._ts:
            return f"another event is at position {self.position}"
        if tip.position > self.position and not tip.follows:
            return f"what follows position {self.position} is no longer kept"
        if tip.position - self.position > self._max_lag_events:
            return f"the log is {tip.position - self.position} events ahead"
        return None

    def _give_up(self, reason: str, tip: _Tip) -> None:
        fields = {"outbox": self._outbox.schema, "position": self.position, "head": tip.position}
        log_event(logger, logging.WARNING, "feed_began_anew", reason=reason, **fields)
        self.position, self._ts, self.epoch = tip.position, tip.ts, tip.epoch
        self.heard = tip.position
        self._following.give_up(reason)


def _statement(statements: Statements) -> bytes:
    parts = {"columns": statements.part("feed_columns"), "bytes": statements.part("feed_bytes")}
    order = {"number": sql.Identifier("position"), "direction": sql.SQL("asc")}
    candidates = statements.part("feed_tail_candidates", **parts)
    page = statements.part("feed_cut", candidates=candidates, **parts, **order)
    return statements.render("feed_tail", page=page).encode()
