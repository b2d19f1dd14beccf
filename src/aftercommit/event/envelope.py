"""The envelope: what is known about every event whatever its type, as a draft, as stored and as read."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

PayloadT = TypeVar("PayloadT")


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An event about to be published; what is None in its envelope is filled in at publish."""

    type_name: str
    payload: Any
    event_id: UUID | None = None
    aggregate_id: str | None = None
    occurred_at: datetime | None = None
    correlation_id: str | None = None
    causation_id: UUID | None = None
    scope: dict[str, Any] = {}
    audience: Iterable[str] | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """An event as it is stored: envelope fields and the payload still as JSON bytes.

    The fields stand in the order of the columns of `read_log`: records are made by the thousand.
    """

    event_id: UUID
    event_type: str
    schema_version: int
    aggregate_type: str
    aggregate_id: str
    occurred_at: datetime
    correlation_id: str
    causation_id: UUID | None
    payload: bytes
    created_at: datetime
    seq: int
    position: int | None = None
    scope: dict[str, Any] = {}
    lane: int = 0
    retry_count: int = 0
    ts: datetime | None = None
    # Whether a relay delivers it for another time: it has failed before, or an operator has sent it again.
    again: bool = False
    # Who hears of it, where the outbox declares an audience.
    audience: tuple[str, ...] = ()

    @property
    def aggregate(self) -> tuple[str, str]:
        """What the order of events is kept for."""
        return (self.aggregate_type, self.aggregate_id)


class Event(msgspec.Struct, Generic[PayloadT], frozen=True, gc=False):
    """An event as a handler gets it: the payload typed and lifted to the version this code knows."""

    event_id: UUID
    type: str
    schema_version: int
    aggregate_type: str
    aggregate_id: str
    occurred_at: datetime
    correlation_id: str
    causation_id: UUID | None
    scope: dict[str, Any]
    payload: PayloadT
    position: int | None
    attempt: int
    audience: tuple[str, ...] = ()


def envelope_json(record: Record) -> bytes:
    """The whole event as one JSON object: the envelope's names, the scope's beside them, `payload` inside."""
    envelope: dict[str, Any] = {
        "event_id": record.event_id,
        "event_type": record.event_type,
        "occurred_at": rfc3339(record.occurred_at),
        "correlation_id": record.correlation_id,
        "causation_id": record.causation_id,
        "aggregate_type": record.aggregate_type,
        "aggregate_id": record.aggregate_id,
        **record.scope,
        "schema_version": record.schema_version,
        "payload": msgspec.Raw(record.payload),
    }
    if record.audience:
        envelope["audience"] = record.audience
    return msgspec.json.encode(envelope)


def rfc3339(moment: datetime) -> str:
    """RFC 3339 in UTC with a Z, microseconds kept."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
