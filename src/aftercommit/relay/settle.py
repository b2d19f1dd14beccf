"""The fenced writes after a delivery: delivered events move into the log, failed ones wait or are parked."""

import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import psycopg
from psycopg import sql

from aftercommit.errors import DatabaseError, DatabaseUnavailable, LeaseLost
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres import lives
from aftercommit.postgres.arrays import number_array, uuid_array
from aftercommit.postgres.commits import AsyncConnection, committed_async
from aftercommit.postgres.records import FEW_BYTES, FEW_EVENTS, log_records
from aftercommit.postgres.shared import exclusive
from aftercommit.postgres.statements import Statements
from aftercommit.relay.plan import Verdict
from aftercommit.relay.transport import Untried
from aftercommit.telemetry import LATENCY_BUCKETS_MS

logger = logging.getLogger("aftercommit.relay")

_BOUNDS = number_array(LATENCY_BUCKETS_MS)


@dataclass(frozen=True, slots=True)
class Appended:
    """What entered the log: `count` of the `chosen` events, up to which position and seq, and how long they waited.

    `full`: as many were chosen as may be at once. `records`: the events themselves, if they are few and a worker in
    this process takes them. `server_started` identifies the server they are on.
    """

    count: int
    chosen: int
    position: int | None
    last_seq: int | None
    latency: Sequence[tuple[str, int, int, float]]
    ids: Sequence[UUID]
    full: bool = False
    records: Sequence[Record] = ()
    server_started: datetime | None = None


class HandOver(Protocol):
    """Takes events from a relay of the same process, as soon as they are in the log."""

    def expect(self, untried: Untried | None) -> None:
        """The relay begins to append: untried events, or others (None)."""

    def receive(self, records: Sequence[Record], server_started: datetime | None) -> None:
        """The relay has appended, and its commit is certain. These are the events, if they are few and small."""


class Settlement:
    """Writes outcomes for one relay. Its writes are refused once another relay's token is on one of their lanes."""

    def __init__(self, outbox: Outbox, token: UUID, hand_over: HandOver | None = None) -> None:
        self._statements = Statements(outbox.shape)
        self._hand_over = hand_over
        self._token = token
        self._numbered = list(outbox.numbered)
        self._channel = outbox.shape.log_channel
        # The highest position that this relay has seen: a log that ends before it was restored.
        self._seen = 0
        # The last sweep found few events, so that the next probably does.
        self._few_due = True
        part = self._statements.part
        given = {
            "which": part("which_given"),
            "chosen": sql.SQL(""),
            "fenced": part("fence"),
            "chosen_count": sql.SQL("cardinality(%(ids)s::uuid[])"),
        }
        due = {
            "which": part("which_due"),
            "chosen": part("chosen_due", due=part("due_fresh")),
            "fenced": part("fence_chosen"),
            "chosen_count": sql.SQL("(select count(*) from chosen)"),
        }
        self._append_given = {few: self._append_statement(few=few, **given) for few in (False, True)}
        self._append_due = {few: self._append_statement(few=few, **due) for few in (False, True)}

    def _append_statement(self, *, few: bool, **parts: sql.Composable) -> bytes:
        """The append of many events, or that of `few`, which returns them."""
        nothing, part = sql.SQL(""), self._statements.part
        numbered, audience = bool(self._numbered), self._statements.shape.audience
        if few:
            parts |= {name: part(name) for name in ("handed", "handed_columns")}
            parts |= {"returned": part("returning_event"), "bytes": part("few_bytes")}
            parts |= {"latency": nothing, "latency_column": sql.SQL("null")}
        else:
            parts |= {"handed": nothing, "handed_columns": nothing, "bytes": nothing}
            parts |= {"returned": part("returning_audience") if audience else sql.SQL("1")}
            parts |= {name: part(name) for name in ("latency", "latency_column")}
        return self._statements.short(
            "append",
            **parts,
            streams=part("streams") if numbered else nothing,
            stream_seq=part("stream_seq") if numbered else sql.SQL("null::bigint"),
            join_streams=part("join_streams") if numbered else nothing,
            heard=part("heard") if audience else nothing,
            place=part("place"),
        )

    async def append(
        self, connection: AsyncConnection, ids: Sequence[UUID], lanes: Collection[int], retried: Sequence[UUID] = ()
    ) -> Appended:
        """Move delivered events into the log, and resolve the dead letters of those that had failed before."""
        statement = self._append_given[self._hands_over(len(ids))]

        async def write() -> Appended:
            return await self._append(connection, statement, lanes, {"ids": uuid_array(ids)})

        async def write_together() -> Appended:
            async with exclusive(connection) as own, committed_async(own):
                appended = await self._append(own, statement, lanes, {"ids": uuid_array(ids)})
                await own.execute(self._statements["resolve_letters"], {"ids": list(retried)})
                return appended

        return await self._handed_over(connection, write_together if retried else write, None)

    async def append_due(
        self, connection: AsyncConnection, lanes: Collection[int], watermark: int, limit: int
    ) -> Appended:
        """Move due events into the log in one statement, for a transport that carries nothing."""
        few = self._few_due and self._hands_over(FEW_EVENTS)
        which = {"watermark": watermark, "limit": min(limit, FEW_EVENTS) if few else limit}
        appended = await self._handed_over(
            connection,
            lambda: self._append(connection, self._append_due[few], lanes, which),
            Untried(number_array(sorted(lanes)), watermark) if few else None,
        )
        self._few_due = appended.chosen < FEW_EVENTS
        return replace(appended, full=appended.chosen >= which["limit"])

    def _hands_over(self, events: int) -> bool:
        """Whether consumers of this process get so many events from here."""
        return self._hand_over is not None and events <= FEW_EVENTS

    async def recognise_server(self, connection: AsyncConnection) -> lives.Life | None:
        """Make sure that the log may continue on this server; after a restore, begin a new life and return it."""
        async with exclusive(connection) as own:
            life, self._seen = await lives.recognise(own, self._statements.shape, seen=self._seen)
        return life

    async def _handed_over(
        self, connection: AsyncConnection, write: Callable[[], Awaitable[Appended]], untried: Untried | None
    ) -> Appended:
        """Write, and tell the consumers of this process."""
        if self._hand_over is None:
            return await self._prepared(connection, write)
        records: Sequence[Record] = ()
        server_started: datetime | None = None
        self._hand_over.expect(untried)
        try:
            appended = await self._prepared(connection, write)
            records, server_started = appended.records, appended.server_started
        finally:
            self._hand_over.receive(records, server_started)
        return appended

    async def _prepared(self, connection: AsyncConnection, write: Callable[[], Awaitable[Appended]]) -> Appended:
        """Write; where they are missing, first make a life of the log on this server and partitions for it."""
        try:
            appended = await self._with_partitions(connection, write)
        except _UnknownServer:
            if await self.recognise_server(connection) is not None:
                # What this relay remembers of the outbox belongs to the life before.
                raise DatabaseUnavailable("the database was restored or replaced: starting a new session") from None
            try:
                appended = await self._with_partitions(connection, write)
            except _UnknownServer:
                raise DatabaseUnavailable("the server behind this connection keeps changing") from None
        # Only after the commit: a position that was rolled back may never have existed.
        self._seen = max(self._seen, appended.position or 0)
        return appended

    async def _with_partitions(self, connection: AsyncConnection, write: Callable[[], Awaitable[Appended]]) -> Appended:
        try:
            return await write()
        except psycopg.errors.CheckViolation as problem:
            # The sweeper makes partitions ahead. If something kept it from that, there is none for these positions.
            if problem.diag.constraint_name is not None:
                raise
            await connection.execute(self._statements["make_partitions"])
            return await write()

    async def _append(
        self, connection: AsyncConnection, statement: bytes, lanes: Collection[int], which: dict[str, Any]
    ) -> Appended:
        parameters = {
            **self._fence(lanes),
            **which,
            "numbered": self._numbered,
            "channel": self._channel,
            "bounds": _BOUNDS,
            "named": logger.isEnabledFor(logging.INFO),
            "seen": self._seen,
            "few_bytes": FEW_BYTES,
        }
        rows = await (await connection.execute(statement, parameters, prepare=True)).fetchall()
        if not rows:
            raise DatabaseError("the append returned no row: the schema is damaged, restore it from a backup")
        held, count, position, ts, last_seq, latency, ids, chosen, known, _, *handed = rows[0]
        self._refuse_stale(held, lanes)
        if not known:
            raise _UnknownServer
        if not handed:
            return Appended(count, chosen, position, last_seq, latency, ids or ())
        started, are_small, *_ = handed
        records = log_records((row[12:] for row in rows), self._statements.shape) if count else []
        waited = _waited(records, ts)
        handed_over = records if are_small else ()
        return Appended(
            count, chosen, position, last_seq, waited, ids or (), records=handed_over, server_started=started
        )

    async def record_failures(
        self, connection: AsyncConnection, verdicts: Sequence[Verdict], lanes: Collection[int]
    ) -> int:
        """Make failed events wait for their retry, or end them as failed; each gets a dead letter."""
        parameters = {**self._fence(lanes), **_columns(verdicts)}
        row = await (await connection.execute(self._statements["settle_failures"], parameters)).fetchone()
        held, settled, _, ids = row if row else (0, 0, 0, ())
        self._refuse_stale(held, lanes)
        withdrawn = [verdict for verdict in verdicts if verdict.event_id not in ids]
        if withdrawn:
            await connection.execute(self._statements["record_withdrawn"], {**parameters, **_columns(withdrawn)})
        return int(settled)

    async def count_attempt(self, connection: AsyncConnection, event_id: UUID, lane: int) -> int | None:
        """Count an attempt before it is made; None when the event or the lane is gone."""
        parameters = {**self._fence([lane]), "id": event_id}
        row = await (await connection.execute(self._statements["count_attempts"], parameters)).fetchone()
        return int(row[0]) if row else None

    async def give_back_attempt(self, connection: AsyncConnection, event_id: UUID, lane: int) -> None:
        """Take back a counted attempt that could not be made because the destination is down."""
        await connection.execute(self._statements["give_back_attempt"], {**self._fence([lane]), "id": event_id})

    def _fence(self, lanes: Collection[int]) -> dict[str, Any]:
        return {"lanes": number_array(sorted(lanes)), "token": self._token, "lane_count": len(lanes)}

    def _refuse_stale(self, held: int, lanes: Collection[int]) -> None:
        if held != len(lanes):
            raise LeaseLost(f"another relay took over {len(lanes) - held} of {len(lanes)} lanes: nothing was written")


class _UnknownServer(Exception):
    """Nothing was written: the log last continued on another server, or it was restored."""


def _waited(records: Sequence[Record], ts: datetime) -> list[tuple[str, int, int, float]]:
    """How long each of a few events has waited in the outbox: its type, bucket, number and milliseconds."""
    waits = [(each.event_type, max(0.0, (ts - each.created_at).total_seconds() * 1000)) for each in records]
    return [(event_type, bisect_right(LATENCY_BUCKETS_MS, ms), 1, ms) for event_type, ms in waits]


def _columns(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "ids": [verdict.event_id for verdict in verdicts],
        "consumers": [verdict.consumer for verdict in verdicts],
        "errors": [verdict.error for verdict in verdicts],
        "classes": [verdict.error_class for verdict in verdicts],
        "delays": [verdict.delay for verdict in verdicts],
        "counts": [verdict.counted for verdict in verdicts],
        "attempts": [verdict.attempts for verdict in verdicts],
    }
