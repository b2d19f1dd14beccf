"""The parts of a schema that a declaration adds to the migrations: scope columns, audience, indexes, views, functions.

Each piece has statements that do nothing if it is already there. If adding a scope column needs a decision about
existing events, the error says what to run. Indexes on large tables are built concurrently, outside a transaction.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from aftercommit.errors import SchemaDrift
from aftercommit.postgres.blocks import name_literal, unless, without_purpose
from aftercommit.postgres.commits import committed
from aftercommit.postgres.shape import AUDIENCE, MAX_IDENTIFIER, SCOPE_TYPES, LogFacet, Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema import audience, indexes, partitions
from aftercommit.schema.catalog import SCOPED_TABLES, Catalog, asking, read
from aftercommit.schema.indexes import Index
from aftercommit.schema.lock_retry import LockRetrier
from aftercommit.schema.numbered import migrations
from aftercommit.schema.views import SchemaView, views
from aftercommit.text import MIGRATE

# Example values for existing events in the remedy; the operator replaces them.
_PLACEHOLDERS = {"varchar(255)": "'unassigned'", "bigint": "0", "uuid": "'00000000-0000-0000-0000-000000000000'"}
_CATALOG_TYPES = {"varchar(255)": "character varying(255)"}
OUTBOX_COLUMNS = frozenset(
    "id seq lane aggregate_type aggregate_id event_type schema_version occurred_at correlation_id causation_id "
    "payload status retry_count next_retry_at created_at last_error".split()
)


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of the declaration, the statements that add it, and a test whether it is there.

    `stands_in`, where given, tests whether it is there in any form: newer code may have given it another definition.
    """

    name: str
    statements: tuple[str, ...]
    is_in: Callable[[Catalog], bool]
    stands_in: Callable[[Catalog], bool] | None = None
    scope: str | None = None
    index: Index | None = None


def pieces(shape: Shape, catalog: Catalog | None = None) -> Iterator[Piece]:
    """All pieces of this declaration, in the order in which they can be added."""
    yield from (_scope_piece(shape, name) for name in shape.scope)
    if shape.audience:
        yield Piece("audience column", tuple(audience.columns(shape)), partial(_has_column, AUDIENCE))
        yield _keep_audience_piece(shape)
    yield from (_index_piece(shape, index) for index in _indexes(shape))
    yield from (_view_piece(view) for view in views(shape if catalog is None else _as_it_is(shape, catalog)))
    stamp, statement = partitions.definition(shape)
    yield Piece(
        "function make_partitions",
        (statement,),
        lambda catalog: catalog.function_comments.get("make_partitions") == stamp,
        lambda catalog: "make_partitions" in catalog.function_comments,
    )
    if shape.audience:
        # After the function, which creates its partitions.
        yield Piece("table audience", (audience.table(shape),), lambda catalog: AUDIENCE in catalog.kinds)


def missing(shape: Shape, catalog: Catalog) -> list[Piece]:
    """The pieces that are missing, or differ from the declaration."""
    return [piece for piece in pieces(shape, catalog) if not piece.is_in(catalog)]


def absent(shape: Shape, catalog: Catalog) -> list[Piece]:
    """The pieces that are missing in any form: what code that is older than the tables cannot use."""
    return [piece for piece in pieces(shape, catalog) if not (piece.stands_in or piece.is_in)(catalog)]


def conflicts(shape: Shape, catalog: Catalog) -> list[str]:
    """Differences from the declaration that need a decision, each with a remedy."""
    found = []
    for (table, name), column in catalog.columns.items():
        undeclared = name not in OUTBOX_COLUMNS and name not in shape.scope
        # A column with a default is not a scope: newer code has added it, and this code does not need it.
        if table == "outbox" and undeclared and column.must_be_given:
            found.append(
                f"{shape.schema}.outbox has the column {name!r} ({column.type}), which is not declared: "
                f"declare scope={{{name!r}: …}}, or choose another schema for this outbox"
            )
        elif table in SCOPED_TABLES and name in shape.scope:
            found.extend(_column_conflicts(shape, catalog, table, name))
    if shape.audience:
        found.extend(audience.conflicts(shape, catalog))
    for index in _indexes(shape):
        if index.name in catalog.kinds and catalog.indexed.get(index.name) != index.table:
            found.append(
                f"{shape.schema}.{index.name} exists, but is not an index of {index.table}: rename it, or choose "
                "another schema for this outbox"
            )
    return found


def apply(retrier: LockRetrier) -> list[str]:
    """Add what the declaration needs; returns a description of each step."""
    done = retrier.run(lambda: _apply(retrier))
    with committed(retrier.connection):
        catalog = read(asking(retrier.connection), retrier.shape)
    for piece in missing(retrier.shape, catalog):
        if piece.index is not None:
            indexes.build_concurrently(retrier, piece.index)
            done.append(f"created {piece.name} without blocking writers")
    return done


def _apply(retrier: LockRetrier) -> list[str]:
    """Add everything that can be added in this transaction; indexes on large tables are left out."""
    connection, shape = retrier.connection, retrier.shape
    catalog = read(asking(connection), shape)
    if found := conflicts(shape, catalog):
        raise SchemaDrift("; ".join(found))
    done = []
    for piece in missing(shape, catalog):
        if piece.index is not None and indexes.is_large(retrier, piece.index):
            continue
        if piece.scope is not None:
            _add_scope(connection, shape, catalog, piece, piece.scope)
        else:
            _execute(connection, piece)
        done.append(f"created {piece.name}")
    return done


def _execute(connection: psycopg.Connection[Any], piece: Piece) -> None:
    for statement in piece.statements:
        connection.execute(statement.encode())


def _add_scope(connection: psycopg.Connection[Any], shape: Shape, catalog: Catalog, piece: Piece, name: str) -> None:
    lacking = [table for table in SCOPED_TABLES if (table, name) not in catalog.columns]
    ask = asking(connection)
    for table in lacking:
        if ask(Statements(shape).render("has_rows", table=sql.Identifier(table)), {})[0][0]:
            raise _needs_a_decision(shape, name, table, lacking)
    try:
        _execute(connection, piece)
    except psycopg.errors.NotNullViolation as problem:
        # An event was published since we checked.
        raise _needs_a_decision(shape, name, problem.diag.table_name or "outbox", lacking) from problem


def _column_conflicts(shape: Shape, catalog: Catalog, table: str, name: str) -> Iterator[str]:
    column = catalog.columns[table, name]
    declared = SCOPE_TYPES[shape.scope[name]]
    if column.type != _CATALOG_TYPES.get(declared, declared):
        yield (
            f"scope column {name!r} of {shape.schema}.{table} is {column.type}, but scope={{{name!r}: "
            f"{shape.scope[name].__name__}}} means {declared}: declare the column's type, or choose another schema"
        )
    if not column.not_null:
        alter = sql.SQL("alter table {} alter column {} set not null").format(
            sql.Identifier(shape.schema, table), sql.Identifier(name)
        )
        yield f"scope column {name!r} of {shape.schema}.{table} allows null: run {alter.as_string()}"


def _has_column(name: str, catalog: Catalog) -> bool:
    return all((table, name) in catalog.columns for table in SCOPED_TABLES)


def _scope_piece(shape: Shape, name: str) -> Piece:
    statements = tuple(_add_scope_column(shape, table, name) for table in SCOPED_TABLES)
    return Piece(f"scope column {name}", statements, partial(_has_column, name), scope=name)


def _add_scope_column(shape: Shape, table: str, name: str) -> str:
    statements = Statements(shape)
    condition = statements.render(
        "has_column", table_name=name_literal(shape.schema, table), column_name=sql.Literal(name)
    )
    return unless(shape, condition, statements.render("add_scope_column", **_column_parts(shape, table, name)))


def _column_parts(shape: Shape, table: str, name: str) -> dict[str, sql.Composable]:
    return {
        "table": sql.Identifier(table),
        "column": sql.Identifier(name),
        "type": sql.SQL(SCOPE_TYPES[shape.scope[name]]),
        "check": _not_empty(name) if table == "outbox" and shape.scope[name] is str else sql.SQL(""),
    }


def _not_empty(name: str) -> sql.Composable:
    # All events enter through the outbox, also those inserted through a view or by hand.
    constraint = sql.Identifier(f"outbox_{name}_is_not_empty"[:MAX_IDENTIFIER])
    return sql.SQL("constraint {} check ({} <> '')").format(constraint, sql.Identifier(name))


def _keep_audience_piece(shape: Shape) -> Piece:
    stamp, statement = audience.guard(shape)
    return Piece(
        "function keep_audience",
        (statement,),
        lambda catalog: catalog.function_comments.get("keep_letter_audience") == stamp,
        lambda catalog: "keep_letter_audience" in catalog.function_comments,
    )


def _as_it_is(shape: Shape, catalog: Catalog) -> Shape:
    """The shape for views: an audience that another program declares stays in them.

    During a deployment, the previous version, which does not know the audience, may be started again and migrate.
    """
    found = [catalog.columns.get((table, AUDIENCE)) for table in SCOPED_TABLES]
    is_there = all(column is not None and column.type == audience.COLUMN_TYPE for column in found)
    return replace(shape, audience=True) if is_there else shape


def _view_piece(view: SchemaView) -> Piece:
    return Piece(
        f"view {view.name}",
        (view.statement,),
        lambda catalog: catalog.relation_comments.get(view.name) == view.stamp,
        lambda catalog: view.name in catalog.kinds,
    )


def _indexes(shape: Shape) -> Iterator[Index]:
    for migration in migrations():
        yield from migration.indexes
    for facet in shape.log_facets:
        yield Index(facet.name, "log", partial(_facet_creation, facet))
    for name in shape.indexed:
        query = "index_outbox_age" if name == "created_at" else "index_outbox_column"
        yield Index(f"outbox_by_{name}", "outbox", partial(_creation, query, name))


def _creation(query: str, column: str, shape: Shape, places: Mapping[str, sql.Composable]) -> str:
    return Statements(shape).render(query, column=sql.Identifier(column), **places)


def _facet_creation(facet: LogFacet, shape: Shape, places: Mapping[str, sql.Composable]) -> str:
    if not facet.path:
        return _creation("index_log_scope", facet.of, shape, places)
    of = sql.Identifier(facet.of) if facet.by == "scope" else sql.Literal(facet.of)
    value = Statements(shape).part("facet_value", path=sql.Literal(list(facet.path)))
    return Statements(shape).render(f"index_log_facet_{facet.by}", of=of, value=value, **places)


def _index_piece(shape: Shape, index: Index) -> Piece:
    def is_in(catalog: Catalog) -> bool:
        return catalog.indexed.get(index.name) == index.table and index.name not in catalog.invalid

    return Piece(f"index {index.name}", (indexes.statement(shape, index),), is_in, index=index)


def _needs_a_decision(shape: Shape, name: str, table: str, lacking: Sequence[str]) -> SchemaDrift:
    placeholder = _PLACEHOLDERS[SCOPE_TYPES[shape.scope[name]]]
    return SchemaDrift(
        f"scope column {name!r} cannot be added: {shape.schema}.{table} has events without a value for it. Replace "
        f"{placeholder} by the value that they should get, and run:\n{_remedy(shape, lacking, name)}\n"
        f"Then {MIGRATE} again"
    )


def _remedy(shape: Shape, tables: Sequence[str], name: str) -> str:
    value = sql.SQL(_PLACEHOLDERS[SCOPE_TYPES[shape.scope[name]]])
    fills = [
        without_purpose(Statements(shape).render("fill_scope_column", **_column_parts(shape, table, name), value=value))
        for table in tables
    ]
    return "\n".join(["begin;", *fills, "commit;"])
