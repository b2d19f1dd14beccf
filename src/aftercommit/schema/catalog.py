"""The present content of a schema, read from PostgreSQL's catalogs, which needs no privileges on the tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

SCOPED_TABLES = ("outbox", "log", "dead_letter_events")

# Runs a query with %(name)s parameters and returns its rows; any driver can implement it.
Ask = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class Column:
    """The SQL type of a column, whether it is NOT NULL, and whether it has a default."""

    type: str
    not_null: bool
    has_default: bool

    @property
    def must_be_given(self) -> bool:
        """Whether an INSERT must give a value for it."""
        return self.not_null and not self.has_default


@dataclass(frozen=True, slots=True)
class Catalog:
    """Tables, columns, views, indexes and functions of one schema, with the comments that mark ours.

    An index in `invalid` cannot be used: its build is running, or was interrupted. `indexed` maps indexes to tables.
    """

    columns: Mapping[tuple[str, str], Column]
    kinds: Mapping[str, str]
    relation_comments: Mapping[str, str | None]
    function_comments: Mapping[str, str | None]
    invalid: frozenset[str] = frozenset()
    indexed: Mapping[str, str] = field(default_factory=dict)


def asking(connection: psycopg.Connection[Any]) -> Ask:
    """Queries on a psycopg connection, independent of its row and cursor factories."""

    def ask(query: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            return cursor.execute(query.encode(), parameters).fetchall()

    return ask


def read(ask: Ask, shape: Shape) -> Catalog:
    """The catalog of the shape's schema; empty if the schema does not exist."""
    statements = Statements(shape)
    schema = {"schema": shape.schema}
    tables = {**schema, "tables": [*SCOPED_TABLES, "migration"]}
    relations = ask(statements.render("catalog_relations"), schema)
    return Catalog(
        columns={
            (table, column): Column(*described)
            for table, column, *described in ask(statements.render("catalog_columns"), tables)
        },
        kinds={name: kind for name, kind, *_ in relations},
        relation_comments={name: comment for name, _, comment, *_ in relations},
        function_comments=dict(ask(statements.render("catalog_functions"), schema)),  # type: ignore[arg-type]
        invalid=frozenset(name for name, _, _, is_valid, _ in relations if not is_valid),
        indexed={name: table for name, *_, table in relations if table is not None},
    )
