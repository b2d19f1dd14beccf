"""Structured log lines, and the figures that metrics exporters read.

A log line is an ordinary `logging` record: its message is the event's name and its fields are `extra`, so any formatter
works. `JsonFormatter` writes one JSON object per line.
"""

import json
import logging
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

LATENCY_BUCKETS_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 10e3, 60e3)

logging.getLogger("aftercommit").addHandler(logging.NullHandler())

_STANDARD = {*logging.LogRecord("", 0, "", 0, "", None, None).__dict__, "message", "asctime", "taskName"}


def log_event(
    logger: logging.Logger, level: int, name: str, cause: BaseException | None = None, /, **fields: Any
) -> None:
    """Write one structured log line: a stable name, its fields, and the traceback of its cause if there is one."""
    if logger.isEnabledFor(level):
        logger.log(level, name, extra=fields, exc_info=cause if cause is not None and _is_text(cause) else None)


def _is_text(cause: BaseException) -> bool:
    """Whether its traceback can be written to a file: an error may quote text that is not valid Unicode."""
    try:
        "".join(_texts(cause)).encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(cause: BaseException) -> Iterator[str]:
    """What a traceback shows of an error, without the lines of code: finding those takes long."""
    if cause.__cause__ or cause.__context__ or isinstance(cause, SyntaxError | BaseExceptionGroup):
        yield from traceback.format_exception(cause)
        return
    yield from traceback.format_exception_only(cause)
    trace = cause.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename
        trace = trace.tb_next


class JsonFormatter(logging.Formatter):
    """One JSON object per line. Control characters in values are escaped, so they cannot start a new line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON: time, level, logger, event and the fields."""
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update({key: value for key, value in record.__dict__.items() if key not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=True)


class Histogram:
    """Counts per bucket. PostgreSQL sorts each batch into buckets, so values arrive in bulk."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BUCKETS_MS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, bucket: int, count: int, total: float) -> None:
        """Count several values of one bucket."""
        self.counts[bucket] += count
        self.total += total


class Meter:
    """The figures of one process for one outbox. Thread-safe; exporters read them at their own pace."""

    def __init__(self, outbox: str) -> None:
        self.outbox = outbox
        self._lock = threading.Lock()
        self.published: dict[str, int] = defaultdict(int)
        self.failed: dict[tuple[str, str], int] = defaultdict(int)
        self.latency_ms: dict[str, Histogram] = defaultdict(Histogram)
        self.pending = 0
        self.oldest_pending_seconds = 0.0
        self.backlog_is_known = False
        self.parked: dict[str, int] = defaultdict(int)
        self.consumed: dict[tuple[str, str], int] = defaultdict(int)
        self.consumer_position: dict[str, int] = {}
        # How many events the log has had, and how many of them each consumer has passed. Positions would also count the
        # gaps between two lives of the log.
        self.log_events = 0
        self.consumer_events: dict[str, int] = {}
        self.version_wait_seconds: dict[str, float] = {}

    def on_published(self, latency: Iterable[tuple[str, int, int, float]]) -> None:
        """Events that entered the log: for each type and latency bucket, their number and total milliseconds."""
        with self._lock:
            for event_type, bucket, events, milliseconds in latency:
                self.published[event_type] += events
                self.latency_ms[event_type].add(bucket, events, milliseconds)

    def on_failed(self, event_type: str, error_class: str) -> None:
        """One failed delivery attempt."""
        with self._lock:
            self.failed[event_type, error_class] += 1

    def on_parked(self, owner: str) -> None:
        """One event parked as a dead letter, by a relay or a consumer."""
        with self._lock:
            self.parked[owner] += 1

    def on_backlog(self, pending: int, oldest_seconds: float) -> None:
        """A sample of how much waits in the outbox."""
        with self._lock:
            self.pending, self.oldest_pending_seconds = pending, oldest_seconds
            self.backlog_is_known = True

    def on_consumed(self, consumer: str, outcome: str, count: int = 1) -> None:
        """Events that a consumer has finished with: done, skipped, failed or parked."""
        with self._lock:
            self.consumed[consumer, outcome] += count

    def on_progress(self, consumer: str, position: int, events: int, lag: int) -> None:
        """A consumer's position in the log. The log has had `events` events; the consumer has `lag` of them to go."""
        with self._lock:
            self.consumer_position[consumer] = position
            self.log_events = events
            self.consumer_events[consumer] = events - lag

    def on_version_wait(self, consumer: str, seconds: float) -> None:
        """How long a consumer has been waiting for code that knows a version; 0 when it no longer waits."""
        with self._lock:
            self.version_wait_seconds[consumer] = seconds

    def locked(self) -> threading.Lock:
        """The lock for an exporter to hold while it reads several figures."""
        return self._lock
