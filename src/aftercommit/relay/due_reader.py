"""Reads the due events of a carrier's lanes, and alone decides where and when the carrier reads next."""

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.arrays import number_array
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.records import BYTES_AT_ONCE, outbox_records
from aftercommit.postgres.statements import Statements
from aftercommit.relay.doorbell import POLL
from aftercommit.relay.plan import Due, Marks, Watermark
from aftercommit.relay.settle import Appended
from aftercommit.relay.transport import ReadingTransport, Untried

MAX_BATCH_BYTES = BYTES_AT_ONCE
RETRY_LOOK = 1.0
# Longer than the pause of an idle carrier, which looks again at its end.
IDLE_RETRY_LOOK = 1.5 * POLL


@dataclass(frozen=True, slots=True)
class Batch:
    """Events read together. `fresh` are the seqs of the untried ones.

    `resolved`: up to this seq every writer had ended before the read. `counted`: the attempts are counted already.
    `drained`: nothing else was due. `more`: a limit was reached, so events may be left.
    """

    events: Sequence[Due | Record]
    fresh: Sequence[int] = ()
    resolved: int = 0
    counted: bool = False
    drained: bool = False
    more: bool = False


class DueReader:
    """Holds the watermark of one carrier and the time at which it looks for retries.

    `loads`: it reads whole events and not only what it takes to append them.
    """

    def __init__(self, outbox: Outbox, marks: Marks, batch_size: int, *, loads: bool) -> None:
        self.watermark = Watermark()
        self._shape = outbox.shape
        self._marks = marks
        self._batch_size = batch_size
        self._loads = loads
        self._strict = outbox.ordering == "strict"
        # When to look for retries again; None: never looked.
        self._retries_at: float | None = None
        self._statements = Statements(outbox.shape)
        self._look = self._statements.render(
            "look",
            due=self._statements.part(self._named("due_fresh")),
            retry=self._statements.part(self._named("next_retry")),
        ).encode()
        loaded = self._statements.part("loaded_columns")
        self._loading = {
            name: self._statements.render("load_due", due=self._statements.part(name, due_columns=loaded)).encode()
            for name in ("due_fresh", "due_fresh_strict", "due_retries", "due_retries_strict")
        }

    def start(self, lanes: Collection[int]) -> tuple[int, int]:
        """The watermark for a read of these lanes, and the seq up to which every writer has ended.

        Call it before the read: a writer that ends between the two is resolved, but its events are not in the read.
        """
        return self.watermark.for_lanes(lanes), self._marks.resolved

    async def read(self, connection: AsyncConnection, lanes: Collection[int]) -> Batch:
        """Due events of these lanes by seq: retries (at most half a batch) and untried events."""
        limit, most_retries = self._batch_size, max(1, self._batch_size // 2)
        watermark, resolved = self.start(lanes)
        parameters = {"lanes": number_array(sorted(lanes)), "watermark": watermark, "max_bytes": MAX_BATCH_BYTES}
        retries: list[Due | Record] = []
        if self.quiet_seconds <= 0:
            retries = await self._query(connection, "due_retries", {**parameters, "limit": most_retries})
            if len(retries) < most_retries:
                self._retries_at = time.monotonic() + RETRY_LOOK
        fresh = await self._query(connection, "due_fresh", {**parameters, "limit": limit - len(retries)})
        if not fresh and not retries:
            # No new event is due, so the relay may have been woken for a retry.
            retries = await self._query(connection, "due_retries", {**parameters, "limit": most_retries})
        if not fresh and not self._strict and len(retries) < limit:
            self.watermark.nothing_below(None, resolved)
        events = sorted([*retries, *fresh], key=lambda event: event.seq)
        return Batch(
            events,
            [event.seq for event in fresh],
            resolved,
            drained=not retries and len(fresh) < limit and not self._loads,
            more=len(retries) >= most_retries or len(events) >= limit,
        )

    async def read_few(self, transport: ReadingTransport, lanes: Collection[int]) -> Batch | None:
        """Untried events of these lanes that the transport has read; None if they must be read here."""
        if self._strict or self.quiet_seconds <= 0:
            return None
        watermark, resolved = self.start(lanes)
        events = await transport.read_few(Untried(number_array(sorted(lanes)), watermark))
        return Batch(events, [event.seq for event in events], resolved) if events else None

    async def settled(self, connection: AsyncConnection, batch: Batch, unsettled: Collection[int]) -> None:
        """Move the watermark after a batch of which all but these seqs are delivered or have failed."""
        if batch.counted:
            return
        if self._strict:
            # Events blocked behind a failed one are not read, but they are still there: ask for the lowest of all.
            parameters = {"watermark": self.watermark.value, "lanes": number_array(sorted(self.watermark.lanes))}
            row = await (await connection.execute(self._statements["lowest_fresh"], parameters)).fetchone()
            self.watermark.nothing_below(row[0] if row else None, batch.resolved)
            return
        self.watermark.settled(batch.fresh, unsettled, batch.resolved)

    def swept(self, appended: Appended, resolved: int) -> bool:
        """Move the watermark after a sweep; returns whether the sweep left no untried event."""
        moved_all = appended.count == appended.chosen
        drained = moved_all and not appended.full
        if drained:
            self.watermark.nothing_below(None, resolved)
        elif moved_all and appended.last_seq is not None:
            self.watermark.settled([appended.last_seq], (), resolved)
        return drained

    @property
    def quiet_seconds(self) -> float:
        """For how long the reader need not look for retries; not positive when it must."""
        return 0.0 if self._retries_at is None else self._retries_at - time.monotonic()

    def expect_retry(self, seconds: float) -> None:
        """A retry falls due in so many seconds."""
        if self._retries_at is not None:
            self._retries_at = min(self._retries_at, time.monotonic() + max(0.0, seconds))

    async def look(self, connection: AsyncConnection, lanes: Collection[int]) -> float:
        """Seconds until an event of these lanes is due: 0 when one is, infinity when none waits. Locks nothing."""
        is_fresh, retry_in = await self._ask(connection, lanes)
        # A new event that wakes the carrier need not wait for a look for retries.
        self._retries_at = time.monotonic() + min(IDLE_RETRY_LOOK, retry_in)
        return 0.0 if is_fresh else retry_in

    async def is_retry_due(self, connection: AsyncConnection, lanes: Collection[int]) -> bool:
        """Whether retries have to be read; asks the database at most once in a while."""
        if self._retries_at is None:
            return True
        if self.quiet_seconds > 0:
            return False
        _, retry_in = await self._ask(connection, lanes)
        self._retries_at = time.monotonic() + min(RETRY_LOOK, retry_in)
        return retry_in == 0

    async def _ask(self, connection: AsyncConnection, lanes: Collection[int]) -> tuple[bool, float]:
        watermark, resolved = self.start(lanes)
        parameters = {"lanes": number_array(sorted(lanes)), "watermark": watermark, "limit": 1}
        row = await (await connection.execute(self._look, parameters, prepare=True)).fetchone()
        is_fresh, retry_in = row or (True, None)
        if not is_fresh and not self._strict:
            self.watermark.nothing_below(None, resolved)
        return is_fresh, math.inf if retry_in is None else max(0.0, retry_in)

    def _named(self, name: str) -> str:
        return f"{name}_strict" if self._strict else name

    async def _query(self, connection: AsyncConnection, name: str, parameters: dict[str, Any]) -> list[Due | Record]:
        if parameters["limit"] <= 0:
            return []
        again = name == "due_retries"
        name = self._named(name)
        statement = self._loading[name] if self._loads else self._statements[name]
        cursor = await connection.execute(statement, parameters, prepare=True, binary=self._loads)
        rows = await cursor.fetchall()
        if not self._loads:
            return [Due(again, *row[:-1]) for row in rows]
        return [*outbox_records(rows, self._shape, again=again)]
