"""What an outbox declares on top of the numbered migrations: scope columns, indexes, views, and the log's first partitions."""

import hashlib
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from aftercommit.errors import SchemaDrift
from aftercommit.postgres import partitions
from aftercommit.postgres.shape import SCOPE_TYPES, VIEW_COLUMNS, DeclaredView, Shape
from aftercommit.postgres.statements import Statements

SCOPED_TABLES = ("outbox", "log", "dead_letter_events")
_NAME_OF_TYPE = {"varchar(255)": "character varying", "bigint": "bigint", "uuid": "uuid"}
_BASE_COLUMNS = frozenset(
    "id seq lane aggregate_type aggregate_id event_type schema_version occurred_at correlation_id causation_id payload status "
    "retry_count next_retry_at created_at last_error".split()
)


def apply(connection: psycopg.Connection[Any], shape: Shape) -> list[str]:
    """Bring columns, indexes, views and partitions up to the declaration; returns what was done, in words."""
    done = []
    _refuse_other_scope(connection, shape)
    for name in _missing_scope(connection, shape):
        _refuse_scope_on_data(connection, shape, name)
        for table in SCOPED_TABLES:
            connection.execute(_scope_column(shape, table, name))
        done.append(f"added scope column {name}")
    for statement in _indexes(shape):
        connection.execute(statement)
    for view_name, definition, extras in views(shape):
        if _view_stamp(connection, shape, view_name) != _stamp(definition, extras):
            for statement in _replace_view(shape, view_name, definition, extras):
                connection.execute(statement)
            done.append(f"made view {view_name}")
    made = partitions.ensure(connection, shape)
    done.extend(f"made partition {name}" for name in made)
    return done


def differences(connection: psycopg.Connection[Any], shape: Shape) -> Iterator[str]:
    """How the database differs from the declaration, one phrase each."""
    existing = _scope_columns(connection, shape)
    for name in shape.scope:
        if name not in existing:
            yield f"scope column {name!r} is missing"
    try:
        _refuse_other_scope(connection, shape)
    except SchemaDrift as problem:
        yield str(problem)
    for view_name, definition, extras in views(shape):
        if _view_stamp(connection, shape, view_name) != _stamp(definition, extras):
            yield f"view {view_name!r} is missing or differs"


def script(shape: Shape) -> Iterator[str]:
    """The declaration as plain SQL for a new database."""
    for name in shape.scope:
        for table in SCOPED_TABLES:
            yield _scope_column(shape, table, name).as_string()
    for statement in _indexes(shape):
        yield statement.as_string()
    for view_name, definition, extras in views(shape):
        for statement in _replace_view(shape, view_name, definition, extras):
            yield statement.as_string()
    yield from partitions.script(shape)


def views(shape: Shape) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, definition and further statements of each view; a declared view may take the place of a canonical one."""
    statements = Statements(shape)
    declared_names = {view.name for view in shape.views}
    if "event_outbox" not in declared_names:
        yield "event_outbox", statements.render("view_event_outbox"), ()
    if "event_log" not in declared_names:
        yield "event_log", statements.render("view_event_log"), ()
    for view in shape.views:
        definition = statements.render(
            "view_declared",
            pending_columns=_view_columns(shape, view),
            published_columns=_view_columns(shape, view),
        )
        yield view.name, definition, _write_statements(statements, view) if view.writable else ()


def _scope_column(shape: Shape, table: str, name: str) -> sql.SQL:
    text = Statements(shape).render(
        "add_scope_column",
        table=sql.Identifier(table),
        column=sql.Identifier(name),
        type=sql.SQL(SCOPE_TYPES[shape.scope[name]]),  # type: ignore[arg-type]
    )
    return sql.SQL(text)  # type: ignore[arg-type]


def _indexes(shape: Shape) -> Iterator[sql.SQL]:
    statements = Statements(shape)
    for name in shape.scope:
        yield sql.SQL(  # type: ignore[arg-type]
            statements.render("index_log_scope", index=sql.Identifier(f"log_scope_{name}"[:63]), column=sql.Identifier(name))
        )
    for name in shape.indexed:
        yield sql.SQL(  # type: ignore[arg-type]
            statements.render("index_outbox_column", index=sql.Identifier(f"outbox_by_{name}"[:63]), column=sql.Identifier(name))
        )


def _scope_columns(connection: psycopg.Connection[Any], shape: Shape) -> dict[str, str]:
    rows = connection.execute(
        "select column_name, data_type from information_schema.columns where table_schema = %s and table_name = 'outbox'",
        (shape.schema,),
    )
    return {name: data_type for name, data_type in rows if name not in _BASE_COLUMNS}


def _missing_scope(connection: psycopg.Connection[Any], shape: Shape) -> list[str]:
    existing = _scope_columns(connection, shape)
    return [name for name in shape.scope if name not in existing]


def _refuse_other_scope(connection: psycopg.Connection[Any], shape: Shape) -> None:
    for name, data_type in _scope_columns(connection, shape).items():
        if name not in shape.scope:
            raise SchemaDrift(
                f"outbox {shape.schema!r} has the scope column {name!r}, which is not declared: declare scope={{{name!r}: …}}, "
                "or choose another schema for this outbox"
            )
        wanted = _NAME_OF_TYPE[SCOPE_TYPES[shape.scope[name]]]
        if wanted != data_type:
            raise SchemaDrift(f"scope column {name!r} is {data_type} in schema {shape.schema!r} but declared as {wanted}")


def _refuse_scope_on_data(connection: psycopg.Connection[Any], shape: Shape, name: str) -> None:
    for table in SCOPED_TABLES:
        query = sql.SQL("select exists (select from {}.{})").format(sql.Identifier(shape.schema), sql.Identifier(table))
        row = connection.execute(query).fetchone()
        if row and row[0]:
            remedy = _scope_column(shape, table, name).as_string()
            raise SchemaDrift(
                f"scope column {name!r} cannot be added: {shape.schema}.{table} has events without a value for it. "
                f"Decide what they belong to and run, for each of {', '.join(SCOPED_TABLES)}: {remedy} default '…'; "
                f"then drop the default"
            )


def _view_columns(shape: Shape, view: DeclaredView) -> sql.Composable:
    columns = []
    for shown, canonical in view.columns.items():
        columns.append(_expression(shape, view, canonical) + sql.SQL(" as ") + sql.Identifier(shown))
    return sql.SQL(", ").join(columns)


def _expression(shape: Shape, view: DeclaredView, canonical: str) -> sql.Composable:
    if canonical in shape.scope:
        return sql.Identifier(canonical)
    if canonical == "payload":
        return _envelope(shape) if view.envelope else sql.SQL("payload::jsonb")
    if canonical == "status" and view.statuses:
        cases = [sql.SQL(" when {} then {}").format(state, word) for state, word in view.statuses.items()]
        return sql.SQL("case status{} else status end").format(sql.Composed(cases))
    return sql.SQL(VIEW_COLUMNS[canonical])  # type: ignore[arg-type]


def _envelope(shape: Shape) -> sql.Composable:
    scope = [sql.SQL(", {}, {}").format(name, sql.Identifier(name)) for name in shape.scope]
    return sql.SQL(
        "jsonb_build_object('event_id', id, 'occurred_at', "
        "to_char(occurred_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), 'correlation_id', correlation_id{}, "
        "'schema_version', schema_version, 'payload', payload::jsonb)"
    ).format(sql.Composed(scope))


def _write_statements(statements: Statements, view: DeclaredView) -> tuple[str, ...]:
    shape = statements.shape
    shown = {canonical: name for name, canonical in view.columns.items()}
    event_id = shown.get("event_id") or shown.get("event_id_text") or shown.get("id") or shown.get("id_text")
    if event_id is None or "payload" not in shown or "event_type" not in shown:
        raise SchemaDrift(f"view {view.name!r} cannot be writable: it must show an event id, event_type and payload")
    function = sql.Identifier(f"insert_into_{view.name}"[:63])

    def new(column: str) -> sql.Composable:
        return sql.SQL("new.") + sql.Identifier(column)

    pending_word = sql.Literal(view.statuses.get("pending", "pending"))
    body = statements.render(
        "function_insert_event",
        function=function,
        event_id=new(event_id) + sql.SQL("::uuid"),
        payload=sql.SQL("to_jsonb(") + new(shown["payload"]) + sql.SQL(")"),
        status=sql.SQL("coalesce({}, {})").format(new(shown["status"]), pending_word) if "status" in shown else pending_word,
        pending_word=pending_word,
        event_type=new(shown["event_type"]),
        channel=sql.Literal(shape.publish_channel),
        original_scope=sql.Composed([sql.SQL(", original.") + sql.Identifier(name) for name in shape.scope]),
        given_scope=sql.Composed([_given_scope(shape, name, shown) for name in shape.scope]),
    )
    trigger = statements.render(
        "trigger_insert_event",
        trigger=sql.Identifier(f"insert_into_{view.name}"[:63]),
        view=sql.Identifier(view.name),
        function=function,
    )
    return body, trigger


def _given_scope(shape: Shape, name: str, shown: dict[str, str]) -> sql.Composable:
    if name in shown:
        return sql.SQL(", new.") + sql.Identifier(shown[name])
    cast = sql.SQL(SCOPE_TYPES[shape.scope[name]])  # type: ignore[arg-type]
    return sql.SQL(", (given ->> {})::{}").format(name, cast)


def _stamp(definition: str, extras: tuple[str, ...]) -> str:
    return "aftercommit:" + hashlib.sha256("\n".join([definition, *extras]).encode()).hexdigest()[:16]


def _view_stamp(connection: psycopg.Connection[Any], shape: Shape, name: str) -> str | None:
    identifier = sql.Identifier(shape.schema, name).as_string()
    row = connection.execute("select obj_description(to_regclass(%s), 'pg_class')", (identifier,)).fetchone()
    return row[0] if row else None


def _replace_view(shape: Shape, name: str, definition: str, extras: tuple[str, ...]) -> Iterator[sql.Composable]:
    view = sql.Identifier(shape.schema, name)
    yield sql.SQL("drop view if exists {}").format(view)
    yield sql.SQL("create view {} as {}").format(view, sql.SQL(definition))  # type: ignore[arg-type]
    for statement in extras:
        yield sql.SQL(statement)  # type: ignore[arg-type]
    yield sql.SQL("comment on view {} is {}").format(view, _stamp(definition, extras))
