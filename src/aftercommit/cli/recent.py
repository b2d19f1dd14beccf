"""The log lines in the panel of `aftercommit up`: the newest, without repetition and without problems that are over."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aftercommit.telemetry import JsonFormatter

# Log events that report the end of a problem, and the log event that reported its beginning.
_ENDS: Final[Mapping[str, str]] = {
    "database_is_back": "database_is_unavailable",
    "postgresql_runs_again": "postgresql_is_gone",
    "bot_updates_again": "bot_updates_failed",
    "bot_polling": "bot_not_connected",
}
# The bot logs the end of a problem with INFO. Other loggers use INFO for every event.
_WHERE: Final = "aftercommit.bot"
# Logged for each failed attempt: if no other follows in time, the problem is over.
_SAID_EACH_TIME: Final = frozenset({"bot_poll_failed", "bot_state_unavailable"})
_SILENCE: Final = 60.0
# More than are shown: lines that an outage has displaced come back when it is over.
_REMEMBERED: Final = 32
# Two lines that differ only in these fields are about the same problem.
_NOT_WHAT: Final = ("ts", "exception", "user_id", "chat_id", "service", "attempts", "retry_in")


@dataclass
class Kept:
    """A line, how often it was logged, and the services that have logged it but not its end."""

    event: str
    text: str
    times: int = 0
    until: float = float("inf")
    services: set[str] = field(default_factory=set)


class RecentLines(logging.Handler):
    """Keeps the last log lines for the panel; printed directly, they would break its layout."""

    def __init__(
        self,
        formatter: logging.Formatter,
        count: int = 4,
        *,
        least: int = logging.WARNING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Shows `count` lines. Records below `least` are ignored unless they end a known problem."""
        super().__init__()
        self.setFormatter(formatter)
        self._count = count
        self._least = least
        self._clock = clock
        self._kept: dict[str, Kept] = {}

    @property
    def lines(self) -> list[str]:
        """The lines to show now, newest last. A repeated line is shown once, with its count."""
        self.acquire()
        try:
            now = self._clock()
            self._kept = {key: kept for key, kept in self._kept.items() if now < kept.until}
            shown = list(self._kept.values())[-self._count :]
            return [kept.text if kept.times == 1 else f"{kept.times}× {kept.text}" for kept in shown]
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a record."""
        ends = _ENDS.get(record.getMessage())
        if record.levelno < self._least and ends is None:
            return
        fields: dict[str, Any] = json.loads(JsonFormatter().format(record))
        event, service = str(fields["event"]), str(fields.get("service"))
        if not self._end(ends, service) and record.levelno < self._least:
            return
        key = json.dumps({name: value for name, value in fields.items() if name not in _NOT_WHAT})
        kept = self._kept.pop(key, None) or Kept(event, "")
        kept.text = self.format(record)
        kept.times += 1
        kept.services.add(service)
        if event in _SAID_EACH_TIME:
            kept.until = self._clock() + float(fields.get("retry_in") or 0.0) + _SILENCE
        self._kept[key] = kept
        while len(self._kept) > _REMEMBERED:
            del self._kept[next(iter(self._kept))]

    def _end(self, trouble: str | None, service: str) -> bool:
        """End a problem of this service; a problem that no service has any more is removed. False if there was none."""
        ended = [(key, kept) for key, kept in self._kept.items() if kept.event == trouble and service in kept.services]
        for key, kept in ended:
            kept.services.discard(service)
            if not kept.services:
                del self._kept[key]
        return bool(ended)


@contextmanager
def ends_are_heard() -> Iterator[None]:
    """Inside the block, the bot's logger also lets INFO pass, so that the end of a problem is noticed."""
    logger = logging.getLogger(_WHERE)
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
