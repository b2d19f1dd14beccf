"""The envelope, which events of all types have: as a draft, as stored, and as a handler reads it."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

PayloadT = TypeVar("PayloadT")


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An event to publish; publish() fills in envelope fields that are None."""

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
    """A stored event: envelope fields, and the payload as JSON bytes.

    The fields have the order of the columns of `read_log`, which makes records cheap to build.
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
    # Whether this delivery is a repetition: an attempt has failed before, or an operator has replayed it.
    again: bool = False
    # The readers who receive it, if the outbox declares an audience.
    audience: tuple[str, ...] = ()

    @property
    def aggregate(self) -> tuple[str, str]:
        """Type and id of the aggregate, within which events keep their order."""
        return (self.aggregate_type, self.aggregate_id)


class Event(msgspec.Struct, Generic[PayloadT], frozen=True, gc=False):
    """An event as a handler gets it, with a typed payload in the version that this code knows."""

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
    """The whole event as one JSON object: envelope fields, scope fields and `payload`."""
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
    """A time in RFC 3339, in UTC with a Z, with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
