"""Encodes rows in the binary format of COPY. Pure, and the same bytes for every driver."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any
from uuid import UUID

from aftercommit.outbox.row_maker import (
    AGGREGATE_TYPE,
    OCCURRED,
    PAYLOAD,
    TYPE,
    VERSION,
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
_row_head = Struct("!hi").pack


def chunks(rows: EventRows) -> Iterator[bytes]:
    """The data of a COPY of these rows."""
    common = _CommonFields()
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        parts = [_SIGNATURE] if start == 0 else []
        _encode(rows[start : start + ROWS_PER_CHUNK], common, parts)
        yield b"".join(parts)
    yield _END


class _CommonFields:
    """The encoded fields that most rows of a publish share, kept from one row to the next."""

    def __init__(self) -> None:
        self.type: str | None = None
        self.occurred: datetime | None = None
        self.declared: Sequence[Any] = ()
        self.fields = (b"", b"", b"", b"")

    def of(self, row: EventRow) -> tuple[bytes, bytes, bytes, bytes]:
        """The bytes before the id, before the aggregate id, before the correlation id, and behind the payload."""
        self.type, self.occurred, self.declared = row[TYPE], row[OCCURRED], list(row[PAYLOAD + 1 :])
        self.fields = (
            _row_head(len(row), 16),
            _field(row[AGGREGATE_TYPE]),
            b"".join([_text(row[TYPE]), _version(row[VERSION]), _field(row[OCCURRED])]),
            b"".join(map(_field, self.declared)),
        )
        return self.fields


def _encode(rows: EventRows, common: _CommonFields, parts: list[bytes]) -> None:
    """Add the parts of these rows. This loop is what a bulk publish costs: no call that can be avoided."""
    head, aggregate_type, event_type, declared = common.fields
    for row in rows:
        event_id, _, aggregate_id, name, _, occurred, correlation, causation, payload, *values = row
        if name is not common.type or occurred is not common.occurred or values != common.declared:
            head, aggregate_type, event_type, declared = common.of(row)
        identity = event_id.int.to_bytes(16, "big")
        if correlation is None:
            digits = identity.hex()
            story = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()
        else:
            story = correlation.encode()
        aggregate, data = aggregate_id.encode(), payload.encode()
        parts += (
            head,
            identity,
            aggregate_type,
            _length(len(aggregate)),
            aggregate,
            event_type,
            _length(len(story)),
            story,
            _NULL if causation is None else _field(causation),
            _length(len(data)),
            data,
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
