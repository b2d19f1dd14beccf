"""What operators did, on record: every retry, edit, discard and replay is an operation with its events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from aftercommit.errors import RepairError
from aftercommit.event.identity import uuid7
from aftercommit.operate.repair.selection import Selection
from aftercommit.operate.repair.session import RepairSession

TO_OWNER = "@owner"
"""Replay to the consumer that each dead letter belongs to."""
TO_TRANSPORT = "@transport"
"""Replay through the relay to the transport."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation and how it stands.

    `target` is a consumer, `@transport`, or `@owner` (each letter to whom it belongs). `is_driven` says whether a
    process is at work on it.
    """

    id: UUID
    kind: str
    status: str
    requested_by: str
    reason: str
    target: str
    selection: Selection
    detail: Mapping[str, Any]
    per_second: float | None
    total: int
    done: int
    skipped: int
    failed: int
    created_at: datetime
    finished_at: datetime | None
    is_driven: bool

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will happen."""
        return self.finished_at is not None

    @property
    def is_whole(self) -> bool:
        """Whether it came to its end and nothing failed."""
        return self.status == "done" and self.failed == 0


@dataclass(frozen=True, slots=True)
class ItemProblem:
    """An event of an operation that failed or was skipped, and why."""

    event_id: UUID
    consumer: str | None
    state: str
    note: str


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """One letter that an action was for: dealt with, or left alone for a reason."""

    event_id: UUID
    consumer: str
    position: int | None
    note: str | None = None


async def record(
    session: RepairSession,
    kind: str,
    target: str,
    selection: Selection,
    *,
    by: str,
    reason: str,
    detail: Mapping[str, Any] | None = None,
    per_second: float | None = None,
    status: str = "done",
) -> UUID:
    """Write an operation down; returns its id."""
    operation_id = uuid7()
    parameters = {
        "id": operation_id,
        "kind": kind,
        "status": status,
        "requested_by": by,
        "reason": reason,
        "target": target,
        "selection": Jsonb(selection.as_json()),
        "detail": Jsonb(dict(detail or {})),
        "per_second": per_second,
    }
    await session.rows("record_operation", parameters)
    return operation_id


async def record_dealt(session: RepairSession, operation_id: UUID, dealt: Sequence[ItemOutcome]) -> None:
    """Which letters it was."""
    parameters = {
        "id": operation_id,
        "ids": [each.event_id for each in dealt],
        "consumers": [each.consumer for each in dealt],
        "positions": [each.position for each in dealt],
        "states": ["done" if each.note is None else "skipped" for each in dealt],
        "notes": [each.note for each in dealt],
    }
    await session.rows("record_items", parameters)


async def find_operations(session: RepairSession, kinds: Sequence[str] | None, limit: int) -> list[Operation]:
    """Operations, newest first."""
    rows = await session.rows("operations", {"id": None, "kinds": list(kinds) if kinds else None, "limit": limit})
    return [_operation(row) for row in rows]


async def find_operation(session: RepairSession, operation_id: UUID) -> Operation:
    """One operation; RepairError when there is none."""
    row = await session.row("operations", {"id": operation_id, "kinds": None, "limit": 1})
    if row is None:
        raise RepairError(
            f"there is no operation {operation_id}: `aftercommit replay list --all` shows those there are"
        )
    return _operation(row)


async def problems(session: RepairSession, operation_id: UUID, limit: int) -> list[ItemProblem]:
    """Events of an operation that did not go through, first to last."""
    rows = await session.rows("failed_items", {"id": operation_id, "limit": limit})
    return [ItemProblem(*row) for row in rows]


async def who_is_missing(session: RepairSession, operation_id: UUID, state: str) -> list[str]:
    """In words: without whom the items of an operation that are in this state do not get on."""
    found = []
    for name, paused in await session.rows("who_is_missing", {"id": operation_id, "state": state}):
        if name is None:
            found.append("no relay is alive: start `aftercommit relay`")
        elif paused is None:
            found.append(f"consumer {name!r} has no checkpoint: if still wanted, start `aftercommit worker {name}`")
        elif paused:
            found.append(f"consumer {name!r} is paused: `aftercommit consumers resume {name}`")
        else:
            found.append(f"nobody works for consumer {name!r}: start `aftercommit worker {name}`")
    for aggregate_type, aggregate_id in await session.rows("held_up", {"id": operation_id}):
        found.append(
            f"{aggregate_type} {aggregate_id} has a failed delivery, behind which others wait if the outbox is strict: "
            f"`aftercommit dead list --aggregate {aggregate_id}`"
        )
    return found


def _operation(row: Sequence[Any]) -> Operation:
    known = list(row)
    known[6] = Selection.from_json(known[6])
    return Operation(*known)
