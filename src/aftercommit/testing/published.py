"""What was published, read from outbox and log together: committed events, or those of a transaction still open."""

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
    """An event as the database holds it. `data` is its payload as plain JSON, `payload` as your type."""

    record: Record
    status: Status
    event: Event[Any] | None

    @property
    def event_id(self) -> UUID:
        """Its identity."""
        return self.record.event_id

    @property
    def type(self) -> str:
        """The name of its type."""
        return self.record.event_type

    @property
    def payload(self) -> Any:
        """The payload as the declared class; plain JSON where this code cannot read it."""
        return self.event.payload if self.event is not None else self.data

    @cached_property
    def data(self) -> dict[str, Any]:
        """The payload as plain JSON."""
        data: dict[str, Any] = json.loads(self.record.payload)
        return data

    @property
    def aggregate_id(self) -> str:
        """What it is about."""
        return self.record.aggregate_id

    @property
    def scope(self) -> dict[str, Any]:
        """Whom it belongs to."""
        return self.record.scope

    @property
    def audience(self) -> tuple[str, ...]:
        """Who hears of it."""
        return self.record.audience

    @property
    def correlation_id(self) -> str:
        """The story it belongs to."""
        return self.record.correlation_id

    @property
    def causation_id(self) -> UUID | None:
        """The event that it came from."""
        return self.record.causation_id

    @property
    def position(self) -> int | None:
        """Its place in the log; None while it waits in the outbox."""
        return self.record.position


def read_published(rows: Sequence[Sequence[Any]], outbox: Outbox) -> list[Published]:
    """Rows of `published_events`, from whichever driver."""
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
        # Published by other code than this: it is still shown, as the JSON it is.
        return None
