"""What stands on top of the numbered migrations: scope columns, the audience, indexes, views, the partition maker.

Each piece is a statement that acts only where it is missing. A scope column that cannot be added or taken away without
a decision about existing events is never forced: the error says what to run. An index on a large table is not built
in a transaction.
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

# A value for events from before the scope was declared; the reader of the message puts their own in its place.
_PLACEHOLDERS = {
    "varchar(255)": "'unassigned'",
    "bigint": "0",
    "uuid": "'00000000-0000-0000-0000-000000000000'",
}
_CATALOG_TYPES = {"varchar(255)": "character varying(255)"}
OUTBOX_COLUMNS = frozenset(
    "id seq lane aggregate_type aggregate_id event_type schema_version occurred_at correlation_id causation_id "
    "payload status retry_count next_retry_at created_at last_error".split()
)


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing that the declaration adds, the statements that add it, and how to tell that it is there.

    `stands_in` tells whether it is there in some form: newer code may have given it another definition.
    """

    name: str
    statements: tuple[str, ...]
    is_in: Callable[[Catalog], bool]
    stands_in: Callable[[Catalog], bool]
    scope: str | None = None
    index: Index | None = None


def pieces(shape: Shape, catalog: Catalog | None = None) -> Iterator[Piece]:
    """Everything that this declaration adds to what is there, in the order in which it can be added."""
    yield from (_scope_piece(shape, name) for name in shape.scope)
    if shape.audience:
        yield _audience_column_piece(shape)
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
        # Behind the function, which makes its partitions.
        yield _audience_table_piece(shape)


def missing(shape: Shape, catalog: Catalog) -> list[Piece]:
    """The pieces that are not there, or not as declared."""
    return [piece for piece in pieces(shape, catalog) if not piece.is_in(catalog)]


def absent(shape: Shape, catalog: Catalog) -> list[Piece]:
    """The pieces that are not there in any form: what code that is behind the tables has to do without."""
    return [piece for piece in pieces(shape, catalog) if not piece.stands_in(catalog)]


def conflicts(shape: Shape, catalog: Catalog) -> list[str]:
    """What stands against the declaration and cannot be put right without a decision, with what to do."""
    found = []
    for (table, name), column in catalog.columns.items():
        undeclared = name not in OUTBOX_COLUMNS and name not in shape.scope
        # A column that fills itself is no scope: newer code has added it, and this code can do without.
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
                f"{shape.schema}.{index.name} is not the index of {index.table} that the outbox needs under this name: "
                "rename what is there, or choose another schema for this outbox"
            )
    return found


def apply(retrier: LockRetrier) -> list[str]:
    """Bring the schema up to the declaration; returns in words what was done."""
    done = retrier.run(lambda: _apply(retrier))
    catalog = _catalog(retrier)
    for piece in missing(retrier.shape, catalog):
        if piece.index is not None:
            indexes.build_concurrently(retrier, piece.index)
            done.append(f"made {piece.name} without blocking writers")
    return done


def _apply(retrier: LockRetrier) -> list[str]:
    """What can be done in the transaction of this step; indexes on large tables are left."""
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
        done.append(f"made {piece.name}")
    return done


def _catalog(retrier: LockRetrier) -> Catalog:
    with committed(retrier.connection):
        return read(asking(retrier.connection), retrier.shape)


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
        # Somebody published since we looked.
        raise _needs_a_decision(shape, name, problem.diag.table_name or "outbox", lacking) from problem


def _column_conflicts(shape: Shape, catalog: Catalog, table: str, name: str) -> Iterator[str]:
    column = catalog.columns[table, name]
    declared = SCOPE_TYPES[shape.scope[name]]
    if column.type != _CATALOG_TYPES.get(declared, declared):
        yield (
            f"scope column {name!r} of {shape.schema}.{table} is {column.type}, but scope={{{name!r}: "
            f"{shape.scope[name].__name__}}} means {declared}: declare the type that it has, or "
            "choose another schema"
        )
    if not column.not_null:
        alter = sql.SQL("alter table {} alter column {} set not null").format(
            sql.Identifier(shape.schema, table), sql.Identifier(name)
        )
        yield f"scope column {name!r} of {shape.schema}.{table} may be null: run {alter.as_string()}"


def _scope_piece(shape: Shape, name: str) -> Piece:
    def is_in(catalog: Catalog) -> bool:
        return all((table, name) in catalog.columns for table in SCOPED_TABLES)

    statements = tuple(_add_scope_column(shape, table, name) for table in SCOPED_TABLES)
    return Piece(f"scope column {name}", statements, is_in, is_in, scope=name)


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
    # Every event enters by the outbox, also through a view or by hand: an empty text is no scope.
    constraint = sql.Identifier(f"outbox_{name}_is_not_empty"[:MAX_IDENTIFIER])
    return sql.SQL("constraint {} check ({} <> '')").format(constraint, sql.Identifier(name))


def _audience_column_piece(shape: Shape) -> Piece:
    def is_in(catalog: Catalog) -> bool:
        return all((table, AUDIENCE) in catalog.columns for table in SCOPED_TABLES)

    return Piece("audience column", tuple(audience.columns(shape)), is_in, is_in)


def _keep_audience_piece(shape: Shape) -> Piece:
    stamp, statement = audience.guard(shape)
    return Piece(
        "function keep_audience",
        (statement,),
        lambda catalog: catalog.function_comments.get("keep_letter_audience") == stamp,
        lambda catalog: "keep_letter_audience" in catalog.function_comments,
    )


def _audience_table_piece(shape: Shape) -> Piece:
    def is_in(catalog: Catalog) -> bool:
        return AUDIENCE in catalog.kinds

    return Piece("table audience", (audience.table(shape),), is_in, is_in)


def _as_it_is(shape: Shape, catalog: Catalog) -> Shape:
    """The shape that views show: an audience that another program declares stays in them.

    While a deployment is under way the version before, which knows of none, is started again and migrates as well.
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
    for name in shape.scope:
        yield Index(f"log_scope_{name}", "log", partial(_creation, "index_log_scope", name))
    for name in shape.indexed:
        query = "index_outbox_age" if name == "created_at" else "index_outbox_column"
        yield Index(f"outbox_by_{name}", "outbox", partial(_creation, query, name))
    for facet in shape.facets:
        yield Index(facet.name, "log", partial(_facet_creation, facet))


def _creation(query: str, column: str, shape: Shape, places: Mapping[str, sql.Composable]) -> str:
    return Statements(shape).render(query, column=sql.Identifier(column), **places)


def _facet_creation(facet: LogFacet, shape: Shape, places: Mapping[str, sql.Composable]) -> str:
    of = sql.Identifier(facet.of) if facet.by == "scope" else sql.Literal(facet.of)
    value = Statements(shape).part("facet_value", path=sql.Literal(list(facet.path)))
    return Statements(shape).render(f"index_log_facet_{facet.by}", of=of, value=value, **places)


def _index_piece(shape: Shape, index: Index) -> Piece:
    def is_in(catalog: Catalog) -> bool:
        return catalog.indexed.get(index.name) == index.table and index.name not in catalog.invalid

    return Piece(f"index {index.name}", (indexes.statement(shape, index),), is_in, is_in, index=index)


def _needs_a_decision(shape: Shape, name: str, table: str, lacking: Sequence[str]) -> SchemaDrift:
    placeholder = _PLACEHOLDERS[SCOPE_TYPES[shape.scope[name]]]
    return SchemaDrift(
        f"scope column {name!r} cannot be added: {shape.schema}.{table} has events without a value for it. Decide whom "
        f"they belong to, put that in place of {placeholder} and run:\n{_remedy(shape, lacking, name)}\n"
        f"Then {MIGRATE} again"
    )


def _remedy(shape: Shape, tables: Sequence[str], name: str) -> str:
    value = sql.SQL(_PLACEHOLDERS[SCOPE_TYPES[shape.scope[name]]])
    fills = [
        without_purpose(Statements(shape).render("fill_scope_column", **_column_parts(shape, table, name), value=value))
        for table in tables
    ]
    return "\n".join(["begin;", *fills, "commit;"])
