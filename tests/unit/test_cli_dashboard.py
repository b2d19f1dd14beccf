"""What `aftercommit up` shows on a small terminal: each figure on a line, each trouble once, with what to do."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, ConsoleDimensions
from rich.live import Live

from aftercommit.cli.dashboard import LivePanel, Screenful
from aftercommit.cli.figures import Figures
from aftercommit.cli.logs import BriefFormatter, TextFormatter, WithoutTraceback, logging_to
from aftercommit.cli.recent import RecentLines, ends_are_heard
from aftercommit.operate.overview import ConsumerState, Overview, RelayState
from aftercommit.postgres.resilience import logger as database_logger
from aftercommit.telemetry import JsonFormatter, log_event

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
        log_event(logger, logging.WARNING, "event_handling_failed", error, **{**about, **why, **fields})
    finally:
        logger.removeHandler(handler)
    return kept[0]


def test_a_failed_attempt_is_one_line_and_says_whose_what_when_again_and_why(record: logging.LogRecord) -> None:
    line = BriefFormatter().format(record)
    assert (
        line[9:] == "customer-totals: order.paid, attempt 2, next in 0.5 s: ValueError: the bank did not answer (01a1)"
    )
    assert ", attempt 2, no more retries: " in BriefFormatter().format(failure(retry_in=None))
    assert ", attempt 2, parked: " in BriefFormatter().format(failure())


def test_without_its_traceback_a_record_is_one_line_in_every_format(record: logging.LogRecord) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        assert "Traceback" in formatter.format(record)
        assert "Traceback" not in WithoutTraceback(formatter).format(record)
        assert "Traceback" in formatter.format(record), "others still see it"


def drawn(names: Sequence[str], recent: RecentLines, width: int, height: int = 25) -> list[str]:
    """The lines of a panel on a terminal of this size."""
    consumer = ConsumerState("customer-totals-of-all-customers", 1, 1_234_567, False, "a-host-with-a-name-4711")
    sights = [(name, Overview(name, 5, 1.0, 0, 0, 1_234_567, (consumer,), (), ()), FIGURES) for name in names]
    console = Console(width=width, height=height, highlight=False)
    with console.capture() as shown:
        console.print(Screenful(sights, recent.lines))
    return shown.get().splitlines()


def said(recent: RecentLines, level: int, name: str, **fields: object) -> None:
    """Let the panel hear a line of ours, as it does while `up` runs; the database's, as good as any."""
    with logging_to(recent, logging.WARNING), ends_are_heard():
        log_event(database_logger, level, name, **fields)
        assert not logging.getLogger("aftercommit.relay").isEnabledFor(logging.INFO), "it would speak of every event"


def refused(recent: RecentLines, user: int) -> None:
    """The feed does not believe the bot."""
    error, remedy = "The feed answered 401 unauthorized: Missing or invalid token", "start the bot with a token: " * 4
    about = {"user_id": user, "chat_id": 700 + user, "retry_in": 60.0 + user}
    said(recent, logging.WARNING, "bot_poll_failed", **about, error=error, remedy=f"{remedy}that is the END")


def test_the_panel_fits_a_small_terminal_and_no_figure_wraps() -> None:
    recent = RecentLines(BriefFormatter())
    for attempt in range(9):
        recent.emit(failure(retry_in=0.5, attempt=attempt))
    lines = drawn(["demo_orders"], recent, 80)
    assert len(lines) <= 25
    assert all(len(line) <= 80 for line in lines)
    (published,) = [line for line in lines if "published" in line]
    assert "1,234,567  12345.6/s, to the log p50 12ms, p99 1" in published
    assert [number for number in range(9) if any(f"attempt {number}" in line for line in lines)] == [5, 6, 7, 8]


@pytest.mark.parametrize("width", [80, 120])
def test_names_of_outboxes_are_shown_in_full_and_so_is_what_to_do(width: int) -> None:
    recent = RecentLines(BriefFormatter())
    refused(recent, 1)
    name = "investigation_events_of_a_schema_with_a_long_name"
    lines = drawn([name, "tasks_events"], recent, width)
    assert any(name in line for line in lines)
    assert any("that is the END" in line for line in lines)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= 25


def test_where_there_is_no_room_the_oldest_lines_are_left_out_or_cut_off() -> None:
    recent = RecentLines(BriefFormatter())
    for number in range(4):
        said(recent, logging.WARNING, f"trouble_{number}", error="x" * 60)
    lines = drawn(["demo_orders"], recent, 80, height=16)
    assert len(lines) <= 16
    assert [number for number in range(4) if any(f"trouble_{number}" in line for line in lines)] == [1, 2, 3]
    assert [line.strip("│ ").endswith(" …") for line in lines if "trouble_" in line] == [True, False, False]


def test_what_is_said_again_is_one_line_that_says_how_often_and_goes_when_it_is_not_said_any_more() -> None:
    now = 0.0
    recent = RecentLines(BriefFormatter(), clock=lambda: now)
    said(recent, logging.WARNING, "chats_in_use", remedy="stop the other one")
    for user in (1, 2, 3):
        refused(recent, user)
    before, line = recent.lines
    assert "chats_in_use" in before
    assert line.startswith("3× ")
    now = 122.0
    assert recent.lines == [before, line], "the next attempt may still be under way"
    now = 124.0
    assert recent.lines == [before], "what is said once stays"


def test_a_bot_that_polls_is_told_only_when_it_did_not_before() -> None:
    recent = RecentLines(BriefFormatter())
    said(recent, logging.INFO, "bot_polling", links=3)
    assert recent.lines == []
    said(recent, logging.ERROR, "bot_not_connected", remedy="/connect asks once more")
    said(recent, logging.INFO, "bot_polling", links=3)
    [line] = recent.lines
    assert "bot_polling" in line


def test_an_outage_that_is_over_for_everybody_is_not_shown_any_more() -> None:
    recent = RecentLines(BriefFormatter(), 2)
    said(recent, logging.ERROR, "bot_not_connected", remedy="a trouble that lasts")
    for service in ("relay", "listener"):
        said(recent, logging.WARNING, "database_is_unavailable", service=service, error="the server is shutting down")
    said(recent, logging.INFO, "database_is_back", service="relay", attempts=2)
    said(recent, logging.INFO, "relay_started", service="relay")
    assert [line.split(" service")[0].split()[-1] for line in recent.lines] == ['down"', "database_is_back"]
    said(recent, logging.INFO, "database_is_back", service="listener", attempts=3)
    lasting, line = recent.lines
    assert "bot_not_connected" in lasting, "it is seen again"
    assert line.startswith("2× ")
    assert "database_is_back" in line


def test_the_panel_is_drawn_again_only_when_something_has_changed() -> None:
    """A figure, a log line or the size of the terminal. What is not shown does not count: the age of a report."""
    written, recent = StringIO(), RecentLines(BriefFormatter())
    console = Console(file=written, force_terminal=True, width=80, height=25)
    seen = Overview("shop", 0, 0.0, 0, 0, 7, (), (RelayState("r", 0.1, 64),), ())
    with Live(console=console, auto_refresh=False) as live:
        panel = LivePanel(live, recent)

        def draws(seen: Overview, figures: Figures = FIGURES) -> bool:
            before = written.tell()
            panel.show([("shop", seen, figures)])
            return written.tell() > before

        assert draws(seen)
        assert not draws(replace(seen, relays=(RelayState("r", 1.1, 64),)))
        assert draws(replace(seen, head=8))
        assert not draws(replace(seen, head=8))
        assert draws(replace(seen, head=8), replace(FIGURES, handled=1))
        assert draws(seen)
        said(recent, logging.WARNING, "relay_is_slow")
        assert draws(seen)
        assert not draws(seen)
        console.size = ConsoleDimensions(60, 20)
        assert draws(seen)
