"""Cursors as text: what is written is read back, and what cannot be one is refused with what is wrong with it."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as some

from aftercommit.errors import BadParameter, InvalidCursor
from aftercommit.feed import POSITION, TIME_AND_SEQ, Cursor, timestamp
from aftercommit.feed.declaration.cursor import moment_of

NOON = datetime(2025, 11, 12, 10, 30, 5, 123_456, UTC)
MOMENTS = some.datetimes(datetime(1970, 1, 1), datetime(9998, 1, 1), timezones=some.just(UTC))  # noqa: DTZ001
NUMBERS = some.integers(0, 2**63 - 1)


@pytest.mark.contract("L4")
def test_a_cursor_has_the_time_with_milliseconds_and_at_least_three_digits():
    assert TIME_AND_SEQ.format(Cursor(42, NOON)) == "2025-11-12T10:30:05.123Z#042"
    assert TIME_AND_SEQ.format(Cursor(12345, NOON.replace(microsecond=0))) == "2025-11-12T10:30:05.000Z#12345"
    assert TIME_AND_SEQ.format(Cursor(0)) == "1970-01-01T00:00:00.000Z#000"


def test_times_are_those_of_utc_whatever_zone_they_come_in():
    assert timestamp(NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))) == "2025-11-12T10:30:05.123Z"


@given(NUMBERS, MOMENTS)
def test_what_is_written_is_read_back(number: int, moment: datetime):
    text = TIME_AND_SEQ.format(Cursor(number, moment))

    assert TIME_AND_SEQ.format(TIME_AND_SEQ.parse(text)) == text
    assert TIME_AND_SEQ.parse(text).number == number


@given(some.lists(some.tuples(MOMENTS, NUMBERS), min_size=2, max_size=2))
def test_cursors_of_one_width_sort_as_text_like_their_places(places: list[tuple[datetime, int]]):
    first, second = sorted((timestamp(moment), number) for moment, number in places)

    assert first <= second


@pytest.mark.contract("L5")
@pytest.mark.parametrize("text", ["2025-11-12T10:30:05.123Z", "2025-11-12T10:30:05Z", "2025-11-12T10:30:05.123 00:00"])
def test_a_cursor_cut_off_at_its_hash_says_to_encode_it(text: str):
    with pytest.raises(InvalidCursor, match="encode # as %23") as caught:
        TIME_AND_SEQ.parse(text)
    assert caught.value.text == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "as in 2025"),
        ("invalid-format", "expected 'timestamp#seq'"),
        ("2025-11-12T10:30:05.123Z#", "expected 'timestamp#seq'"),
        ("2025-11-12T10:30:05.123Z#42", "expected 'timestamp#seq'"),
        ("2025-11-12T10:30:05.123Z#-42", "expected 'timestamp#seq'"),
        ("2025-11-12T10:30:05.123Z#٠٤٢", "expected 'timestamp#seq'"),
        ("2025-11-12T10:30:05.123Z#042 ", "expected 'timestamp#seq'"),
        ("2025-11-12T10:30:05.123Z#042\n", "expected 'timestamp#seq'"),
        ("2025-11-12T10:30:05.123Z%23042", "encoded twice"),
        ("2025-11-12T10:30:05.123+00:00#042", "expected 'timestamp#seq'"),
        ("2025-13-12T10:30:05.123Z#042", "no such time"),
        ("0000-01-01T00:00:00.000Z#042", "no such time"),
        ("2025-11-12T25:30:05.123Z#042", "no such time"),
        ("2025-11-12T10:30:05.123Z#9999999999999999999", "too large"),
        ("2025-11-12T10:30:05.123Z#" + "9" * 5000, "expected 'timestamp#seq'"),
    ],
)
def test_what_is_no_cursor_is_refused_with_the_reason(text: str, reason: str):
    with pytest.raises(InvalidCursor, match=reason):
        TIME_AND_SEQ.parse(text)


@given(some.text())
def test_any_text_is_a_cursor_or_refused(text: str):
    for form in (TIME_AND_SEQ, POSITION):
        with suppress(InvalidCursor):
            assert form.parse(text).number >= 0


@given(NUMBERS)
def test_a_position_is_a_plain_integer(number: int):
    assert POSITION.parse(POSITION.format(Cursor(number))) == Cursor(number)


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1.0", "1e3", "1_000", "٤", "9223372036854775808", "9" * 5000])
def test_what_is_no_position_is_refused(text: str):
    with pytest.raises(InvalidCursor, match="expected an integer from 0"):
        POSITION.parse(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2025-11-12T10:30:05.123Z", datetime(2025, 11, 12, 10, 30, 5, 123_000, UTC)),
        ("2025-11-12T10:30Z", datetime(2025, 11, 12, 10, 30, tzinfo=UTC)),
        ("2025-11-12T12:30:05+02:00", datetime(2025, 11, 12, 10, 30, 5, tzinfo=UTC)),
        ("2025-11-12T10:30:05.123456789Z", datetime(2025, 11, 12, 10, 30, 5, 123_456, UTC)),
    ],
)
def test_a_moment_is_read_with_its_zone(text: str, moment: datetime):
    assert moment_of("fromTime", text) == moment


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a time as in"),
        ("now", "must be a time as in"),
        ("2025-11-12", "must be a time as in"),
        ("2025-11-12T10:30:05", "with Z or an offset"),
        ("2025-11-12T10:30:05 02:00", "%2B"),
        ("٢٠٢٥-11-12T10:30:05Z", "must be a time as in"),
        ("2025-02-30T10:30:05Z", "is not a valid time"),
        ("2025-11-12T10:30:60Z", "is not a valid time"),
        ("9999-12-31T23:59:59-10:00", "is not a valid time"),
    ],
)
def test_what_is_no_moment_is_refused_with_what_is_wrong(text: str, said: str):
    with pytest.raises(BadParameter, match=said):
        moment_of("fromTime", text)
