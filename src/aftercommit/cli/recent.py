"""The log lines that the panel of `aftercommit up` shows: the newest, each once, and no trouble that is over."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aftercommit.telemetry import JsonFormatter

# What ends a trouble, and which one.
_ENDS: Final[Mapping[str, str]] = {
    "database_is_back": "database_is_unavailable",
    "postgresql_runs_again": "postgresql_is_gone",
    "bot_updates_again": "bot_updates_failed",
    "bot_polling": "bot_not_connected",
}
# Says so less loudly than that it began. Relays and consumers say that much of every event.
_WHERE: Final = "aftercommit.bot"
# Said with each attempt that fails: silence, when the next one is past, says that it did not.
_SAID_EACH_TIME: Final = frozenset({"bot_poll_failed", "bot_state_unavailable"})
_SILENCE: Final = 60.0
# More than are shown: what an outage has pushed aside is seen again when it is over.
_REMEMBERED: Final = 32
# By these alone two lines about one thing differ: when, for whom, by whom, how long until the next attempt.
_NOT_WHAT: Final = ("ts", "exception", "user_id", "chat_id", "service", "attempts", "retry_in")


@dataclass
class Kept:
    """A line, how often it was said, and which services have said it and not that it is over."""

    event: str
    text: str
    times: int = 0
    until: float = float("inf")
    services: set[str] = field(default_factory=set)


class RecentLines(logging.Handler):
    """Keeps the last log lines for the panel, where printing them would tear it apart."""

    def __init__(
        self,
        formatter: logging.Formatter,
        count: int = 4,
        *,
        least: int = logging.WARNING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Shows `count` of them. Of records below `least` it takes those alone that end a trouble it knows of."""
        super().__init__()
        self.setFormatter(formatter)
        self._count = count
        self._least = least
        self._clock = clock
        self._kept: dict[str, Kept] = {}

    @property
    def lines(self) -> list[str]:
        """What there is to show now, the newest last; a line that was said several times once, and how often."""
        self.acquire()
        try:
            now = self._clock()
            self._kept = {key: kept for key, kept in self._kept.items() if now < kept.until}
            shown = list(self._kept.values())[-self._count :]
            return [kept.text if kept.times == 1 else f"{kept.times}× {kept.text}" for kept in shown]
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a record: one line, or with a traceback several."""
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
        """For this service it is over; when it is for all that spoke of it, nobody needs to read of it.

        Whether there was such a trouble: work that begins as it should ends none.
        """
        ended = [(key, kept) for key, kept in self._kept.items() if kept.event == trouble and service in kept.services]
        for key, kept in ended:
            kept.services.discard(service)
            if not kept.services:
                del self._kept[key]
        return bool(ended)


@contextmanager
def ends_are_heard() -> Iterator[None]:
    """While inside, it is logged that a trouble is over also where warnings alone are."""
    logger = logging.getLogger(_WHERE)
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
