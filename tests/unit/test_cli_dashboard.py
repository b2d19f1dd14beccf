"""What `aftercommit up` shows on a small terminal: every figure on a line of its own, every failure on one."""

import logging

import pytest
from rich.console import Console

from aftercommit.cli.dashboard import RecentLines, panel
from aftercommit.cli.figures import Figures
from aftercommit.cli.logs import BriefFormatter, TextFormatter, WithoutTraceback
from aftercommit.postgres.overview import ConsumerState, Overview
from aftercommit.telemetry import JsonFormatter, say

FIGURES = Figures(1_234_567, 12_345.6, 1_234_567, 12_345.6, 12_345, 12.3, 12_345.0)


@pytest.fixture
def record() -> logging.LogRecord:
    """An attempt that failed, as a worker logs it."""
    return failure(retry_in=0.5123)


def failure(**fields: object) -> logging.LogRecord:
    """A log record of a failed attempt."""
    kept: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    logger = logging.getLogger("aftercommit.test")
    handler = Keep()
    logger.addHandler(handler)
    try:
        raise ValueError("the bank did not\nanswer")
    except ValueError as error:
        about = {"consumer": "customer-totals", "event_type": "order.paid", "event_id": "01a1", "attempt": 2}
        why = {"error": str(error), "error_class": "ValueError"}
        say(logger, logging.WARNING, "event_handling_failed", error, **about, **why, **fields)
    finally:
        logger.removeHandler(handler)
    return kept[0]


def test_a_failed_attempt_is_one_line_and_says_whose_what_when_again_and_why(record: logging.LogRecord) -> None:
    line = BriefFormatter().format(record)
    assert (
        line[9:] == "customer-totals: order.paid, attempt 2, again in 0.5 s: ValueError: the bank did not answer (01a1)"
    )
    assert ", attempt 2, the last one: " in BriefFormatter().format(failure(retry_in=None))
    assert ", attempt 2, parked: " in BriefFormatter().format(failure())


def test_without_its_traceback_a_record_is_one_line_in_every_format(record: logging.LogRecord) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        assert "Traceback" in formatter.format(record)
        assert "Traceback" not in WithoutTraceback(formatter).format(record)
        assert "Traceback" in formatter.format(record), "others still see it"


def test_the_panel_fits_a_small_terminal_and_no_figure_wraps(record: logging.LogRecord) -> None:
    recent = RecentLines(BriefFormatter())
    for _ in range(9):
        recent.emit(record)
    consumer = ConsumerState("customer-totals-of-all-customers", 1, 1_234_567, False, "a-host-with-a-name-4711")
    seen = Overview("demo_orders", 5, 1.0, 0, 0, 1_234_567, (consumer,), (), ())
    console = Console(width=80, height=25, highlight=False)
    with console.capture() as shown:
        console.print(panel([("demo_orders", seen, FIGURES)], recent.lines))
    lines = shown.get().splitlines()
    assert len(lines) <= 16
    assert all(len(line) <= 80 for line in lines)
    (published,) = [line for line in lines if "published" in line]
    assert "1,234,567  12345.6/s, to the log p50 12ms, p99 1" in published
    assert sum("attempt 2" in line for line in lines) == 4
