"""Views that show every event with its status: the canonical ones and the declared ones. Produces SQL text only."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from aftercommit.postgres.blocks import block, bounded, name_literal, quoted
from aftercommit.postgres.shape import AUDIENCE, ID_COLUMNS, SCOPE_TYPES, VIEW_COLUMNS, DeclaredView, Shape
from aftercommit.postgres.statements import Statements, scope_list

CANONICAL = ("event_outbox", "event_log")

# The columns of an event besides its id: name in table and envelope, type, and default for a new event.
_EVENT_COLUMNS = (
    ("aggregate_type", "varchar(50)", "'event'"),
    ("aggregate_id", "varchar(255)", "incoming::text"),
    ("schema_version", "smallint", "1"),
    ("occurred_at", "timestamptz", "clock_timestamp()"),
    ("correlation_id", "varchar(255)", "incoming::text"),
    ("causation_id", "uuid", "null"),
)
# The columns that an inserted row must have.
_GIVEN_COLUMNS = ("event_type", "payload")


@dataclass(frozen=True, slots=True)
class SchemaView:
    """A view of the schema: its name, the statement that creates or replaces it, and the stamp of its definition."""

    name: str
    statement: str
    stamp: str
    writable: bool = False


def views(shape: Shape) -> Iterator[SchemaView]:
    """Every view of an outbox; a declared one may take the place of a canonical one."""
    declared = {view.name for view in shape.views}
    for name in CANONICAL:
        if name not in declared:
            yield _view(shape, name, Statements(shape).render(f"view_{name}"), None)
    for view in shape.views:
        definition = Statements(shape).render("view_declared", columns=_shown_columns(shape, view))
        yield _view(shape, view.name, definition, _insert_function(shape, view) if view.writable else None)


def stamp_of(*texts: str) -> str:
    """A comment with a hash of an object's definition, so that a changed definition is noticed."""
    return "aftercommit:" + hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _view(shape: Shape, name: str, definition: str, insert: str | None) -> SchemaView:
    statements = Statements(shape)
    stamp = stamp_of(definition, insert or "")
    parts = {"view": sql.Identifier(name), "function": sql.Identifier(bounded(f"insert_into_{name}"))}
    writing = "" if insert is None else _writing(shape, parts, insert)
    body = statements.render(
        "replace_view",
        **parts,
        view_name=name_literal(shape.schema, name),
        stamp=sql.Literal(stamp),
        definition=sql.SQL(definition),
        writing=sql.SQL(writing),
    )
    return SchemaView(name, block(body), stamp, writable=insert is not None)


def _writing(shape: Shape, parts: dict[str, sql.Identifier], insert: str) -> str:
    return Statements(shape).render(
        "write_through_view", **parts, trigger=sql.Identifier("insert_event"), body=quoted(insert)
    )


def _shown_columns(shape: Shape, view: DeclaredView) -> sql.Composable:
    return sql.SQL(", ").join(
        _expression(shape, view, canonical) + sql.SQL(" as ") + sql.Identifier(shown)
        for shown, canonical in view.columns.items()
    )


def _expression(shape: Shape, view: DeclaredView, canonical: str) -> sql.Composable:
    if canonical in shape.carried:
        return sql.Identifier(canonical)
    if canonical == "payload":
        return _envelope(shape) if view.envelope else sql.SQL("payload::jsonb")
    if canonical == "status" and view.statuses:
        cases = [sql.SQL(" when {} then {}").format(state, word) for state, word in view.statuses.items()]
        return sql.SQL("case status{} else status end").format(sql.Composed(cases))
    return sql.SQL(VIEW_COLUMNS[canonical])


def _envelope(shape: Shape) -> sql.Composable:
    scope = [sql.SQL(", {}, {}").format(name, sql.Identifier(name)) for name in shape.carried]
    return sql.SQL(
        "jsonb_build_object('event_id', id, 'occurred_at', "
        "to_char(occurred_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), "
        "'correlation_id', correlation_id{}, 'schema_version', schema_version, 'payload', payload::jsonb)"
    ).format(sql.Composed(scope))


def _insert_function(shape: Shape, view: DeclaredView) -> str:
    shown: dict[str, sql.Composable] = {
        canonical: sql.SQL("new.") + sql.Identifier(name) for name, canonical in view.columns.items()
    }
    pending_word = sql.Literal(view.statuses.get("pending", "pending"))
    status = sql.SQL("coalesce({}, {})").format(shown["status"], pending_word) if "status" in shown else pending_word
    columns = [*(name for name, _, _ in _EVENT_COLUMNS), *_GIVEN_COLUMNS]
    return Statements(shape).render(
        "insert_event",
        event_id=_incoming_id(shown),
        payload=sql.SQL("to_jsonb({})").format(shown["payload"]),
        status=status,
        pending_word=pending_word,
        stored=sql.SQL(", ").join(sql.Identifier("event", name) for name in columns) + scope_list(shape, "event"),
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)) + scope_list(shape),
        values=_values(shape, shown),
        channel=sql.Literal(shape.publish_channel),
    )


def _incoming_id(shown: dict[str, sql.Composable]) -> sql.Composable:
    """The event's id, or else the row's id, which may have a replay suffix."""
    found = []
    for canonical in ID_COLUMNS:
        if canonical in shown:
            found.append(sql.SQL("regexp_replace({}::text, '-replay$', '')").format(shown[canonical]))
    return sql.SQL("coalesce({})::uuid").format(sql.SQL(", ").join(found))


def _values(shape: Shape, shown: dict[str, sql.Composable]) -> sql.Composable:
    """The value of each column: the stored one, else the row's, else the envelope's, else the default."""
    values = [_value(name, type_name, default, shown) for name, type_name, default in _EVENT_COLUMNS]
    values.append(sql.SQL("coalesce(known.event_type, {})").format(shown["event_type"]))
    values.append(sql.SQL("coalesce(known.payload, coalesce(envelope -> 'payload', given)::text::json)"))
    values.extend(_value(name, SCOPE_TYPES[kind], "null", shown) for name, kind in shape.scope.items())
    if shape.audience:
        values.append(_audience(shape, shown))
    return sql.SQL(", ").join(values)


def _audience(shape: Shape, shown: dict[str, sql.Composable]) -> sql.Composable:
    """The same for the audience; its default is empty."""
    row = sql.SQL("{}, ").format(shown[AUDIENCE]) if AUDIENCE in shown else sql.SQL("")
    return Statements(shape).part("view_audience", row=row)


def _value(name: str, type_name: str, default: str, shown: dict[str, sql.Composable]) -> sql.Composable:
    row = [shown[name]] if name in shown else []
    enveloped = sql.SQL("(envelope ->> {})::{}").format(name, sql.SQL(type_name))
    known = sql.SQL("known.") + sql.Identifier(name)
    return sql.SQL("coalesce({})").format(sql.SQL(", ").join([known, *row, enveloped, sql.SQL(default)]))
