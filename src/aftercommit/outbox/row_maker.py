"""Turns events into rows: validates them, and fills in the rest of the envelope. No IO and no SQL."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from aftercommit.clock import utc_now
from aftercommit.errors import AudienceViolation, ContractViolation, InvalidEnvelope, PayloadTooLarge, ScopeViolation
from aftercommit.event.correlation import checked_correlation, current_story
from aftercommit.event.definition import NO_AGGREGATE, EventType
from aftercommit.event.envelope import Draft
from aftercommit.event.identity import uuid7, uuid7s
from aftercommit.event.json_rules import is_storable
from aftercommit.event.registry import Registry
from aftercommit.postgres.shape import MAX_AUDIENCE, MAX_READER, Shape

EventRow = tuple[Any, ...]
EventRows = Sequence[EventRow]
Readers = tuple[str, ...]

MAX_AGGREGATE_ID = 255
MAX_SCOPE = 255
EARLIEST = datetime(2, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)

# The columns of every outbox, in the order of a row. The declared columns follow: scope, then audience.
COLUMNS = (
    ("id", "uuid"),
    ("aggregate_type", "varchar"),
    ("aggregate_id", "varchar"),
    ("event_type", "varchar"),
    ("schema_version", "smallint"),
    ("occurred_at", "timestamptz"),
    ("correlation_id", "varchar"),
    ("causation_id", "uuid"),
    ("payload", "json"),
)
ID, AGGREGATE_TYPE, AGGREGATE_ID, TYPE, VERSION, OCCURRED, CORRELATION, CAUSATION, PAYLOAD = range(len(COLUMNS))


class RowMaker:
    """Makes the rows of one outbox."""

    def __init__(self, registry: Registry, shape: Shape, max_payload_bytes: int) -> None:
        self._registry = registry
        self._declared_scope = tuple(shape.scope.items())
        self._has_audience = shape.audience
        self._max_payload_bytes = max_payload_bytes
        self._plain_classes: dict[type[Any], _PlainClass] = {}

    def rows(
        self, events: Sequence[Any], scope: Mapping[str, Any], audience: Iterable[str] | None = None
    ) -> list[EventRow]:
        """One validated row per event; an error in a list names the event's index.

        Without a correlation id in a row, the event's own id is its correlation id.
        """
        shared = _Shared(utc_now(), *current_story(), scope)
        if audience is not None:
            shared.audience = self._audience(audience)
        if len(events) == 1:
            return [self._row(events[0], uuid7(), shared)]
        ids = uuid7s(len(events))
        rows: list[EventRow] = []
        try:
            for event, event_id in zip(events, ids, strict=True):
                rows.append(self._row(event, event_id, shared))
        except ContractViolation as problem:
            raise _at(len(rows), len(events), problem) from problem.__cause__
        if [row[ID] for row in rows] != ids:
            _refuse_twice_the_same(rows)
        return rows

    def _row(self, event: Any, new_id: UUID, shared: "_Shared") -> EventRow:
        plain = self._plain_classes.get(type(event)) or self._plain_class(event)
        if plain is None:
            return self._drafted_row(event, new_id, shared)
        # The fast path of a plain payload object: no call that can be avoided.
        data = plain.encode(event)
        if len(data) > self._max_payload_bytes:
            raise self._too_large(plain.event_type, data)
        if shared.declared is None:
            shared.declared = self._declared(shared.scope, shared.audience)
        aggregate_id = None if plain.key_field is None else getattr(event, plain.key_field, None)
        if type(aggregate_id) is not str or not is_storable(aggregate_id, MAX_AGGREGATE_ID):
            aggregate_id = _aggregate_id(plain.event_type, plain.event_type.aggregate_id_of(event), new_id)
        return (
            new_id,
            plain.aggregate_type,
            aggregate_id,
            plain.name,
            plain.version,
            shared.now,
            shared.correlation,
            shared.causation,
            data.decode(),
            *shared.declared,
        )

    def _plain_class(self, event: Any) -> "_PlainClass | None":
        """What the events of this class have in common; None for a draft, a dict or an undeclared class."""
        event_type = self._registry.of_payload(event)
        if event_type is None:
            return None
        found = self._plain_classes[type(event)] = _PlainClass(
            event_type,
            event_type.encode,
            _key_field(event_type),
            event_type.aggregate or NO_AGGREGATE,
            event_type.name,
            event_type.version,
        )
        return found

    def _drafted_row(self, event: Any, new_id: UUID, shared: "_Shared") -> EventRow:
        event_type, draft = self._registry.draft(event)
        data = event_type.encode(draft.payload)
        if len(data) > self._max_payload_bytes:
            raise self._too_large(event_type, data)
        event_id = new_id if draft.event_id is None else _identifier("event_id", draft.event_id)
        aggregate_id = draft.aggregate_id
        if aggregate_id is None:
            aggregate_id = event_type.aggregate_id_of(draft.payload)
        return (
            event_id,
            event_type.aggregate or NO_AGGREGATE,
            _aggregate_id(event_type, aggregate_id, event_id),
            event_type.name,
            event_type.version,
            shared.now if draft.occurred_at is None else _occurred_at(draft.occurred_at),
            shared.correlation if draft.correlation_id is None else checked_correlation(draft.correlation_id),
            shared.causation if draft.causation_id is None else _identifier("causation_id", draft.causation_id),
            data.decode(),
            *self._declared_of(draft, shared),
        )

    def _too_large(self, event_type: EventType, data: bytes) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"{event_type.name}: the payload is {len(data):,} bytes, the limit is "
            f"{self._max_payload_bytes:,}: store the large part elsewhere and publish a reference, "
            "or raise Outbox(max_payload_bytes=…)"
        )

    def _declared_of(self, draft: Draft, shared: "_Shared") -> Sequence[Any]:
        audience = shared.audience if draft.audience is None else self._audience(draft.audience)
        if draft.scope or draft.audience is not None:
            return self._declared({**shared.scope, **draft.scope}, audience)
        if shared.declared is None:
            shared.declared = self._declared(shared.scope, audience)
        return shared.declared

    def _declared(self, scope: Mapping[str, Any], audience: Readers | None) -> list[Any]:
        """The values of the declared columns: scope, then audience."""
        values = self._scope_values(scope)
        if self._has_audience:
            if audience is None:
                raise AudienceViolation(
                    "the audience of this event is missing: this outbox requires publish(…, audience=[…]); an empty "
                    "list means no readers"
                )
            values.append(audience)
        return values

    def _audience(self, given: Iterable[str]) -> Readers:
        """The readers, without duplicates."""
        if not self._has_audience:
            raise AudienceViolation(
                f"audience={given!r:.80} was given, but this outbox declares none: declare Outbox(…, audience=True), "
                "and migrate"
            )
        return _readers(given)

    def _scope_values(self, given: Mapping[str, Any]) -> list[Any]:
        if len(given) != len(self._declared_scope):
            self._refuse_undeclared(given)
        values = []
        for name, kind in self._declared_scope:
            value = given.get(name)
            if value is None:
                # A misspelt name explains more than a missing value.
                self._refuse_undeclared(given)
            if not (type(value) is kind is str and is_storable(value, MAX_SCOPE)):
                value = _scope_value(name, kind, value)
            values.append(value)
        return values

    def _refuse_undeclared(self, given: Mapping[str, Any]) -> None:
        declared = [name for name, _ in self._declared_scope]
        for name in given:
            if name not in declared:
                raise ScopeViolation(f"{name!r} is not a scope of this outbox: declared are {declared or 'none'}")


class _Shared(msgspec.Struct):
    """Values that all events of one publish share, unless a draft has its own."""

    now: datetime
    correlation: str | None
    causation: UUID | None
    scope: Mapping[str, Any]
    audience: Readers | None = None
    declared: Sequence[Any] | None = None


class _PlainClass(msgspec.Struct):
    """What the events of one payload class have in common."""

    event_type: EventType
    encode: Callable[[Any], bytes]
    key_field: str | None
    aggregate_type: str
    name: str
    version: int


def _key_field(event_type: EventType) -> str | None:
    """The field with the aggregate id; None if only `aggregate_id_of` finds it."""
    is_mapping = event_type.payload_class is not None and issubclass(event_type.payload_class, Mapping)
    return event_type.key if isinstance(event_type.key, str) and not is_mapping else None


def _readers(given: Iterable[str]) -> Readers:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise AudienceViolation(
            f"audience={given!r:.80} is {type(given).__name__}: give a list of readers, e.g. ['user:17', 'user:23']"
        )
    # A driver may encode a subclass of str (an enum, say) in another way.
    readers = tuple(dict.fromkeys(str.__str__(_reader(each)) for each in given))
    if len(readers) > MAX_AUDIENCE:
        raise AudienceViolation(
            f"the audience has {len(readers):,} readers; the limit is {MAX_AUDIENCE:,}: publish to one reader that "
            "stands for all of them ('team:7'), or give them a common scope"
        )
    return readers


def _reader(given: Any) -> str:
    if not is_storable(given, MAX_READER):
        raise AudienceViolation(
            f"{given!r:.80} ({type(given).__name__}) is not a valid reader: use a string of 1 to {MAX_READER} "
            "characters, no NUL or lone surrogate"
        )
    name: str = given
    return name


def _identifier(name: str, given: Any) -> UUID:
    if isinstance(given, UUID):
        return given
    raise InvalidEnvelope(f"{name} {given!r:.80} is not a uuid.UUID: give UUID(…)")


def _at(index: int, count: int, problem: ContractViolation) -> ContractViolation:
    problem.args = (f"event {index} of {count}: {problem}", *problem.args[1:])
    return problem


def _refuse_twice_the_same(rows: EventRows) -> None:
    seen: set[UUID] = set()
    for index, row in enumerate(rows):
        if row[ID] in seen:
            twice = InvalidEnvelope(f"two events have the event_id {row[ID]}: leave it out, or choose another")
            raise _at(index, len(rows), twice)
        seen.add(row[ID])


def _aggregate_id(event_type: EventType, chosen: Any, event_id: UUID) -> str:
    if chosen is None:
        if event_type.aggregate is not None:
            raise InvalidEnvelope(
                f"{event_type.name} belongs to an aggregate {event_type.aggregate!r} but has no aggregate id: "
                "declare key=… or publish draft(…, aggregate_id=…)"
            )
        return str(event_id)
    if not is_storable(chosen, MAX_AGGREGATE_ID):
        raise InvalidEnvelope(
            f"aggregate id {chosen!r:.80} of {event_type.name} is not valid: use a string of 1 to "
            f"{MAX_AGGREGATE_ID} characters, no NUL or lone surrogate"
        )
    return str.__str__(chosen)


def _occurred_at(given: datetime) -> datetime:
    if not isinstance(given, datetime) or given.tzinfo is None or given.utcoffset() is None:
        raise InvalidEnvelope(f"occurred_at {given!r} has no time zone: give an aware datetime, e.g. datetime.now(UTC)")
    if not EARLIEST <= given < LATEST:
        # Not every language and time zone can read such a time, and one event must not stop its readers.
        raise InvalidEnvelope(f"occurred_at {given.isoformat()} is out of range: use year 2 to year 9998, in UTC")
    # In UTC, because Python compares local times as written, and an hour occurs twice in autumn.
    return given.astimezone(UTC)


def _scope_value(name: str, kind: type[Any], value: Any) -> Any:
    if value is None or value == "":
        raise ScopeViolation(f"missing scope value {name!r}: this outbox requires publish(…, {name}=…)")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ScopeViolation(f"scope {name!r} must be {kind.__name__}, got {value!r:.80} ({type(value).__name__})")
    if isinstance(value, str):
        if not is_storable(value, MAX_SCOPE):
            raise ScopeViolation(
                f"scope {name!r} is {value!r:.80}: use at most {MAX_SCOPE} characters, no NUL or lone surrogate"
            )
        # A driver may encode a subclass of str (an enum, say) in another way.
        return str.__str__(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ScopeViolation(f"scope {name!r} is {hex(value):.40}: it must fit a signed 64-bit integer")
        return int(value)
    return value
