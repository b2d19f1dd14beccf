"""Structured log lines and the numbers behind the metrics. Depends on nothing; exporters read from here.

Every line is an ordinary `logging` record whose message is the event's name and whose fields are `extra`, so any
formatter works; `JsonFormatter` writes one JSON object per line.
"""

import json
import logging
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

LATENCY_BUCKETS_MS = (
    1.0,
    2.5,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10000.0,
    60000.0,
)

logging.getLogger("aftercommit").addHandler(logging.NullHandler())

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


def log_event(
    logger: logging.Logger, level: int, name: str, cause: BaseException | None = None, /, **fields: Any
) -> None:
    """One structured log line: a stable name, its fields, and the traceback of its cause if there is one."""
    if logger.isEnabledFor(level):
        logger.log(level, name, extra=fields, exc_info=cause if cause is not None and _is_text(cause) else None)


def _is_text(cause: BaseException) -> bool:
    """Whether its traceback can be written to a file: an error may quote what is not Unicode text."""
    try:
        "".join(traceback.format_exception(cause)).encode()
    except UnicodeEncodeError:
        return False
    return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line; control characters in values cannot break out of it."""

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
    """Counts per bucket, fed in bulk: PostgreSQL sorts a batch into buckets, not Python."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BUCKETS_MS) -> None:
        """Empty, with one count per bound and one above all."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, bucket: int, count: int, total: float) -> None:
        """Count several values of one bucket."""
        self.counts[bucket] += count
        self.total += total


class Meter:
    """The figures of one process for one outbox. Thread-safe; read by exporters at their own pace."""

    def __init__(self, outbox: str) -> None:
        """All figures at zero."""
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
        # Events in the log so far, and how many of them each consumer is through with: positions would count the gaps
        # between two lives of the log.
        self.log_events = 0
        self.consumer_events: dict[str, int] = {}
        self.version_wait_seconds: dict[str, float] = {}

    def on_published(self, latency: Iterable[tuple[str, int, int, float]]) -> None:
        """Events that entered the log: by type and latency bucket, how many and how many milliseconds in all."""
        with self._lock:
            for event_type, bucket, events, milliseconds in latency:
                self.published[event_type] += events
                self.latency_ms[event_type].add(bucket, events, milliseconds)

    def on_failed(self, event_type: str, error_class: str) -> None:
        """One failed delivery attempt."""
        with self._lock:
            self.failed[event_type, error_class] += 1

    def on_parked(self, owner: str) -> None:
        """One event set aside as a dead letter, by a relay or a consumer."""
        with self._lock:
            self.parked[owner] += 1

    def on_backlog(self, pending: int, oldest_seconds: float) -> None:
        """What waits in the outbox, sampled."""
        with self._lock:
            self.pending, self.oldest_pending_seconds = pending, oldest_seconds
            self.backlog_is_known = True

    def on_consumed(self, consumer: str, outcome: str, count: int = 1) -> None:
        """Events a consumer is through with: done, skipped, failed or parked."""
        with self._lock:
            self.consumed[consumer, outcome] += count

    def on_progress(self, consumer: str, position: int, events: int, lag: int) -> None:
        """Where a consumer stands in the log, of the `events` that it ever had; `lag` of them are still to come."""
        with self._lock:
            self.consumer_position[consumer] = position
            self.log_events = events
            self.consumer_events[consumer] = events - lag

    def on_version_wait(self, consumer: str, seconds: float) -> None:
        """For how long a consumer has waited for code that knows a version; 0 when it waits no more."""
        with self._lock:
            self.version_wait_seconds[consumer] = seconds

    def locked(self) -> threading.Lock:
        """The lock an exporter holds while it reads several figures."""
        return self._lock
