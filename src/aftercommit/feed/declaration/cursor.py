"""Cursors: the place of an event in its strand, as text. Pure.

There are two formats: `TIME_AND_SEQ` (`2025-11-12T10:30:05.123Z#042`) and `POSITION` (`42`). The time in a cursor is
the time of the event in the log. After a restore, it shows whether the number still belongs to the same event.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import msgspec

from aftercommit.errors import BadParameter, InvalidCursor
from aftercommit.feed.declaration.entry import Entry

LARGEST: Final = 2**63 - 1


class Cursor(msgspec.Struct, frozen=True):
    """A place in a strand: after the event with this number. `ts` is None in formats without a time."""

    number: int
    ts: datetime | None = None


class CursorFormat(Protocol):
    """The text format of cursors."""

    @property
    def example(self) -> str:
        """An example, for documentation."""

    @property
    def pattern(self) -> str:
        """A regular expression that every cursor matches, for documentation."""

    def parse(self, text: str) -> Cursor:
        """Parse a cursor; InvalidCursor says what is wrong with the text."""

    def format(self, place: Entry | Cursor) -> str:
        """The text of a cursor, or of the cursor after an entry."""

    def fields(self, place: Entry | Cursor) -> dict[str, Any]:
        """The fields of an item from which a client can make its cursor; empty if there are none.

        Clients know `ts`, `seq` and `position`.
        """


def text_of(form: CursorFormat, place: Cursor | None) -> str | None:
    """The text of a cursor, or None."""
    return form.format(place) if place is not None else None


def timestamp(moment: datetime) -> str:
    """A time in ISO 8601, in UTC, with milliseconds and a Z, as in cursors and items."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat("T", "milliseconds")[:-6] + "Z"


def same_moment(one: datetime, other: datetime) -> bool:
    """Whether two times are the same in a cursor, which keeps milliseconds."""
    if one == other:
        return True
    return abs(one - other) < _MILLISECOND and one.microsecond // 1000 == other.microsecond // 1000


_MILLISECOND: Final = timedelta(milliseconds=1)
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})", re.ASCII)


def moment_of(parameter: str, text: str) -> datetime:
    """Parse the time in a request; BadParameter if it is not a time or has no time zone."""
    if _MOMENT.fullmatch(text) is None:
        expected = "must be a time as in 2025-11-12T10:30:05.123Z, with Z or an offset"
        # In a URL, a + that is not encoded becomes a blank.
        raise BadParameter(parameter, text, f"{expected}; encode + as %2B in the URL" if " " in text else expected)
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadParameter(parameter, text, "is not a valid time") from None


class TimeAndSeq:
    """`{ts}#{seq}`: a time in ISO 8601 with milliseconds and Z, and the number with at least three digits."""

    example: Final = "2025-11-12T10:30:05.123Z#042"
    pattern: Final = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z#\d{3,19}$"
    _cursor = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z)#(\d{3,19})", re.ASCII)
    _time = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+ -]\d{2}:?\d{2})?", re.ASCII)

    def parse(self, text: str) -> Cursor:
        """Parse a cursor, or raise InvalidCursor."""
        match = self._cursor.fullmatch(text)
        if match is None:
            raise InvalidCursor(text, "expected 'timestamp#seq'", self._remedy(text))
        number = int(match[2])
        try:
            # Ten times as fast as strptime.
            moment = datetime.fromisoformat(match[1])
        except ValueError:
            raise InvalidCursor(text, f"there is no such time as {match[1]}") from None
        if number > LARGEST:
            raise InvalidCursor(text, f"the sequence {match[2]} is too large")
        return Cursor(number, moment)

    def format(self, place: Entry | Cursor) -> str:
        """The text; a cursor without a time gets that of 1970, before every event."""
        moment = timestamp(place.ts) if place.ts is not None else "1970-01-01T00:00:00.000Z"
        return f"{moment}#{place.number:03d}"

    def fields(self, place: Entry | Cursor) -> dict[str, Any]:
        """Time and number."""
        return {"ts": timestamp(place.ts) if place.ts is not None else None, "seq": place.number}

    def _remedy(self, text: str) -> str:
        if self._time.fullmatch(text):
            # Browsers do not send what follows an unencoded # in a URL.
            return "and it ends before the '#': encode # as %23 in the URL"
        if "%23" in text:
            return "and its '#' is encoded twice: encode it once, as %23"
        return f"as in {self.example}"


class Position:
    """The number, as a decimal integer."""

    example: Final = "42"
    pattern: Final = r"^\d{1,19}$"
    _cursor = re.compile(r"\d{1,19}", re.ASCII)

    def parse(self, text: str) -> Cursor:
        """Parse a cursor, or raise InvalidCursor."""
        if self._cursor.fullmatch(text) is None or int(text) > LARGEST:
            raise InvalidCursor(text, f"expected an integer from 0 to {LARGEST}")
        return Cursor(int(text))

    def format(self, place: Entry | Cursor) -> str:
        """The number."""
        return str(place.number)

    def fields(self, place: Entry | Cursor) -> dict[str, Any]:
        """The number."""
        return {"position": place.number}


TIME_AND_SEQ: Final = TimeAndSeq()
"""Cursors with the time of an event and its number within its stream."""
POSITION: Final = Position()
"""Cursors that are positions in the log, as plain numbers."""
