"""Published events, from outbox and log: committed ones, or those of an open transaction."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal
from uuid import UUID

from aftercommit.errors import AftercommitError
from aftercommit.event.envelope import Event, Record
from aftercommit.outbox import Outbox
from aftercommit.postgres.shape import AUDIENCE

Status = Literal["pending", "published", "failed"]


@dataclass(frozen=True)
class Published:
    """An event in the database. `data` is its payload as plain JSON, `payload` as your type."""

    record: Record
    status: Status
    event: Event[Any] | None

    @property
    def event_id(self) -> UUID:
        """The event id."""
        return self.record.event_id

    @property
    def type(self) -> str:
        """The name of the event type."""
        return self.record.event_type

    @property
    def payload(self) -> Any:
        """The payload as the declared class; plain JSON if this code cannot read it."""
        return self.event.payload if self.event is not None else self.data

    @cached_property
    def data(self) -> dict[str, Any]:
        """The payload as plain JSON."""
        data: dict[str, Any] = json.loads(self.record.payload)
        return data

    @property
    def aggregate_id(self) -> str:
        """The aggregate id."""
        return self.record.aggregate_id

    @property
    def scope(self) -> dict[str, Any]:
        """The scope values."""
        return self.record.scope

    @property
    def audience(self) -> tuple[str, ...]:
        """The readers who receive it."""
        return self.record.audience

    @property
    def correlation_id(self) -> str:
        """The correlation id."""
        return self.record.correlation_id

    @property
    def causation_id(self) -> UUID | None:
        """The id of the event that caused it."""
        return self.record.causation_id

    @property
    def position(self) -> int | None:
        """The position in the log; None while it is in the outbox."""
        return self.record.position


def read_published(rows: Sequence[Sequence[Any]], outbox: Outbox) -> list[Published]:
    """Rows of `kit_published_events`, from any driver."""
    return [_published(json.loads(envelope), payload, outbox) for envelope, payload in rows]


def _published(row: dict[str, Any], payload: str, outbox: Outbox) -> Published:
    record = Record(
        event_id=UUID(row["event_id"]),
        event_type=row["event_type"],
        schema_version=row["schema_version"],
        aggregate_type=row["aggregate_type"],
        aggregate_id=row["aggregate_id"],
        occurred_at=datetime.fromisoformat(row["occurred_at"]),
        correlation_id=row["correlation_id"],
        causation_id=UUID(row["causation_id"]) if row["causation_id"] else None,
        scope={name: kind(row[name]) for name, kind in outbox.shape.scope.items()},
        payload=payload.encode(),
        created_at=datetime.fromisoformat(row["created_at"]),
        seq=row["seq"],
        lane=row["lane"],
        retry_count=row["retry_count"],
        position=row["position"],
        audience=tuple(row.get(AUDIENCE, ())),
    )
    return Published(record, row["status"], _typed(record, outbox))


def _typed(record: Record, outbox: Outbox) -> Event[Any] | None:
    try:
        return outbox.registry.read(record)
    except AftercommitError:
        # Other code has published it: show it as plain JSON.
        return None
