"""Rows to records: the one place that knows in which order the queries return an event's columns."""

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
    """A row of `load_due`: in common, lane, retry_count, scope."""
    made: Record = _record(*row[:COMMON], None, _scope(shape, row[COMMON + 2 :]), *row[COMMON : COMMON + 2])
    return made


def letter_record(row: Sequence[Any], shape: Shape) -> Record:
    """A row of `within_bytes`: in common, position, retry_count, ts, scope."""
    scope = _scope(shape, row[COMMON + 3 :])
    made: Record = _record(*row[: COMMON + 1], scope, 0, *row[COMMON + 1 : COMMON + 3])
    return made


def log_records(rows: Iterable[Sequence[Any]], shape: Shape) -> list[Record]:
    """Rows of `read_log`: in common, position, scope."""
    declared, upto = list(shape.scope), COMMON + 1
    # Lengths that differ would be a mistake of a query of ours; asking for every event is not cheap.
    return [_record(*row[:upto], dict(zip(declared, row[upto:]))) for row in rows]  # noqa: B905


def _scope(shape: Shape, values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(shape.scope, values, strict=True))
