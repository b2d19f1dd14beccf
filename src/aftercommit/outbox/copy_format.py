"""Encodes rows in the binary format of COPY. Pure, and the same bytes for every driver."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any
from uuid import UUID

from aftercommit.outbox.row_maker import (
    AGGREGATE_ID,
    AGGREGATE_TYPE,
    CAUSATION,
    CORRELATION,
    ID,
    OCCURRED,
    PAYLOAD,
    EventRow,
    EventRows,
)

# The server works on a chunk while the client encodes the next one.
ROWS_PER_CHUNK = 100

_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_END = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_VARCHAR_OID = 1043

_length = Struct("!i").pack
_smallint = Struct("!h").pack
_bigint = Struct("!q").pack
_array_head = Struct("!iiIii").pack
_empty_array = Struct("!iiI").pack
_row_head = Struct("!hi16s").pack


def chunks(rows: EventRows) -> Iterator[bytes]:
    """The data of a COPY of these rows."""
    constant = _Constant()
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        parts = [_SIGNATURE] if start == 0 else []
        for row in rows[start : start + ROWS_PER_CHUNK]:
            parts += _row(row, constant)
        yield b"".join(parts)
    yield _END


class _Constant:
    """The encoded fields that most rows of a publish share, kept from one row to the next."""

    def __init__(self) -> None:
        self._of: Sequence[Any] = ()
        self.fields: tuple[bytes, bytes, bytes] = (b"", b"", b"")

    def shared_by(self, row: EventRow) -> tuple[bytes, bytes, bytes]:
        """The fields around the aggregate id, before the correlation id, and behind the payload."""
        of = (row[AGGREGATE_TYPE], *row[AGGREGATE_ID + 1 : CORRELATION], *row[PAYLOAD + 1 :])
        if of != self._of:
            self._of = of
            self.fields = (
                _field(row[AGGREGATE_TYPE]),
                b"".join([_text(row[AGGREGATE_ID + 1]), _version(row[OCCURRED - 1]), _field(row[OCCURRED])]),
                b"".join(map(_field, row[PAYLOAD + 1 :])),
            )
        return self.fields


def _row(row: EventRow, constant: _Constant) -> Sequence[bytes]:
    """The parts of one row. This runs for every event of a bulk publish: no call that can be avoided."""
    aggregate_type, event_type, declared = constant.shared_by(row)
    event_id: UUID = row[ID]
    aggregate_id = row[AGGREGATE_ID].encode()
    correlation = (row[CORRELATION] or str(event_id)).encode()
    causation = row[CAUSATION]
    payload = row[PAYLOAD].encode()
    return (
        _row_head(len(row), 16, event_id.bytes),
        aggregate_type,
        _length(len(aggregate_id)),
        aggregate_id,
        event_type,
        _length(len(correlation)),
        correlation,
        _NULL if causation is None else _field(causation),
        _length(len(payload)),
        payload,
        declared,
    )


def _field(value: Any) -> bytes:
    return _FIELDS[type(value)](value) if type(value) in _FIELDS else _of_subclass(value)


def _of_subclass(value: Any) -> bytes:
    """A field whose class a driver or an application derived from one of ours."""
    return next(encode for kind, encode in _FIELDS.items() if isinstance(value, kind))(value)


def _text(value: str) -> bytes:
    data = value.encode()
    return _length(len(data)) + data


def _version(value: int) -> bytes:
    return _length(2) + _smallint(value)


def _moment(value: datetime) -> bytes:
    return _length(8) + _bigint((value - _EPOCH) // _MICROSECOND)


def _readers(value: Sequence[str]) -> bytes:
    if value:
        head = _array_head(1, 0, _VARCHAR_OID, len(value), 1)
        data = head + b"".join(map(_text, value))
    else:
        data = _empty_array(0, 0, _VARCHAR_OID)
    return _length(len(data)) + data


_FIELDS: dict[type[Any], Callable[[Any], bytes]] = {
    str: _text,
    int: lambda value: _length(8) + _bigint(value),
    UUID: lambda value: _length(16) + value.bytes,
    datetime: _moment,
    tuple: _readers,
}
