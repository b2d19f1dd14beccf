"""The fenced writes that end a delivery: delivered events move into the log, failed ones wait or are parked."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from aftercommit.errors import LeaseLost
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.statements import Statements
from aftercommit.relay.plan import Verdict


@dataclass(frozen=True, slots=True)
class Appended:
    """What entered the log: how many, up to which position, when."""

    count: int
    position: int
    ts: datetime


class Settlement:
    """Writes outcomes for one relay; every statement is refused when a lane's token is no longer ours."""

    def __init__(self, outbox: Outbox, token: UUID) -> None:
        """Statements for this outbox."""
        self._statements = Statements(outbox.shape)
        self._token = token
        self._numbered = list(outbox.numbered)
        self._channel = outbox.shape.log_channel

    async def append(
        self, connection: psycopg.AsyncConnection[Any], ids: Sequence[UUID], lanes: Collection[int]
    ) -> Appended:
        """Move delivered events into the log."""
        statement = self._statements["append_numbered" if self._numbered else "append"]
        parameters = {**self._fence(lanes), "ids": list(ids), "numbered": self._numbered, "channel": self._channel}
        row = await (await connection.execute(statement, parameters)).fetchone()
        held, count, position, ts = row[:4] if row else (0, 0, 0, None)
        self._refuse_stale(held, lanes)
        return Appended(count, position, ts)

    async def record_failures(
        self, connection: psycopg.AsyncConnection[Any], verdicts: Sequence[Verdict], lanes: Collection[int]
    ) -> int:
        """Failed events wait for their retry or end as failed, each with its dead letter."""
        parameters = {
            **self._fence(lanes),
            "ids": [verdict.event_id for verdict in verdicts],
            "consumers": [verdict.consumer for verdict in verdicts],
            "errors": [verdict.error for verdict in verdicts],
            "classes": [verdict.error_class for verdict in verdicts],
            "delays": [verdict.delay for verdict in verdicts],
            "counts": [verdict.counted for verdict in verdicts],
        }
        row = await (await connection.execute(self._statements["settle_failures"], parameters)).fetchone()
        held, settled = row[:2] if row else (0, 0)
        self._refuse_stale(held, lanes)
        return int(settled)

    async def count_attempt(self, connection: psycopg.AsyncConnection[Any], event_id: UUID, lane: int) -> int | None:
        """Count an attempt before it is made; None when the event is no longer there to be tried."""
        parameters = {**self._fence([lane]), "id": event_id}
        row = await (await connection.execute(self._statements["count_attempts"], parameters)).fetchone()
        return int(row[0]) if row else None

    async def resolve_letters(self, connection: psycopg.AsyncConnection[Any], ids: Sequence[UUID]) -> None:
        """Events that had failed before are published now."""
        await connection.execute(self._statements["resolve_letters"], {"ids": list(ids)})

    def _fence(self, lanes: Collection[int]) -> dict[str, Any]:
        return {"lanes": sorted(lanes), "token": self._token, "lane_count": len(lanes)}

    def _refuse_stale(self, held: int, lanes: Collection[int]) -> None:
        if held != len(lanes):
            raise LeaseLost(
                f"{len(lanes) - held} of {len(lanes)} lanes were taken over by another relay: nothing of this batch was written"
            )
