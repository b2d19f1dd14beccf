"""The fenced writes after a delivery: delivered events move into the log, failed ones wait or are parked."""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
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
from aftercommit.telemetry import LATENCY_BUCKETS_MS

logger = logging.getLogger("aftercommit.relay")

_BOUNDS = number_array(LATENCY_BUCKETS_MS)


@dataclass(frozen=True, slots=True)
class Appended:
    """What entered the log: `count` of the `chosen` events, up to which position and seq, and how long they waited.

    `records`: the events themselves, if they are few and a worker in this process takes them. `server_started`
    identifies the server they are on.
    """

    count: int
    chosen: int
    position: int | None
    last_seq: int | None
    latency: Sequence[tuple[str, int, int, float]]
    ids: Sequence[UUID]
    records: Sequence[Record] = ()
    server_started: datetime | None = None


class HandOver(Protocol):
    """Takes events from a relay of the same process, as soon as they are in the log."""

    def expect(self) -> None:
        """The relay begins to append."""

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
        part = self._statements.part
        self._append_given = self._append_statement(
            which=part("which_given"),
            chosen=sql.SQL(""),
            fenced=part("fence"),
            chosen_count=sql.SQL("cardinality(%(ids)s::uuid[])"),
        )
        self._append_due = self._append_statement(
            which=part("which_due"),
            chosen=part("chosen_due", due=part("due_fresh")),
            fenced=part("fence_chosen"),
            chosen_count=sql.SQL("(select count(*) from chosen)"),
        )

    def _append_statement(self, **parts: sql.Composable) -> bytes:
        nothing = sql.SQL("")
        numbered, audience = bool(self._numbered), self._statements.shape.audience
        return self._statements.short(
            "append",
            **parts,
            streams=self._statements.part("streams") if numbered else nothing,
            stream_seq=self._statements.part("stream_seq") if numbered else sql.SQL("null::bigint"),
            join_streams=self._statements.part("join_streams") if numbered else nothing,
            returned=self._statements.part("returning_audience") if audience else sql.SQL("1"),
            heard=self._statements.part("heard") if audience else nothing,
            place=(place := self._statements.part("place")),
            handed=self._statements.part("handed", place=place) if self._hand_over is not None else nothing,
            handed_columns=self._statements.part("handed_columns") if self._hand_over is not None else nothing,
        )

    async def append(
        self, connection: AsyncConnection, ids: Sequence[UUID], lanes: Collection[int], retried: Sequence[UUID] = ()
    ) -> Appended:
        """Move delivered events into the log, and resolve the dead letters of those that had failed before."""

        async def write() -> Appended:
            return await self._append(connection, self._append_given, lanes, {"ids": uuid_array(ids)})

        async def write_together() -> Appended:
            async with exclusive(connection) as own, committed_async(own):
                appended = await self._append(own, self._append_given, lanes, {"ids": uuid_array(ids)})
                await own.execute(self._statements["resolve_letters"], {"ids": list(retried)})
                return appended

        return await self._handed_over(connection, write_together if retried else write)

    async def append_due(
        self, connection: AsyncConnection, lanes: Collection[int], watermark: int, limit: int
    ) -> Appended:
        """Move due events into the log in one statement, for a transport that carries nothing."""
        which = {"watermark": watermark, "limit": limit}
        return await self._handed_over(connection, lambda: self._append(connection, self._append_due, lanes, which))

    async def recognise_server(self, connection: AsyncConnection) -> lives.Life | None:
        """Make sure that the log may continue on this server; after a restore, begin a new life and return it."""
        async with exclusive(connection) as own:
            life, self._seen = await lives.recognise(own, self._statements.shape, seen=self._seen)
        return life

    async def _handed_over(self, connection: AsyncConnection, write: Callable[[], Awaitable[Appended]]) -> Appended:
        """Write, and tell the consumers of this process."""
        if self._hand_over is None:
            return await self._prepared(connection, write)
        records: Sequence[Record] = ()
        server_started: datetime | None = None
        self._hand_over.expect()
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
            "few": FEW_EVENTS,
            "few_bytes": FEW_BYTES,
        }
        rows = await (await connection.execute(statement, parameters, prepare=True)).fetchall()
        if not rows:
            raise DatabaseError("the append returned no row: the schema is damaged, restore it from a backup")
        held, count, position, _, last_seq, latency, ids, chosen, known, *_ = rows[0]
        self._refuse_stale(held, lanes)
        if not known:
            raise _UnknownServer
        started, *event = rows[0][10:] or (None, None)
        returned = (row[11:] for row in rows) if event[0] is not None else ()
        records = log_records(returned, self._statements.shape)
        return Appended(count, chosen, position, last_seq, latency, ids or (), records, started)

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
