"""Builds the statements of a publish from its rows. Pure."""

import hashlib
import json
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from psycopg import sql

from aftercommit.errors import IdempotencyConflict, InvalidEnvelope
from aftercommit.event.definition import NO_AGGREGATE
from aftercommit.event.json_rules import is_storable
from aftercommit.event.registry import Registry
from aftercommit.outbox import copy_format
from aftercommit.outbox.row_maker import (
    AGGREGATE_ID,
    AGGREGATE_TYPE,
    CAUSATION,
    COLUMNS,
    CORRELATION,
    ID,
    OCCURRED,
    PAYLOAD,
    TYPE,
    VERSION,
    EventRow,
    EventRows,
    RowMaker,
)
from aftercommit.postgres.arrays import text_array, uuid_array
from aftercommit.postgres.blocks import without_purpose
from aftercommit.postgres.shape import AUDIENCE, SCOPE_TYPES, Shape
from aftercommit.postgres.statements import Statements

# How values are given: `numbered` is psycopg's raw query ($1), `text` puts them into the statement.
Style = Literal["psycopg", "numbered", "asyncpg", "text"]
Question = tuple[str, Sequence[Any]]
Script = Generator[Question, Sequence[Sequence[Any]], "Receipt"]

MAX_KEY = 255
# COPY takes two more round trips than an INSERT, which only many events make up for.
COPY_FROM = 200
# A time since 1970 is sent as seconds, which takes a third of the time of its text. Until 2106 a float is exact to the
# microsecond.
SECONDS_UNTIL = 2**32

_OF_THE_TYPE = frozenset({AGGREGATE_TYPE, TYPE, VERSION})
_EACH_ITS_OWN = frozenset({"id", "causation_id", "payload"})


class Receipt(msgspec.Struct, frozen=True):
    """The result of a publish: event ids in order; `duplicate` if its idempotency key was used before."""

    event_ids: tuple[UUID, ...]
    duplicate: bool = False

    @property
    def event_id(self) -> UUID:
        """The id of the only event."""
        if len(self.event_ids) != 1:
            raise ValueError(f"{len(self.event_ids)} events were published: use event_ids")
        return self.event_ids[0]


class Copy(msgspec.Struct, frozen=True):
    """Rows for COPY: the statement, its parts for drivers that build it themselves, and the data in chunks."""

    statement: str
    schema: str
    columns: Sequence[str]
    chunks: Iterator[bytes]


class Inserter:
    """Turns the events of one outbox into rows, and rows into statements."""

    def __init__(self, shape: Shape, registry: Registry, max_payload_bytes: int) -> None:
        """Statements are rendered on first use, once per driver style."""
        self._shape = shape
        self.schema = shape.schema
        self.rows = RowMaker(registry, shape, max_payload_bytes).rows
        self._statements = Statements(shape)
        self._cache: dict[tuple[str, Style], str] = {}
        self._ones: dict[tuple[Style, str, int, bool], str] = {}
        scope = ((name, SCOPE_TYPES[kind].partition("(")[0]) for name, kind in shape.scope.items())
        self._types = [*COLUMNS, *scope]
        if shape.audience:
            # An array as text, because in an array of arrays all must have the same length.
            self._types.append((AUDIENCE, "text"))

    def statement(self, rows: EventRows, style: Style) -> Question:
        """The statement that publishes many events without an idempotency key, and its parameters."""
        return self._statement("publish_many", style), _arrays(rows, style)

    def first(self, rows: EventRows, style: Style) -> Question:
        """The statement that publishes the first of many events, and returns whether COPY may write the others."""
        return self._statement("publish_first", style), _arrays(rows[:1], style)

    def others(self, rows: EventRows) -> Copy:
        """All events but the first, for COPY."""
        columns = [name for name, _ in self._types]
        return Copy(self._statement("publish_copy", "text"), self._shape.schema, columns, copy_format.chunks(rows[1:]))

    def script(self, rows: EventRows, style: Style, key: str) -> Script:
        """The statements of a publish with an idempotency key: a generator that yields SQL and is sent the rows."""
        ids = tuple(row[0] for row in rows)
        scope, fingerprint = self._scope_of(rows), _fingerprint(rows)
        parameters = [*_adapted([key, scope, fingerprint, _ids(ids, style)], style), *_arrays(rows, style)]
        while True:
            answer = yield self._statement("publish_once", style), parameters
            if answer[0][0] == 1:
                return Receipt(ids)
            found = yield self._statement("find_key", style), [key, scope]
            # If the key was removed between the two statements, it is free again: try once more.
            if found:
                if found[0][1] != fingerprint:
                    raise IdempotencyConflict(
                        f"idempotency key {key!r} was used for other events ({found[0][0]}): use one key for one "
                        "publish, and choose another key for this one"
                    )
                return Receipt(tuple(UUID(str(event_id)) for event_id in _listed(found[0][0])), duplicate=True)

    def _scope_of(self, rows: EventRows) -> str:
        """The scope of a key, as text, so that tenants cannot collide with each other's keys."""
        behind = len(COLUMNS) + len(self._shape.scope)
        scopes = {tuple(map(str, row[len(COLUMNS) : behind])) for row in rows}
        if len(scopes) > 1:
            raise InvalidEnvelope(
                "an idempotency key is valid in one scope: publish the events of each scope separately"
            )
        return json.dumps(dict(zip(self._shape.scope, scopes.pop(), strict=True)), sort_keys=True)

    def one(self, row: EventRow, style: Style) -> Question:
        """The statement that publishes one event. Constants of its type are literals: each parameter costs time."""
        if row[CORRELATION] is None and (style == "text" or row[CAUSATION] is not None):
            row = (*row[:CORRELATION], str(row[ID]), *row[CAUSATION:])
        end = PAYLOAD if row[CAUSATION] is not None else CORRELATION if row[CORRELATION] is None else CAUSATION
        seconds = row[OCCURRED].timestamp()
        in_seconds = style != "text" and 0 <= seconds < SECONDS_UNTIL
        key = (style, row[TYPE], end, in_seconds)
        statement = self._ones.get(key)
        if statement is None:
            statement = self._ones[key] = self._rendered_one(row, style, end, in_seconds)
        given = [row[ID], row[AGGREGATE_ID], *row[OCCURRED:end], *row[PAYLOAD:]]
        if self._shape.audience:
            given[-1] = text_array(given[-1])
        if in_seconds:
            given[2] = seconds
        elif style == "asyncpg":
            given[2] = given[2].isoformat()
        return statement, given if style != "text" else [_as_text(value) for value in given]

    def _rendered_one(self, row: EventRow, style: Style, end: int, in_seconds: bool) -> str:
        names: list[sql.Composable] = []
        values: list[sql.Composable] = []
        given = 0
        for place, (name, kind) in enumerate(self._types):
            if end <= place < PAYLOAD:
                continue
            names.append(sql.Identifier(name))
            if place in _OF_THE_TYPE:
                values.append(sql.SQL("{}::" + kind).format(sql.Literal(row[place])))
            else:
                given += 1
                if in_seconds and place == OCCURRED:
                    values.append(sql.SQL("pg_catalog.to_timestamp({})").format(_placeholder(given, "float8", style)))
                else:
                    values.append(_stored(name, _placeholder(given, kind, style)))
        own_id = end == CORRELATION
        rendered = self._statements.render(
            "publish_one_unprepared" if style == "text" else "publish_one",
            values=sql.SQL(", ").join(values),
            names=sql.SQL(", ").join(names),
            correlation_name=sql.SQL(", correlation_id" if own_id else ""),
            correlation=sql.SQL(", event.id::text" if own_id else ""),
            channel=sql.Literal(self._shape.publish_channel),
            relay_listens=self._relay_listens(),
        )
        # Without comments, which the server would read with every event.
        return without_purpose(rendered)

    def _statement(self, kind: str, style: Style) -> str:
        cached = self._cache.get((kind, style))
        if cached is None:
            cached = self._cache[kind, style] = self._rendered(kind, style)
        return cached

    def _rendered(self, kind: str, style: Style) -> str:
        channel = sql.Literal(self._shape.publish_channel)
        if kind == "publish_first":
            may_copy = self._statements.render("may_copy", outbox=self._quoted("outbox"))
            return f"{self._statement('publish_many', style)}\nreturning {may_copy}"
        if kind == "publish_copy":
            names = sql.SQL(", ").join(sql.Identifier(name) for name, _ in self._types)
            return self._statements.render(kind, names=names)
        if kind == "find_key":
            key, scope_text = _placeholder(1, "varchar", style), _placeholder(2, "text", style)
            return self._statements.render(kind, key=key, scope_text=scope_text)
        parts = {
            "columns": self._columns(),
            "events": self._events(5 if kind == "publish_once" else 1, style),
            "relay_listens": self._relay_listens(),
        }
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

    def _quoted(self, relation: str) -> sql.Literal:
        """The full name of a relation, as text."""
        return sql.Literal(sql.Identifier(self._shape.schema, relation).as_string())

    def _relay_listens(self) -> sql.Composable:
        return self._statements.part("relay_listens", doorbell=self._quoted("doorbell"))

    def _events(self, first: int, style: Style) -> sql.Composable:
        """Parameters as arrays, unnested to rows; an array that is shorter than the ids gives null."""
        given = sql.SQL(", ").join(
            sql.SQL("{} as {}").format(_placeholder(number, of, style, "[]"), sql.Identifier(name))
            for number, (name, of) in enumerate(self._types, first)
        )
        arrays = sql.SQL(", ").join(sql.Identifier("given", name) for name, _ in self._types)
        names = sql.SQL(", ").join(sql.Identifier(name) for name, _ in self._types)
        return sql.SQL("(select {given}) given, unnest({arrays}) as event ({names})").format(
            given=given, arrays=arrays, names=names
        )

    def _columns(self) -> sql.Composable:
        """For each column the event's own value, or the value that all events share."""
        return sql.SQL(", ").join(_own_or_shared(name) for name, _ in self._types)


def _own_or_shared(name: str) -> sql.Composable:
    own = sql.Identifier("event", name)
    if name in _EACH_ITS_OWN:
        return own
    if name == "correlation_id":
        return sql.SQL("coalesce({own}, given.correlation_id[1], event.id::text)").format(own=own)
    either = sql.SQL("coalesce({own}, {shared}[1])").format(own=own, shared=sql.Identifier("given", name))
    return _stored(name, either)


def _stored(name: str, value: sql.Composable) -> sql.Composable:
    """A value with the cast for its column; without a length, which would cut a value that is too long."""
    return sql.SQL("({})::varchar[]").format(value) if name == AUDIENCE else value


def _fingerprint(rows: EventRows) -> str:
    said = json.dumps([[row[1], row[2] if row[1] != NO_AGGREGATE else "", row[3], row[4], row[8]] for row in rows])
    return hashlib.sha256(said.encode()).hexdigest()


def checked_key(key: str) -> str:
    """The idempotency key, if it can be stored."""
    if not is_storable(key, MAX_KEY):
        raise InvalidEnvelope(
            f"idempotency key {key!r:.80} is not valid: use 1 to {MAX_KEY} characters, no NUL or lone surrogate"
        )
    return str.__str__(key)


def _placeholder(number: int, kind: str, style: Style, array: str = "") -> sql.SQL:
    if style == "numbered":
        mark = f"${number}"
    elif style == "asyncpg":
        # As text: an application may have set its own json codec, which would encode the payload again; and asyncpg
        # takes longer for a time than for its text.
        first_cast = f"::text{array}" if kind == "json" or (kind == "timestamptz" and not array) else ""
        mark = f"${number}{first_cast}"
    else:
        # psycopg sends arrays in binary: in text form, a publish of many events is six times slower. Ids are text
        # already.
        mark = "%b" if style == "psycopg" and array and kind != "uuid" else "%s"
    return sql.SQL(f"{mark}::{kind}{array}")


def _arrays(rows: EventRows, style: Style) -> Sequence[Any]:
    """One array per column. A long array is expensive, so a column with one value is an array of one."""
    columns = list(zip(*rows, strict=True))
    ids, payloads = columns[ID], list(columns[PAYLOAD])
    special = {
        ID: _ids(ids, style),
        CORRELATION: _correlations(columns[CORRELATION], ids),
        CAUSATION: [] if not any(columns[CAUSATION]) else list(columns[CAUSATION]),
        PAYLOAD: payloads,
    }
    arrays = [special[place] if place in special else _shortest(column) for place, column in enumerate(columns)]
    return _adapted(arrays, style)


def _shortest(column: Sequence[Any]) -> list[Any]:
    shortest = [column[0]] if len(set(column)) == 1 else list(column)
    return [text_array(readers) for readers in shortest] if type(column[0]) is tuple else shortest


def _ids(ids: Sequence[UUID], style: Style) -> Any:
    return list(ids) if style == "asyncpg" else uuid_array(ids)


def _correlations(column: Sequence[str | None], ids: Sequence[UUID]) -> list[Any]:
    """Correlation ids. An event without one uses its own id; if no event has one, the database fills them in."""
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
    # Numbers, too: as a literal, the cast binds tighter than the minus, and the lowest bigint would overflow.
    return str(value) if isinstance(value, UUID | int) else value


def _listed(value: Any) -> Sequence[Any]:
    # Some drivers return an array of a type that they do not know as text.
    return value.strip("{}").split(",") if isinstance(value, str) else list(value)
