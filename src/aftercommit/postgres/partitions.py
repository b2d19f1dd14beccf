"""Partitions of the log: made ahead of the tip, dropped whole by retention. Neither ever blocks a writer.

A partition covers a fixed range of positions, so its bounds follow from its number and two programs make the same one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from aftercommit.errors import DatabaseError
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

POSITIONS_PER_PARTITION = 1_000_000
AHEAD = 3

_BOUNDS = re.compile(r"FROM \('(\d+)'\) TO \('(\d+)'\)")


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: positions from `lower` up to but not including `upper`."""

    name: str
    lower: int
    upper: int
    detaching: bool = False


def planned(number: int) -> Partition:
    """The partition of this number; the first holds positions 1 to a million."""
    lower = number * POSITIONS_PER_PARTITION + 1
    return Partition(f"log_{number:06d}", lower, lower + POSITIONS_PER_PARTITION)


def needed(position: int) -> list[Partition]:
    """The partitions that must exist while the tip is at this position."""
    current = position // POSITIONS_PER_PARTITION
    return [planned(number) for number in range(current, current + AHEAD)]


def existing(connection: psycopg.Connection[Any], shape: Shape) -> list[Partition]:
    """The partitions of the log, lowest first."""
    rows = connection.execute(Statements(shape)["partitions"], {"log": sql.Identifier(shape.schema, "log").as_string()})
    found = []
    for name, bounds, detaching in rows:
        match = _BOUNDS.search(bounds or "")
        if match:
            found.append(Partition(name, int(match[1]), int(match[2]), bool(detaching)))
    return found


def ensure(connection: psycopg.Connection[Any], shape: Shape) -> list[str]:
    """Make the partitions ahead of the tip that are missing; returns their names."""
    row = connection.execute(Statements(shape)["head"]).fetchone()
    if row is None:
        raise DatabaseError(f"{shape.schema}.head has no row: the schema is damaged, restore it from a backup")
    present = {partition.name for partition in existing(connection, shape)}
    made = []
    for partition in needed(row[0]):
        if partition.name not in present:
            with connection.transaction():
                for statement in _creation(shape, partition):
                    connection.execute(statement.encode())
            made.append(partition.name)
    return made


def drop_before(
    connection: psycopg.Connection[Any],
    shape: Shape,
    *,
    older_than: datetime,
    force: bool = False,
) -> list[str]:
    """Drop whole partitions whose newest event is older; one that a consumer has yet to read stays unless forced.

    The connection must be in autocommit mode: a partition is detached concurrently, which cannot be part of a transaction.
    """
    if not connection.autocommit:
        raise DatabaseError("retention needs a connection in autocommit mode: psycopg.connect(…, autocommit=True)")
    statements = Statements(shape)
    dropped = []
    for partition in existing(connection, shape):
        name = sql.Identifier(partition.name)
        newest = connection.execute(statements.render("last_of_partition", partition=name).encode()).fetchone()
        is_full = newest is not None and newest[0] == partition.upper - 1
        if newest is None or not is_full or newest[1] >= older_than:
            break
        if not force and connection.execute(statements["lagging_consumers"], {"position": newest[0]}).fetchone():
            break
        step = "finish_detach" if partition.detaching else "detach_partition"
        connection.execute(statements.render(step, partition=name).encode())
        connection.execute(statements.render("drop_partition", partition=name).encode())
        dropped.append(partition.name)
    return dropped


def script(shape: Shape) -> Iterator[str]:
    """The first partitions as plain SQL."""
    for partition in needed(0):
        yield from _creation(shape, partition)


def _creation(shape: Shape, partition: Partition) -> Iterator[str]:
    statements = Statements(shape)
    name = sql.Identifier(partition.name)
    yield statements.render("create_partition", partition=name)
    yield statements.render(
        "attach_partition", partition=name, lower=sql.Literal(partition.lower), upper=sql.Literal(partition.upper)
    )
