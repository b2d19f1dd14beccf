"""Telegram's limits on sending: so many messages a second in all, fewer to one chat. Counts; never waits."""

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Final

from aftercommit.errors import DeclarationError

_MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True)
class BotApiLimits:
    """How much may be sent within any `window_seconds`: `overall` messages, and `per_chat` to each chat.

    None is no limit. `burst` messages a minute are let through above the limits, to each chat and in all: Telegram
    allows short bursts and does not say how long; without it the limits are kept to the letter.
    """

    overall: int | None = 30
    per_chat: int | None = 1
    window_seconds: float = 1.0
    burst: int = 0

    def __post_init__(self) -> None:
        for name in ("overall", "per_chat"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise DeclarationError(f"{name}={limit} would let no message through: give at least 1, or None")
        if not 0 < self.window_seconds <= _MINUTE or self.burst < 0:
            raise DeclarationError(
                f"window_seconds={self.window_seconds:g} and burst={self.burst}: give a window above 0 and at most "
                "60 seconds, and a burst of 0 or more"
            )


@dataclass
class _LimitCount:
    """What one limit has let through."""

    taken: deque[float] = field(default_factory=deque)
    above: deque[float] = field(default_factory=deque)

    def wait(self, limit: int, limits: BotApiLimits, now: float) -> float:
        """Seconds until this limit lets another through; 0 when it does."""
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
    """Counts what was sent, and says how long to wait when it was too much."""

    def __init__(self, limits: BotApiLimits) -> None:
        """Nothing was sent."""
        self.limits = limits
        self._overall = _LimitCount()
        self._chats: dict[int, _LimitCount] = defaultdict(_LimitCount)

    def take(self, chat_id: int, now: float) -> int | None:
        """Count a message; or, when it is one too many, the whole seconds to wait, and it does not count."""
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
