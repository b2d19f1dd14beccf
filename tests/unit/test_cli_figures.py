"""Rates, quantiles and log lines of the command line: pure, so they are checked by value."""

import logging
from typing import Any

import pytest

from aftercommit.cli.figures import Sample, compare, quantile
from aftercommit.cli.logs import TextFormatter
from aftercommit.cli.output import printable

BOUNDS = (10.0, 20.0, 40.0)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([10, 0, 0, 0], 0.5, 5.0),
        ([0, 10, 0, 0], 0.5, 15.0),
        ([5, 5, 0, 0], 0.99, 19.8),
        ([99, 0, 1, 0], 0.99, 10.0),
        ([0, 0, 0, 3], 0.5, 40.0),
        ([1, 0, 0, 0], 1.0, 10.0),
    ],
)
def test_a_quantile_lies_straight_between_the_bounds_of_its_bucket(
    counts: list[int], share: float, expected: float | None
) -> None:
    found = quantile(counts, share, BOUNDS)
    assert found == (None if expected is None else pytest.approx(expected))


def test_rates_and_latency_are_those_between_two_samples_and_totals_those_of_the_later() -> None:
    before = Sample(at=100.0, published=1000, handled=900, failed=3, latency=(500, 500))
    now = Sample(at=104.0, published=1020, handled=940, failed=4, latency=(520, 500))
    figures = compare(before, now)
    assert (figures.published, figures.handled, figures.failed) == (1020, 940, 4)
    assert (figures.publish_rate, figures.handle_rate) == (5.0, 10.0)
    assert figures.p99_ms is not None
    assert figures.p99_ms <= 1.0


def test_the_first_sample_of_a_new_meter_has_no_histogram_yet() -> None:
    before = Sample(at=0.0, published=0, handled=0, failed=0, latency=())
    now = Sample(at=1.0, published=1, handled=0, failed=0, latency=(1, 0))
    assert compare(before, now).p50_ms == pytest.approx(0.5)


def record(event: str, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("aftercommit.relay", logging.WARNING, "", 0, event, None, None)
    made.__dict__.update(fields)
    return made


def test_a_text_line_stays_one_line_and_begins_with_what_people_look_for() -> None:
    error = 'line one\nline two \x1b[31mred "quoted"'
    line = TextFormatter().format(record("outbox_publish_failed", event_id="e-1", count=3, error=error, empty=None))
    assert line.partition(" ")[2] == (
        r'WARNING outbox_publish_failed error="line one\nline two \u001b[31mred \"quoted\"" event_id=e-1 count=3'
    )
    assert len(line.splitlines()) == 1


def test_control_characters_cannot_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb\rc\nd\te\x9b") == "a�[2Jb�c\nd\te�"
