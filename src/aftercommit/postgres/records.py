"""Turns rows of queries into records. The declared columns come last in a row: scope, then audience."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from aftercommit.event.envelope import Record
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.shape import Shape

# The first columns of every query, in the order of the fields of Record: envelope, payload, created_at, seq.
COMMON: Final = 11
PAYLOAD: Final = 8
# The most bytes of payloads to read at once, which bounds the memory of a service.
BYTES_AT_ONCE: Final = 8 << 20
# So few new events, with so small payloads, are handed from part to part in a process.
FEW_EVENTS: Final = 16
FEW_BYTES: Final = 64 << 10
# Without types: the checker does not know those of columns.
_record: Any = Record


def outbox_records(rows: Iterable[Sequence[Any]], shape: Shape, *, again: bool) -> list[Record]:
    """Rows of `load_due`: common columns, lane, retry_count, declared columns. `again`: they were tried before."""
    upto = COMMON + 2
    if shape.audience:
        read = ((row, *declared_values(shape, row[upto:])) for row in rows)
        return [_record(*row[:COMMON], None, scope, *row[COMMON:upto], None, again, who) for row, scope, who in read]
    names = list(shape.scope)
    # Without `strict`, as below.
    return [
        _record(*row[:COMMON], None, dict(zip(names, row[upto:])), *row[COMMON:upto], None, again)  # noqa: B905
        for row in rows
    ]


async def read_log_records(
    connection: AsyncConnection, statement: bytes, parameters: Mapping[str, Any], shape: Shape
) -> list[Record]:
    """Run `read_log`, or a statement with the same columns. In binary, times and ids cost half as much to load."""
    cursor = await connection.execute(statement, parameters, prepare=True, binary=True)
    return log_records(await cursor.fetchall(), shape)


def letter_record(row: Sequence[Any], shape: Shape) -> Record:
    """A row of `within_bytes`: common columns, position, retry_count, ts, declared columns."""
    scope, audience = declared_values(shape, row[COMMON + 3 :])
    made: Record = _record(*row[: COMMON + 1], scope, 0, *row[COMMON + 1 : COMMON + 3], audience=audience)
    return made


def log_records(rows: Iterable[Sequence[Any]], shape: Shape) -> list[Record]:
    """Rows of `read_log`: common columns, position, declared columns."""
    return [_logged(row, COMMON + 1, shape) for row in rows] if shape.audience else _logged_alone(rows, shape)


def feed_rows(rows: Iterable[Sequence[Any]], shape: Shape) -> list[tuple[Record, Any, int | None]]:
    """Rows of `feed_columns`: a record, its time in the log, and its number in its stream."""
    upto = COMMON + 1
    if shape.audience:
        return [(_logged(row, upto + 2, shape), row[upto], row[upto + 1]) for row in rows]
    declared = list(shape.scope)
    return [
        (_record(*row[:upto], dict(zip(declared, row[upto + 2 :]))), row[upto], row[upto + 1])  # noqa: B905
        for row in rows
    ]


def declared_values(shape: Shape, values: Sequence[Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Scope and audience, from the declared columns."""
    if not shape.audience:
        return dict(zip(shape.scope, values, strict=True)), ()
    return dict(zip(shape.scope, values[:-1], strict=True)), tuple(values[-1])


def _logged(row: Sequence[Any], first: int, shape: Shape) -> Record:
    scope, audience = declared_values(shape, row[first:])
    made: Record = _record(*row[: COMMON + 1], scope, audience=audience)
    return made


def _logged_alone(rows: Iterable[Sequence[Any]], shape: Shape) -> list[Record]:
    """Rows of an outbox without an audience."""
    declared, upto = list(shape.scope), COMMON + 1
    # Without `strict`, which costs time for every event: our own queries return the right columns.
    return [_record(*row[:upto], dict(zip(declared, row[upto:]))) for row in rows]  # noqa: B905
