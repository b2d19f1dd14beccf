"""Builds the statements of a publish. Pure: touches no connection, checks all contracts before SQL exists."""

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from psycopg import sql

from aftercommit.clock import utc_now
from aftercommit.errors import ContractViolation, IdempotencyConflict, InvalidEnvelope, PayloadTooLarge, ScopeViolation
from aftercommit.event.correlation import checked_correlation, current_causation, current_correlation
from aftercommit.event.definition import NO_AGGREGATE, EventType
from aftercommit.event.envelope import Draft
from aftercommit.event.identity import uuid7, uuid7s
from aftercommit.event.json_rules import is_storable
from aftercommit.event.registry import Registry
from aftercommit.postgres.arrays import uuid_array
from aftercommit.postgres.shape import SCOPE_TYPES, Shape
from aftercommit.postgres.statements import Statements

Style = Literal["psycopg", "asyncpg", "text"]
EventRows = Sequence[tuple[Any, ...]]
Question = tuple[str, Sequence[Any]]
Script = Generator[Question, Sequence[Sequence[Any]], "Receipt"]

MAX_AGGREGATE_ID = 255
MAX_KEY = 255
EARLIEST = datetime(2, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
MAX_SCOPE = 255

_COLUMNS = (
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
_ID, _CORRELATION, _CAUSATION, _PAYLOAD = 0, 6, 7, 8
_EACH_ITS_OWN = frozenset({"id", "causation_id", "payload"})


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a publish wrote: ids in the order of the events; `duplicate` when the key was known already."""

    event_ids: tuple[UUID, ...]
    duplicate: bool = False

    @property
    def event_id(self) -> UUID:
        """The id of the only event."""
        if len(self.event_ids) != 1:
            raise ValueError(f"{len(self.event_ids)} events were published: use event_ids")
        return self.event_ids[0]


class Inserter:
    """Makes rows of events and statements of rows, for one outbox."""

    def __init__(self, shape: Shape, registry: Registry, max_payload_bytes: int) -> None:
        """Statements are rendered on first use, once per driver style."""
        self._shape = shape
        self._registry = registry
        self._max_payload_bytes = max_payload_bytes
        self._statements = Statements(shape)
        self._cache: dict[tuple[str, Style], str] = {}
        self._types = [*_COLUMNS, *((name, _array_type(kind)) for name, kind in shape.scope.items())]

    def rows(self, events: Sequence[Any], scope: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """A row per event, all contracts checked; in a list, a violation names the event's index."""
        shared = _Shared(utc_now(), current_correlation(), current_causation(), scope, len(events) == 1)
        if shared.alone:
            return [self._row(events[0], uuid7(), shared)]
        ids = uuid7s(len(events))
        rows: list[tuple[Any, ...]] = []
        for event, event_id in zip(events, ids, strict=True):
            try:
                rows.append(self._row(event, event_id, shared))
            except ContractViolation as problem:
                raise _at(len(rows), len(events), problem) from problem.__cause__
        if any(row[_ID] is not event_id for row, event_id in zip(rows, ids, strict=True)):
            _refuse_twice_the_same(rows)
        return rows

    def statement(self, rows: EventRows, style: Style) -> Question:
        """The one statement of a publish without a key, and its parameters."""
        if len(rows) == 1:
            return self._statement("publish_one", style), _adapted(rows[0], style)
        return self._statement("publish_many", style), _arrays(rows, style)

    def script(self, rows: EventRows, style: Style, key: str) -> Script:
        """The statements of a publish under a key, as a conversation: yields SQL and parameters, is sent rows."""
        ids = tuple(row[0] for row in rows)
        scope, fingerprint = self._scope_of(rows), _fingerprint(rows)
        parameters = [*_adapted([key, scope, fingerprint, _ids(ids, style)], style), *_arrays(rows, style)]
        while True:
            answer = yield self._statement("publish_once", style), parameters
            if answer[0][0] == 1:
                return Receipt(ids)
            found = yield self._statement("find_key", style), [key, scope]
            # A key that was removed between the two statements is free again.
            if found:
                if found[0][1] != fingerprint:
                    raise IdempotencyConflict(
                        f"idempotency key {key!r} was used for other events ({found[0][0]}): a key stands for one "
                        "publish and what it said; choose another key"
                    )
                return Receipt(tuple(UUID(str(event_id)) for event_id in _listed(found[0][0])), duplicate=True)

    def _scope_of(self, rows: EventRows) -> str:
        """The scope a key is valid in, as text: no tenant's key may touch another's."""
        scopes = {tuple(map(str, row[len(_COLUMNS) :])) for row in rows}
        if len(scopes) > 1:
            raise InvalidEnvelope(
                "an idempotency key is valid in one scope: publish events of each scope by themselves"
            )
        return json.dumps(dict(zip(self._shape.scope, scopes.pop(), strict=True)), sort_keys=True)

    def _row(self, event: Any, new_id: UUID, shared: "_Shared") -> tuple[Any, ...]:
        event_type = self._registry.of_payload(event)
        if event_type is None:
            return self._drafted_row(event, new_id, shared)
        # The short way of a payload that says nothing about its envelope.
        if shared.scope_values is None:
            shared.scope_values = self._scope_values(shared.scope)
        return (
            new_id,
            event_type.aggregate or NO_AGGREGATE,
            _aggregate_id(event_type, event_type.aggregate_id_of(event), new_id),
            event_type.name,
            event_type.version,
            shared.now,
            shared.correlation or (str(new_id) if shared.alone else None),
            shared.causation,
            self._payload(event_type, event),
            *shared.scope_values,
        )

    def _drafted_row(self, event: Any, new_id: UUID, shared: "_Shared") -> tuple[Any, ...]:
        event_type, draft = self._registry.draft(event)
        payload = self._payload(event_type, draft.payload)
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
            _correlation(draft, event_id, shared),
            shared.causation if draft.causation_id is None else _identifier("causation_id", draft.causation_id),
            payload,
            *self._scope(draft, shared),
        )

    def _payload(self, event_type: EventType, payload: Any) -> str:
        data = event_type.encode(payload)
        if len(data) > self._max_payload_bytes:
            raise PayloadTooLarge(
                f"{event_type.name}: the payload is {len(data):,} bytes, the limit is "
                f"{self._max_payload_bytes:,}: store the large part elsewhere and publish a reference, "
                "or raise Outbox(max_payload_bytes=…)"
            )
        return data.decode()

    def _scope(self, draft: Draft, shared: "_Shared") -> Sequence[Any]:
        if draft.scope:
            return self._scope_values({**shared.scope, **draft.scope})
        if shared.scope_values is None:
            shared.scope_values = self._scope_values(shared.scope)
        return shared.scope_values

    def _scope_values(self, given: Mapping[str, Any]) -> list[Any]:
        declared = self._shape.scope
        if not given.keys() <= declared.keys():
            name = next(name for name in given if name not in declared)
            raise ScopeViolation(f"{name!r} is not a scope of this outbox: declared are {list(declared) or 'none'}")
        return [_scope_value(name, kind, given.get(name)) for name, kind in declared.items()]

    def _statement(self, kind: str, style: Style) -> str:
        cached = self._cache.get((kind, style))
        if cached is None:
            cached = self._cache[kind, style] = self._rendered(kind, style)
        return cached

    def _rendered(self, kind: str, style: Style) -> str:
        channel = sql.Literal(self._shape.publish_channel)
        if kind == "find_key":
            key, scope_text = _placeholder(1, "varchar", style), _placeholder(2, "text", style)
            return self._statements.render(kind, key=key, scope_text=scope_text)
        if kind == "publish_one":
            values = sql.SQL(", ").join(_placeholder(index, of, style) for index, (_, of) in enumerate(self._types, 1))
            return self._statements.render(kind, values=values, names=self._names(), channel=channel)
        parts = {"columns": self._columns(), "events": self._events(5 if kind == "publish_once" else 1, style)}
        if kind == "publish_many":
            return self._statements.render(kind, channel=channel, **parts)
        return self._statements.render(
            kind,
            channel=channel,
            **parts,
            key=_placeholder(1, "varchar", style),
            scope_text=_placeholder(2, "text", style),
            fingerprint=_placeholder(3, "text", style),
            ids=_placeholder(4, "uuid", style, "[]"),
        )

    def _events(self, first: int, style: Style) -> sql.Composable:
        """The arrays, and a row for each of their places; where an array is shorter than the ids there is null."""
        given = sql.SQL(", ").join(
            sql.SQL("{} as {}").format(_placeholder(number, of, style, "[]"), sql.Identifier(name))
            for number, (name, of) in enumerate(self._types, first)
        )
        arrays = sql.SQL(", ").join(sql.Identifier("given", name) for name, _ in self._types)
        return sql.SQL("(select {given}) given, unnest({arrays}) as event ({names})").format(
            given=given, arrays=arrays, names=self._names()
        )

    def _names(self) -> sql.Composable:
        return sql.SQL(", ").join(sql.Identifier(name) for name, _ in self._types)

    def _columns(self) -> sql.Composable:
        """Each event's own value, or the one that all have."""
        return sql.SQL(", ").join(_own_or_shared(name) for name, _ in self._types)


class _Shared(msgspec.Struct):
    """What all events of one publish have in common unless a draft says otherwise."""

    now: datetime
    correlation: str | None
    causation: UUID | None
    scope: Mapping[str, Any]
    alone: bool
    scope_values: Sequence[Any] | None = None


def _own_or_shared(name: str) -> sql.Composable:
    own = sql.Identifier("event", name)
    if name in _EACH_ITS_OWN:
        return own
    if name == "correlation_id":
        return sql.SQL("coalesce({own}, given.correlation_id[1], event.id::text)").format(own=own)
    return sql.SQL("coalesce({own}, {shared}[1])").format(own=own, shared=sql.Identifier("given", name))


def _fingerprint(rows: EventRows) -> str:
    said = json.dumps([[row[1], row[2] if row[1] != NO_AGGREGATE else "", row[3], row[4], row[8]] for row in rows])
    return hashlib.sha256(said.encode()).hexdigest()


def checked_key(key: str) -> str:
    """The idempotency key itself, if it can be stored."""
    if not is_storable(key, MAX_KEY):
        raise InvalidEnvelope(
            f"idempotency key {key!r:.80} is not usable: 1 to {MAX_KEY} characters, no NUL or lone surrogate"
        )
    return str.__str__(key)


def _array_type(kind: type[Any]) -> str:
    return SCOPE_TYPES[kind].partition("(")[0]


def _placeholder(number: int, kind: str, style: Style, array: str = "") -> sql.SQL:
    if style == "asyncpg":
        # As text: applications like to install a json codec of their own, which would encode it again.
        first_cast = f"::text{array}" if kind == "json" else ""
        mark = f"${number}{first_cast}"
    else:
        # Arrays go to psycopg in binary: in text form the same publish of many events is six times slower. Ids are
        # the exception: they are text already.
        mark = "%b" if style == "psycopg" and array and kind != "uuid" else "%s"
    return sql.SQL(f"{mark}::{kind}{array}")


def _arrays(rows: EventRows, style: Style) -> Sequence[Any]:
    """An array per column. Making an array costs more than making the row, so what can be short is short."""
    columns = list(zip(*rows, strict=True))
    ids, payloads = columns[_ID], list(columns[_PAYLOAD])
    special = {
        _ID: _ids(ids, style),
        _CORRELATION: _correlations(columns[_CORRELATION], ids),
        _CAUSATION: [] if not any(columns[_CAUSATION]) else list(columns[_CAUSATION]),
        _PAYLOAD: payloads,
    }
    arrays = [special[place] if place in special else _shortest(column) for place, column in enumerate(columns)]
    return _adapted(arrays, style)


def _shortest(column: Sequence[Any]) -> list[Any]:
    return [column[0]] if len(set(column)) == 1 else list(column)


def _ids(ids: Sequence[UUID], style: Style) -> Any:
    return list(ids) if style == "asyncpg" else uuid_array(ids)


def _correlations(column: Sequence[str | None], ids: Sequence[UUID]) -> list[Any]:
    """None where an event begins a story of its own; if all of them do, the database writes that down."""
    if not any(column):
        return []
    return _shortest([own or str(event_id) for own, event_id in zip(column, ids, strict=True)])


def _adapted(values: Sequence[Any], style: Style) -> Sequence[Any]:
    return values if style != "text" else [_as_text(value) for value in values]


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    # A number too: written into the statement, the cast binds tighter than its minus, and the lowest one breaks.
    return str(value) if isinstance(value, UUID | int) else value


def _listed(value: Any) -> Sequence[Any]:
    # Some drivers hand an array of a type they do not know back as its text.
    return value.strip("{}").split(",") if isinstance(value, str) else list(value)


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
        if row[_ID] in seen:
            twice = InvalidEnvelope(f"event_id {row[_ID]} is given to two events: leave it out, or choose another")
            raise _at(index, len(rows), twice)
        seen.add(row[_ID])


def _aggregate_id(event_type: EventType, chosen: Any, event_id: UUID) -> str:
    if chosen is None:
        if event_type.aggregate is not None:
            raise InvalidEnvelope(
                f"{event_type.name} belongs to an aggregate {event_type.aggregate!r} but has no id for it: "
                "declare key=… or publish draft(…, aggregate_id=…)"
            )
        return str(event_id)
    if not is_storable(chosen, MAX_AGGREGATE_ID):
        raise InvalidEnvelope(
            f"aggregate id {chosen!r:.80} of {event_type.name} is not usable: a string of 1 to "
            f"{MAX_AGGREGATE_ID} characters, no NUL or lone surrogate"
        )
    return str.__str__(chosen)


def _occurred_at(given: datetime) -> datetime:
    if not isinstance(given, datetime) or given.tzinfo is None or given.utcoffset() is None:
        raise InvalidEnvelope(f"occurred_at {given!r} has no time zone: give an aware datetime, e.g. datetime.now(UTC)")
    if not EARLIEST <= given < LATEST:
        # Not every language and time zone can read such a moment back, and one event must not stop its readers.
        raise InvalidEnvelope(f"occurred_at {given.isoformat()} is out of range: from year 2 to year 9998, in UTC")
    # In a zone of its own the hour that comes twice in autumn would be one: Python compares what the clock shows.
    return given.astimezone(UTC)


def _correlation(draft: Draft, event_id: UUID, shared: _Shared) -> str | None:
    if draft.correlation_id is not None:
        return checked_correlation(draft.correlation_id)
    return shared.correlation or (str(event_id) if shared.alone else None)


def _scope_value(name: str, kind: type[Any], value: Any) -> Any:
    if value is None or value == "":
        raise ScopeViolation(f"scope {name!r} is missing: publish(…, {name}=…) is required on this outbox")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ScopeViolation(f"scope {name!r} must be {kind.__name__}, got {value!r:.80} ({type(value).__name__})")
    if isinstance(value, str):
        if not is_storable(value, MAX_SCOPE):
            raise ScopeViolation(
                f"scope {name!r} is {value!r:.80}: at most {MAX_SCOPE} characters, no NUL or lone surrogate"
            )
        # A subclass (an enumeration, markup) may look different to a driver than the text that it is.
        return str.__str__(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ScopeViolation(f"scope {name!r} is {hex(value):.40}: it must fit a signed 64-bit integer")
        return int(value)
    return value
