"""The columns, table and functions that an audience adds to a schema. Produces SQL text only.

Programs that do not declare the audience yet may run beside those that do, and must not lose it
(docs/decisions/0016-audience.md).
"""

from collections.abc import Iterator
from typing import Final

from psycopg import sql

from aftercommit.postgres.blocks import name_literal, quoted, unless
from aftercommit.postgres.shape import AUDIENCE, MAX_AUDIENCE, Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema.catalog import SCOPED_TABLES, Catalog
from aftercommit.schema.views import stamp_of

COLUMN_TYPE: Final = "character varying(255)[]"
_PARTITIONED: Final = "p"


def columns(shape: Shape) -> Iterator[str]:
    """The statements that add the column to every table with events."""
    statements = Statements(shape)
    check = statements.part("audience_check", most=sql.Literal(MAX_AUDIENCE))
    for table in SCOPED_TABLES:
        condition = statements.render(
            "has_column", table_name=name_literal(shape.schema, table), column_name=sql.Literal(AUDIENCE)
        )
        query = "add_audience_to_outbox" if table == "outbox" else "add_audience"
        action = statements.render(query, table=sql.Identifier(table), check=check)
        yield unless(shape, condition, action)


def table(shape: Shape) -> str:
    """The statement that creates the table; its partitions are created with those of the log."""
    statements = Statements(shape)
    condition = statements.render("has_relation", relation=name_literal(shape.schema, AUDIENCE))
    return unless(shape, condition, statements.render("create_audience_table"))


def guard(shape: Shape) -> tuple[str, str]:
    """The stamp of the functions that preserve the audience, and the statement that defines them."""
    statements = Statements(shape)
    bodies = {
        "log_body": quoted(statements.render("keep_audience_body")),
        "letter_body": quoted(statements.render("keep_letter_audience_body")),
    }
    stamp = stamp_of(statements.render("define_keep_audience", **bodies, stamp=sql.SQL("''")))
    function_name = sql.Literal(sql.Identifier(shape.schema, "keep_letter_audience").as_string() + "()")
    condition = statements.render("has_function", function_name=function_name, stamp=sql.Literal(stamp))
    action = statements.render("define_keep_audience", **bodies, stamp=sql.Literal(stamp))
    return stamp, unless(shape, condition, action)


def conflicts(shape: Shape, catalog: Catalog) -> Iterator[str]:
    """Columns and tables that have the audience's names but are something else."""
    for name in SCOPED_TABLES:
        column = catalog.columns.get((name, AUDIENCE))
        if column is not None and (column.type != COLUMN_TYPE or not column.not_null):
            yield (
                f"{shape.schema}.{name} has a column {AUDIENCE!r} of type {column.type}, but the audience needs "
                f"{COLUMN_TYPE} not null: rename it, or choose another schema for this outbox"
            )
    if catalog.kinds.get(AUDIENCE, _PARTITIONED) != _PARTITIONED:
        yield (
            f"{shape.schema}.{AUDIENCE} exists, but is not the outbox's table: rename it, or choose another schema for "
            "this outbox"
        )
