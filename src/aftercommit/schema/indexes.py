"""Indexes: built in a transaction while the table is small, and CONCURRENTLY when it is large.

A concurrent build does not block writers, but leaves an invalid index behind if it is killed. Such an index is dropped
and built again. If another session is still building the index, we wait for it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql

from aftercommit.postgres.blocks import block, bounded, name_literal, unless
from aftercommit.postgres.commits import committed
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema.catalog import asking
from aftercommit.schema.lock_retry import LockRetrier

# Up to this size, building an index takes about a second, and writers can wait for it.
SMALL_BYTES = 64 * 1024 * 1024
_PARTITIONED = "p"


@dataclass(frozen=True, slots=True)
class Index:
    """An index: its name, its table, and a function that renders its CREATE INDEX.

    `create` takes a shape and values for the placeholders `index` and `table` (of the table or of one partition),
    `concurrently` and `only` (which may be empty).
    """

    name: str
    table: str
    create: Callable[[Shape, Mapping[str, sql.Composable]], str]

    def creation(self, shape: Shape, **given: sql.Composable) -> str:
        """The statement; by default, an ordinary CREATE INDEX."""
        places: dict[str, sql.Composable] = {
            "index": sql.Identifier(self.name),
            "table": sql.Identifier(self.table),
            "concurrently": sql.SQL(""),
            "only": sql.SQL(""),
        }
        return self.create(shape, {**places, **given})


def statement(shape: Shape, index: Index) -> str:
    """One statement for a transaction: creates the index if it is missing; on a large table, raises an error."""
    body = Statements(shape).render(
        "create_small_index",
        index=sql.Identifier(index.name),
        index_name=name_literal(shape.schema, index.name),
        table_name=name_literal(shape.schema, index.table),
        bytes=_table_bytes(shape, index),
        small=sql.Literal(SMALL_BYTES),
        creation=sql.SQL(index.creation(shape)),
    )
    return block(body)


def is_large(retrier: LockRetrier, index: Index) -> bool:
    """Whether building it in a transaction would block writers for too long."""
    query = _table_bytes(retrier.shape, index).as_string()
    return bool(asking(retrier.connection)(query, {})[0][0] > SMALL_BYTES)


def build_concurrently(retrier: LockRetrier, index: Index) -> None:
    """Build an index without blocking writers, or finish an earlier, interrupted build. Can take long."""
    table_name = name_literal(retrier.shape.schema, index.table)
    kind = _ask(retrier, "relation_kind", relation=table_name)[0][0]
    if kind == _PARTITIONED:
        _build_on_partitions(retrier, index)
    else:
        _build(retrier, index, index.name, index.table)


def _table_bytes(shape: Shape, index: Index) -> sql.SQL:
    return Statements(shape).part("table_bytes", table_name=name_literal(shape.schema, index.table))


def _build_on_partitions(retrier: LockRetrier, index: Index) -> None:
    """First on the parent only, so that new partitions get the index automatically; then on one partition at a time."""
    shape = retrier.shape
    parent_name = name_literal(shape.schema, index.name)
    exists = Statements(shape).render("has_relation", relation=parent_name)
    parent = unless(shape, exists, index.creation(shape, only=sql.SQL("only")))
    retrier.run(lambda: retrier.connection.execute(parent.encode()))
    for (partition,) in _ask(
        retrier, "partitions_without_index", table_name=name_literal(shape.schema, index.table), index_name=parent_name
    ):
        # Retention may drop a partition in the meantime.
        with suppress(psycopg.errors.UndefinedTable):
            _build_on_partition(retrier, index, str(partition))


def _build_on_partition(retrier: LockRetrier, index: Index, partition: str) -> None:
    name = bounded(f"{partition}_{index.name}")
    _build(retrier, index, name, partition)
    parts = {"index": sql.Identifier(index.name), "partition_index": sql.Identifier(name)}
    attach = Statements(retrier.shape).render("attach_index", **parts)
    retrier.run(lambda: retrier.connection.execute(attach.encode()))


def _build(retrier: LockRetrier, index: Index, name: str, table: str) -> None:
    parts = {"index": sql.Identifier(name), "table": sql.Identifier(table)}
    creation = index.creation(retrier.shape, **parts, concurrently=sql.SQL("concurrently if not exists"))
    index_name = name_literal(retrier.shape.schema, name)
    # If another session is building it, ours waits and then does nothing; if that build failed, we drop its rest.
    while (valid := _ask(retrier, "index_is_valid", index_name=index_name)) != [(True,)]:
        if valid:
            _clear_away(retrier, name, table)
        retrier.run_outside(creation)


def _clear_away(retrier: LockRetrier, name: str, table: str) -> None:
    statements = Statements(retrier.shape)
    index_name = name_literal(retrier.shape.schema, name)
    clearing = block(statements.render("drop_invalid_index", index=sql.Identifier(name), index_name=index_name))
    builders = statements.render("wait_for_builders", table=sql.Identifier(table))
    retrier.run(lambda: retrier.connection.execute(clearing.encode()), first=builders)


def _ask(retrier: LockRetrier, query: str, **parts: sql.Composable) -> list[tuple[object, ...]]:
    with committed(retrier.connection):
        rows = asking(retrier.connection)(Statements(retrier.shape).render(query, **parts), {})
    return [tuple(row) for row in rows]
