"""An event type: its stable name, version, aggregate, required fields and payload class.

The database has the name, so you can rename or move the class.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from aftercommit.errors import DeclarationError, InvalidPayload, NewerVersion, UnreadableEvent
from aftercommit.event import json_rules
from aftercommit.event.codec import Codec, DictCodec, codec_for
from aftercommit.event.envelope import Draft, Event, Record

MAX_TYPE_LENGTH = 100
MAX_AGGREGATE_TYPE_LENGTH = 50
NO_AGGREGATE = "event"

Key = str | Callable[[Any], Any]
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")


def checked_name(value: str, what: str, limit: int) -> str:
    """The name, if it has ordinary characters only and fits its column."""
    if not isinstance(value, str) or len(value) > limit or not _NAME.fullmatch(value):
        raise DeclarationError(
            f"{what} {value!r:.120} is not valid: use 1 to {limit} letters, digits and _ . : / -, and begin with a "
            "letter or digit"
        )
    return value


@dataclass(frozen=True, slots=True, eq=False)
class EventType:
    """A declared event type. Call it with the payload's fields to get a draft: `NodeCreated(node_id=…)`."""

    name: str
    version: int
    aggregate: str | None
    key: Key | None
    required: tuple[str, ...]
    payload_class: type[Any] | None
    codec: Codec
    upcasters: dict[int, Upcaster] = field(default_factory=dict)
    oldest_version: int = 1

    @property
    def missing_upcasters(self) -> list[int]:
        """The versions, from `oldest_version` on, that have no upcaster to the next."""
        return [version for version in range(self.oldest_version, self.version) if version not in self.upcasters]

    def __call__(self, /, **fields: Any) -> Draft:
        """A draft with a payload made of these fields."""
        return self.draft(self.codec.build(fields))

    def draft(
        self,
        payload: Any,
        *,
        event_id: UUID | None = None,
        aggregate_id: str | None = None,
        occurred_at: datetime | None = None,
        correlation_id: str | None = None,
        causation_id: UUID | None = None,
        scope: Mapping[str, Any] | None = None,
        audience: Iterable[str] | None = None,
    ) -> Draft:
        """A draft with some envelope fields set explicitly."""
        return Draft(
            type_name=self.name,
            payload=payload,
            event_id=event_id,
            aggregate_id=aggregate_id,
            occurred_at=occurred_at,
            correlation_id=correlation_id,
            causation_id=causation_id,
            scope=dict(scope or {}),
            audience=audience,
        )

    def encode(self, payload: Any) -> bytes:
        """The payload as JSON; InvalidPayload if a required field is missing."""
        for name in self.required:
            if _field(payload, name) is None:
                raise InvalidPayload(
                    f"{self.name} needs the field {name!r}, which is missing or None", field=f"$.{name}"
                )
        try:
            data = self.codec.encode(payload)
        except InvalidPayload as problem:
            raise InvalidPayload(f"{self.name}: {problem}", field=problem.field) from problem
        if not data.startswith(b"{"):
            raise InvalidPayload(f"{self.name}: the payload must be a JSON object, not {data[:40]!r}", field="$")
        return data

    def aggregate_id_of(self, payload: Any) -> str | None:
        """The aggregate id of a payload, by the declared key."""
        if self.key is None:
            return None
        try:
            value = _field(payload, self.key) if isinstance(self.key, str) else self.key(payload)
        except (LookupError, AttributeError, TypeError, ValueError) as problem:
            raise InvalidPayload(f"{self.name} has no aggregate id: key failed with {problem!r}") from problem
        if type(value) is str and value:
            return value
        if isinstance(value, Enum):
            value = value.value
        if not isinstance(value, str | int | UUID) or isinstance(value, bool) or value == "":
            shown = self.key if isinstance(self.key, str) else "the result of key"
            raise InvalidPayload(
                f"{self.name} has no aggregate id: {shown} is {value!r:.80}, it must be a str, int or UUID",
                field=f"$.{self.key}" if isinstance(self.key, str) else None,
            )
        return str.__str__(value) if isinstance(value, str) else str(value)

    def read(self, record: Record, attempt: int = 1) -> Event[Any]:
        """The record as a typed event of this version; upcasters lift an older one."""
        is_current = record.schema_version == self.version
        # Positional arguments are faster, and this runs for every event that is read.
        return Event(
            record.event_id,
            record.event_type,
            self.version,
            record.aggregate_type,
            record.aggregate_id,
            record.occurred_at,
            record.correlation_id,
            record.causation_id,
            record.scope,
            self.codec.decode(record.payload) if is_current else self._lifted_payload(record),
            record.position,
            attempt,
            record.audience,
        )

    def _lifted_payload(self, record: Record) -> Any:
        if record.schema_version > self.version:
            raise NewerVersion(
                f"{self.name} {record.event_id} has schema version {record.schema_version}, this code knows "
                f"{self.version}: deploy newer code, and the event is retried",
                event_type=self.name,
                version=record.schema_version,
                known=self.version,
            )
        lifted = self._lifted(record)
        try:
            return self.codec.decode(json_rules.ENCODER.encode(lifted))
        except (TypeError, ValueError, NotImplementedError) as problem:
            raise UnreadableEvent(
                f"the upcasters of {self.name} returned a payload for {record.event_id} that is not JSON: {problem}"
            ) from problem

    def _lifted(self, record: Record) -> dict[str, Any]:
        payload: dict[str, Any] = DictCodec(None).decode(record.payload)
        for version in range(record.schema_version, self.version):
            upcaster = self.upcasters.get(version)
            if upcaster is None:
                raise UnreadableEvent(
                    f"{self.name} has no upcaster from version {version} to {version + 1}: "
                    f"declare one with @outbox.upcast({self.name!r}, from_version={version})"
                )
            try:
                payload = upcaster(payload)
            except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError) as problem:
                raise UnreadableEvent(
                    f"the upcaster of {self.name} from version {version} failed on {record.event_id}: {problem!r}"
                ) from problem
            if not isinstance(payload, dict):
                raise UnreadableEvent(
                    f"the upcaster of {self.name} from version {version} returned {payload!r:.80}: "
                    "it must return the new payload as a dict"
                )
        return payload


def define(
    name: str,
    payload_class: type[Any] | None,
    *,
    version: int,
    aggregate: str | None,
    key: Key | None,
    required: Sequence[str],
    schema: Mapping[str, Any] | None,
    oldest_version: int = 1,
) -> EventType:
    """Define an event type; DeclarationError if its parts do not fit together."""
    checked_name(name, "event type", MAX_TYPE_LENGTH)
    if aggregate is not None:
        checked_name(aggregate, "aggregate type", MAX_AGGREGATE_TYPE_LENGTH)
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= 32767:
        raise DeclarationError(f"{name}: version {version!r} must be an integer from 1 to 32767")
    if not isinstance(oldest_version, int) or isinstance(oldest_version, bool) or not 1 <= oldest_version <= version:
        raise DeclarationError(f"{name}: oldest_version {oldest_version!r} must be an integer from 1 to {version}")
    if key is not None and aggregate is None:
        raise DeclarationError(f"{name}: key={key!r} names the aggregate's id, but aggregate= is missing: add it")
    if isinstance(required, str):
        raise DeclarationError(f"{name}: required={required!r} is one string: give a list, [{required!r}]")
    codec = codec_for(payload_class, schema)
    named = [*required, *([key] if isinstance(key, str) else [])]
    unknown = [item for item in named if codec.fields is not None and item not in codec.fields]
    if unknown:
        raise DeclarationError(f"{name}: {unknown[0]!r} is not a field of its payload ({sorted(codec.fields or ())})")
    return EventType(
        name, version, aggregate, key, tuple(required), payload_class, codec, oldest_version=oldest_version
    )


def _field(payload: Any, name: str) -> Any:
    is_mapping = type(payload) is dict or isinstance(payload, Mapping)
    value = payload.get(name) if is_mapping else getattr(payload, name, None)
    return None if value is msgspec.UNSET else value
