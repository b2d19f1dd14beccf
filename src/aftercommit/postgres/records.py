"""Rows to records: the one place that knows in which order the queries return an event's columns.

What the declaration adds to an event stands last in a row: the scope, and behind it the audience.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from aftercommit.event.envelope import Record
from aftercommit.postgres.shape import Shape

# What every query returns first, in the order of the fields of Record: envelope, payload, created_at, seq.
COMMON: Final = 11
# So many bytes of payloads are read at once, however many events that is: it bounds the memory of a service.
BYTES_AT_ONCE: Final = 8 << 20


# Columns have no types for the checker; the tests of the queries know them.
_record: Any = Record


def outbox_record(row: Sequence[Any], shape: Shape) -> Record:
    """A row of `load_due`: in common, lane, retry_count, what is declared."""
    scope, audience = declared_values(shape, row[COMMON + 2 :])
    made: Record = _record(*row[:COMMON], None, scope, *row[COMMON : COMMON + 2], audience=audience)
    return made


def letter_record(row: Sequence[Any], shape: Shape) -> Record:
    """A row of `within_bytes`: in common, position, retry_count, ts, what is declared."""
    scope, audience = declared_values(shape, row[COMMON + 3 :])
    made: Record = _record(*row[: COMMON + 1], scope, 0, *row[COMMON + 1 : COMMON + 3], audience=audience)
    return made


def log_records(rows: Iterable[Sequence[Any]], shape: Shape) -> list[Record]:
    """Rows of `read_log`: in common, position, what is declared."""
    return [_logged(row, COMMON + 1, shape) for row in rows] if shape.audience else _logged_alone(rows, shape)


def feed_rows(rows: Iterable[Sequence[Any]], shape: Shape) -> list[tuple[Record, Any, int | None]]:
    """Rows of `feed_columns`: each event as a record, with its time in the log and its number in its stream."""
    upto = COMMON + 1
    if shape.audience:
        return [(_logged(row, upto + 2, shape), row[upto], row[upto + 1]) for row in rows]
    declared = list(shape.scope)
    return [
        (_record(*row[:upto], dict(zip(declared, row[upto + 2 :]))), row[upto], row[upto + 1])  # noqa: B905
        for row in rows
    ]


def declared_values(shape: Shape, values: Sequence[Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The scope and the audience of an event, from the columns that its declaration adds."""
    if not shape.audience:
        return dict(zip(shape.scope, values, strict=True)), ()
    return dict(zip(shape.scope, values[:-1], strict=True)), tuple(values[-1])


def _logged(row: Sequence[Any], first: int, shape: Shape) -> Record:
    scope, audience = declared_values(shape, row[first:])
    made: Record = _record(*row[: COMMON + 1], scope, audience=audience)
    return made


def _logged_alone(rows: Iterable[Sequence[Any]], shape: Shape) -> list[Record]:
    """Where scope is all that is declared."""
    declared, upto = list(shape.scope), COMMON + 1
    # Lengths that differ would be a mistake of a query of ours; asking for every event is not cheap.
    return [_record(*row[:upto], dict(zip(declared, row[upto:]))) for row in rows]  # noqa: B905
