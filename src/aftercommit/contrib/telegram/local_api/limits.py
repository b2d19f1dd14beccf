"""Telegram's rate limits: messages per second overall and per chat. Counts, and never waits."""

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Final

from aftercommit.errors import DeclarationError

_MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True)
class BotApiLimits:
    """Messages allowed within any `window_seconds`: `overall`, and `per_chat` to each chat. None is no limit.

    `burst` messages per minute may exceed each limit. Telegram allows short bursts, but does not document them; the
    default of 0 keeps the limits exactly.
    """

    overall: int | None = 30
    per_chat: int | None = 1
    window_seconds: float = 1.0
    burst: int = 0

    def __post_init__(self) -> None:
        for name in ("overall", "per_chat"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise DeclarationError(f"{name}={limit} would allow no message: use at least 1, or None")
        if not 0 < self.window_seconds <= _MINUTE or self.burst < 0:
            raise DeclarationError(
                f"window_seconds={self.window_seconds:g} and burst={self.burst}: use a window above 0 and up to "
                "60 seconds, and a burst of 0 or more"
            )


@dataclass
class _LimitCount:
    """The messages counted for one limit."""

    taken: deque[float] = field(default_factory=deque)
    above: deque[float] = field(default_factory=deque)

    def wait(self, limit: int, limits: BotApiLimits, now: float) -> float:
        """Seconds until this limit allows another message."""
        _forget(self.taken, now - limits.window_seconds)
        _forget(self.above, now - _MINUTE)
        if len(self.taken) < limit or len(self.above) < limits.burst:
            return 0.0
        return self.taken[-limit] + limits.window_seconds - now

    def take(self, limit: int, now: float) -> None:
        if len(self.taken) >= limit:
            self.above.append(now)
        self.taken.append(now)


class RateLimit:
    """Counts messages, and says how long to wait above the limit."""

    def __init__(self, limits: BotApiLimits) -> None:
        self.limits = limits
        self._overall = _LimitCount()
        self._chats: dict[int, _LimitCount] = defaultdict(_LimitCount)

    def take(self, chat_id: int, now: float) -> int | None:
        """Count a message. Above the limit, return the whole seconds to wait instead."""
        limits = self.limits
        counts = [
            (count, limit)
            for count, limit in ((self._overall, limits.overall), (self._chats[chat_id], limits.per_chat))
            if limit is not None
        ]
        wait = max((count.wait(limit, limits, now) for count, limit in counts), default=0.0)
        if wait > 0:
            return max(1, math.ceil(wait))
        for count, limit in counts:
            count.take(limit, now)
        return None


def _forget(times: deque[float], before: float) -> None:
    while times and times[0] <= before:
        times.popleft()
