"""Lengths of time are written the same way wherever an option takes one."""

from datetime import UTC, datetime, timedelta

import click
import pytest

from aftercommit.cli.durations import parse_duration, shown_duration
from aftercommit.cli.retention import Duration
from aftercommit.cli.selecting import selection_options
from aftercommit.operate import Selection

WRITTEN = [
    ("45s", timedelta(seconds=45)),
    ("15m", timedelta(minutes=15)),
    ("1.5h", timedelta(minutes=90)),
    ("7d", timedelta(days=7)),
    ("2w", timedelta(weeks=2)),
]


@pytest.mark.parametrize(("text", "time"), WRITTEN)
def test_every_unit_and_fractions_are_read(text: str, time: timedelta) -> None:
    assert parse_duration(text) == time
    assert Duration().convert(text, None, None) == time


@pytest.mark.parametrize("text", ["", "5", "d", "-1d", "1e3d", "1 d", "1y", "٣d", "2026-03-01"])
def test_what_is_no_length_of_time_is_none(text: str) -> None:
    assert parse_duration(text) is None


def test_a_length_is_shown_as_it_is_written() -> None:
    for text in ("45s", "15m", "90m", "36h", "14d", "1.5s"):
        time = parse_duration(text)
        assert time is not None
        assert shown_duration(time) == text


@pytest.mark.parametrize(("text", "time"), WRITTEN)
def test_a_selection_takes_the_same_as_retention(text: str, time: timedelta) -> None:
    @click.command()
    @selection_options
    def command(selection: Selection) -> Selection:
        return selection

    since = command.main(["--since", text], standalone_mode=False).since
    assert abs(datetime.now(UTC) - time - since) < timedelta(minutes=1)
