"""What a schema holds right now, read from PostgreSQL's catalogs: that needs no privilege on tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

SCOPED_TABLES = ("outbox", "log", "dead_letter_events")

# A query with %(name)s parameters, and its rows: what any driver can do.
Ask = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class Column:
    """The type of a column as SQL writes it, whether it refuses null, and whether it fills itself."""

    type: str
    not_null: bool
    has_default: bool

    @property
    def must_be_given(self) -> bool:
        """Whether a row without a value for it is refused."""
        return self.not_null and not self.has_default


@dataclass(frozen=True, slots=True)
class Catalog:
    """Tables, columns, views, indexes and functions of one schema; comments tell what is ours.

    An index in `invalid` cannot be used: its build is under way, or was interrupted. `indexed` has the table of each.
    """

    columns: Mapping[tuple[str, str], Column]
    kinds: Mapping[str, str]
    relation_comments: Mapping[str, str | None]
    function_comments: Mapping[str, str | None]
    invalid: frozenset[str] = frozenset()
    indexed: Mapping[str, str] = field(default_factory=dict)


def asking(connection: psycopg.Connection[Any]) -> Ask:
    """Questions on a psycopg connection, whatever row and cursor factories it has."""

    def ask(query: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            return cursor.execute(query.encode(), parameters).fetchall()

    return ask


def read(ask: Ask, shape: Shape) -> Catalog:
    """The catalog of the shape's schema; everything is empty when the schema does not exist."""
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
