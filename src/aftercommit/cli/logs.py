"""Log lines on stderr: one per record, as JSON for machines or as text for people."""

import copy
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from aftercommit.cli.output import printable
from aftercommit.settings import Settings
from aftercommit.telemetry import JsonFormatter

_OURS = "aftercommit"
# Always logged from INFO on: `database_is_back` is not a warning, but must follow the warning about the outage.
_OUTAGES = "aftercommit.database"
# A terminal may cut off a long line, so these fields come first.
_FIRST = ("error", "remedy", "event_type", "consumer", "attempt", "retry_in")


class TextFormatter(logging.Formatter):
    """`12:34:56 WARNING outbox_publish_failed event_id=… error="…"`: the fields of the JSON format, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, followed by its traceback, if it has one."""
        fields: dict[str, object] = json.loads(JsonFormatter().format(record))
        event, exception = fields.pop("event"), fields.pop("exception", None)
        for name in ("ts", "level", "logger"):
            fields.pop(name)
        names = sorted(fields, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
        told = "".join(f" {name}={_value(fields[name])}" for name in names if fields[name] is not None)
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname} {_quoted(str(event), ())}{told}"
        return line if exception is None else f"{line}\n{printable(str(exception))}"


class BriefFormatter(logging.Formatter):
    """For the panel of `aftercommit up`: a failed attempt as one sentence, other records as text, no tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        told = _told(record)
        if told is None:
            return WithoutTraceback(TextFormatter()).format(record)
        return printable(" ".join(f"{self.formatTime(record, '%H:%M:%S')} {told}".split()))


class WithoutTraceback(logging.Formatter):
    """Another formatter's output, without the traceback."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        """Format a copy of the record without its exception; other handlers still get it."""
        record = copy.copy(record)
        record.exc_info = record.exc_text = None
        return self._formatter.format(record)


def _told(record: logging.LogRecord) -> str | None:
    """A failed attempt in the order in which people read it: consumer, type, attempt, next attempt, error, event."""
    fields = record.__dict__
    if not fields.keys() >= {"consumer", "event_type", "attempt", "error", "error_class", "event_id"}:
        return None
    again = fields.get("retry_in")
    last = "no more retries" if "retry_in" in fields else "parked"
    then = last if again is None else f"next in {again:.1f} s"
    why = f"{fields['error_class']}: {fields['error']} ({fields['event_id']})"
    return f"{fields['consumer']}: {fields['event_type']}, attempt {fields['attempt']}, {then}: {why}"


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Looks sys.stderr up for every record: a live display redirects it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


@contextmanager
def logging_to_stderr(settings: Settings, level: int, *, tracebacks: bool = True) -> Iterator[logging.Handler]:
    """Inside the block, log lines from this level on go to stderr; with --verbose, all of ours and tracebacks."""
    handler = _StderrHandler()
    chosen = formatter(settings)
    handler.setFormatter(chosen if tracebacks or settings.verbose else WithoutTraceback(chosen))
    with logging_to(handler, logging.DEBUG if settings.verbose else level):
        yield handler


@contextmanager
def logging_to(handler: logging.Handler, level: int) -> Iterator[None]:
    """Inside the block, log lines go to this handler: ours from this level on, warnings of other libraries."""
    root, ours, outages = logging.getLogger(), logging.getLogger(_OURS), logging.getLogger(_OUTAGES)
    before = [(logger, logger.level) for logger in (root, ours, outages)]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    ours.setLevel(level)
    outages.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, was in before:
            logger.setLevel(was)


def formatter(settings: Settings) -> logging.Formatter:
    """The chosen format; by default, text for a terminal and JSON for a file or a pipe."""
    chosen = settings.log_format or ("text" if sys.stderr.isatty() else "json")
    return JsonFormatter() if chosen == "json" else TextFormatter()


def _value(value: object) -> str:
    if isinstance(value, str):
        return _quoted(value, (" ", '"', "="))
    if isinstance(value, float):
        return f"{value:.3g}"
    return _quoted(json.dumps(value), ())


def _quoted(text: str, special: tuple[str, ...]) -> str:
    plain = text.isprintable() and text != "" and not any(character in text for character in special)
    return text if plain else json.dumps(text)
