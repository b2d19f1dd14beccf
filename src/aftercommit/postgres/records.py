"""Rows to records: the one place that knows in which order the queries return an event's columns."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from aftercommit.event.envelope import Record
from aftercommit.postgres.shape import Shape

# What `read_log`, `within_bytes` and `load_due` return before the scope columns, in the order of the fields of Record.
LOG_COLUMNS: Final = 16
OUTBOX_COLUMNS: Final = 13
# So many bytes of payloads are read at once, however many events that is: it bounds the memory of a service.
BYTES_AT_ONCE: Final = 8 << 20


# Columns have no types for the checker; the tests of the queries know them.
_record: Any = Record


def outbox_record(row: Sequence[Any], shape: Shape) -> Record:
    """A row of `load_due`."""
    made: Record = _record(*row[:OUTBOX_COLUMNS], scope=_scope(shape, row[OUTBOX_COLUMNS:]))
    return made


def log_records(rows: Iterable[Sequence[Any]], shape: Shape) -> list[Record]:
    """Rows of `read_log` and `within_bytes`."""
    return [_record(*row[:LOG_COLUMNS], _scope(shape, row[LOG_COLUMNS:])) for row in rows]


def _scope(shape: Shape, values: Sequence[Any]) -> dict[str, Any]:
    # Lengths that differ would be a mistake of a query of ours; asking for every event is not cheap.
    return dict(zip(shape.scope, values))  # noqa: B905
