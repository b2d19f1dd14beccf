"""What a client holds: the place of an event in its strand, as text. Pure.

Two forms are ready: `TIME_AND_SEQ` (`2025-11-12T10:30:05.123Z#042`) and `POSITION` (`42`). The time in a cursor is the
log's own, so it tells whether the number still means the same event: after a restore it may not.
"""

import re
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from aftercommit.errors import BadParameter, InvalidCursor
from aftercommit.feed.declaration.entry import Entry

LARGEST: Final = 2**63 - 1


class Cursor(msgspec.Struct, frozen=True):
    """A place in a strand: after the event of this number. `ts` is None where the form has no time."""

    number: int
    ts: datetime | None = None


class CursorFormat(Protocol):
    """How cursors look as text."""

    @property
    def example(self) -> str:
        """What one looks like, for documentation."""

    @property
    def pattern(self) -> str:
        """A regular expression that every cursor of this form matches, for documentation."""

    def parse(self, text: str) -> Cursor:
        """The cursor, or InvalidCursor with what is wrong with the text."""

    def format(self, place: Entry | Cursor) -> str:
        """The text for a cursor, or for the place of an entry."""

    def fields(self, place: Entry | Cursor) -> dict[str, Any]:
        """The fields of an item from which a client makes this cursor; none where an item does not tell it.

        Clients know `ts`, `seq` and `position`; a note with other fields they would take for an event.
        """


def text_of(form: CursorFormat, place: Cursor | None) -> str | None:
    """The text of a place, where there is one."""
    return form.format(place) if place is not None else None


def timestamp(moment: datetime) -> str:
    """ISO 8601 in UTC with milliseconds and a Z: the form of times in cursors and items."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"


def same_moment(one: datetime, other: datetime) -> bool:
    """Whether two times have the same form in a cursor, which keeps milliseconds."""
    return one is other or _in_milliseconds(one) == _in_milliseconds(other)


def _in_milliseconds(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})", re.ASCII)


def moment_of(parameter: str, text: str) -> datetime:
    """The time that a request asks for; BadParameter when it is none, or could be meant in more than one way."""
    if _MOMENT.fullmatch(text) is None:
        expected = "must be a time as in 2025-11-12T10:30:05.123Z, with Z or an offset"
        # A + that nobody has encoded has become a blank.
        raise BadParameter(parameter, text, f"{expected}; encode + as %2B in the URL" if " " in text else expected)
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadParameter(parameter, text, "must be a time: there is none like this") from None


class TimeAndSeq:
    """`{ts}#{seq}`: ISO 8601 with milliseconds and Z, and the number with at least three digits."""

    example: Final = "2025-11-12T10:30:05.123Z#042"
    pattern: Final = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z#\d{3,19}$"
    _cursor = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z)#(\d{3,19})", re.ASCII)
    _time = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+ -]\d{2}:?\d{2})?", re.ASCII)

    def parse(self, text: str) -> Cursor:
        """The cursor, or InvalidCursor."""
        match = self._cursor.fullmatch(text)
        if match is None:
            raise InvalidCursor(text, "expected 'timestamp#seq'", self._remedy(text))
        number = int(match[2])
        try:
            # The end of its form is fixed, and datetime reads it ten times as fast as strptime.
            moment = datetime.fromisoformat(match[1])
        except ValueError:
            raise InvalidCursor(text, f"there is no such time as {match[1]}") from None
        if number > LARGEST:
            raise InvalidCursor(text, f"the sequence {match[2]} is too large")
        return Cursor(number, moment)

    def format(self, place: Entry | Cursor) -> str:
        """The text; a cursor without a time stands before everything."""
        moment = timestamp(place.ts) if place.ts is not None else "1970-01-01T00:00:00.000Z"
        return f"{moment}#{place.number:03d}"

    def fields(self, place: Entry | Cursor) -> dict[str, Any]:
        """Both parts of it."""
        return {"ts": timestamp(place.ts) if place.ts is not None else None, "seq": place.number}

    def _remedy(self, text: str) -> str:
        if self._time.fullmatch(text):
            # A browser keeps what follows a # to itself: this is where an unencoded one ends.
            return "and it ends before the '#': encode # as %23 in the URL"
        if "%23" in text:
            return "and its '#' is encoded twice: encode it once, as %23"
        return f"as in {self.example}"


class Position:
    """The number alone, as a decimal integer."""

    example: Final = "42"
    pattern: Final = r"^\d{1,19}$"
    _cursor = re.compile(r"\d{1,19}", re.ASCII)

    def parse(self, text: str) -> Cursor:
        """The cursor, or InvalidCursor."""
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
"""Cursors made of an event's time and its number within its stream."""
POSITION: Final = Position()
"""Cursors that are positions of the log, as plain numbers."""
