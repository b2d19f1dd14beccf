"""The record of operators' actions: every retry, edit, discard, replay and seek is an operation with its events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    """One operation and its state.

    `target` is a consumer, `@transport`, or `@owner` (each letter goes to its own consumer). `is_driven` means that a
    process is working on it.
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
        """Whether it has ended."""
        return self.finished_at is not None

    @property
    def is_whole(self) -> bool:
        """Whether it has ended and nothing failed."""
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
    """What an action did to one letter: it changed the letter, or left it alone for the reason in `note`."""

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
    """Record an operation and return its id."""
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
    """Record the letters of an operation."""
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
    """One operation; RepairError if there is none."""
    row = await session.row("operations", {"id": operation_id, "kinds": None, "limit": 1})
    if row is None:
        raise RepairError(f"there is no operation {operation_id}: see `aftercommit replay list --all`")
    return _operation(row)


async def problems(session: RepairSession, operation_id: UUID, limit: int) -> list[ItemProblem]:
    """The events of an operation that failed or were skipped, in order."""
    rows = await session.rows("failed_items", {"id": operation_id, "limit": limit})
    return [ItemProblem(*row) for row in rows]


async def who_is_missing(session: RepairSession, operation_id: UUID, state: str) -> list[str]:
    """Messages about the workers and relays that the items of an operation in this state wait for."""
    found = []
    for name, paused in await session.rows("who_is_missing", {"id": operation_id, "state": state}):
        if name is None:
            found.append("no relay is alive: start `aftercommit relay`")
        elif paused is None:
            found.append(f"consumer {name!r} has no checkpoint: if you need it, start `aftercommit worker {name}`")
        elif paused:
            found.append(f"consumer {name!r} is paused: run `aftercommit consumers resume {name}`")
        else:
            found.append(f"consumer {name!r} has no worker: start `aftercommit worker {name}`")
    for aggregate_type, aggregate_id in await session.rows("held_up", {"id": operation_id}):
        found.append(
            f"{aggregate_type} {aggregate_id} has a failed delivery. In a strict outbox, other events wait behind it: "
            f"see `aftercommit dead list --aggregate {aggregate_id}`"
        )
    return found


def _operation(row: Sequence[Any]) -> Operation:
    found = Operation(*row)
    return replace(found, selection=Selection.from_json(found.selection))
