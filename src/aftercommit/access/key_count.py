"""A rate limit, and the requests of one key that count for it in this process. No I/O."""

import asyncio
from typing import Literal

import msgspec

from aftercommit.access.sliding_log import SECOND, SlidingLog, stamp, tick_of
from aftercommit.errors import DeclarationError

# A process lets through this part of a limit, and at least one request, before it has to ask.
SHARE = 100


class Rate(msgspec.Struct, frozen=True):
    """A rate limit: so many requests in any so many seconds, for each user or for each resource."""

    of: Literal["user", "resource"]
    requests: int
    seconds: int

    def __post_init__(self) -> None:
        if self.of not in ("user", "resource"):
            raise DeclarationError(f"a rate of {self.of!r:.40} is not valid: use 'user' or 'resource'")
        if not (1 <= self.requests <= 1_000_000_000 and 1 <= self.seconds <= 86_400):
            raise DeclarationError(
                f"a rate of {self.requests} requests in {self.seconds} seconds is not valid: allow at least one "
                "request, in 1 second to 1 day (86400)"
            )

    @property
    def share(self) -> int:
        """How many requests one process may let through before it tells the others."""
        return max(1, self.requests // SHARE)

    @property
    def enough(self) -> int:
        """How many requests must be free again before a refused client should come back."""
        return min(self.requests, max(2, self.requests // 50))


class Allowance(msgspec.Struct, frozen=True, gc=False):
    """Whether a request may pass, and how many remain. In `reset` seconds without a request, the whole limit is free.

    `retry_after` is 0 for a request that passed. Otherwise it is the seconds after which this request would pass, and
    (unless the limit is 1) the next one, too.
    """

    allowed: bool
    limit: int
    remaining: int
    reset: int
    retry_after: int


Key = tuple[str, str, int]
"""The name, key and seconds of a counter."""


class KeyCount:
    """One key: the log of all processes as of the last exchange, and the requests that wait for the next."""

    __slots__ = ("_share", "_tick", "exchange", "log", "pending", "rate", "remembers_until", "unsent", "waiting")

    def __init__(self, rate: Rate) -> None:
        self.use(rate)
        self.log = SlidingLog()
        # By time, what this process has not told the others yet; below zero for requests given back.
        self.unsent: dict[int, int] = {}
        # Requests let through without asking since the last successful exchange was sent.
        self.pending = 0
        # Until then the table may know less than this process.
        self.remembers_until = 0
        self.waiting: list[asyncio.Future[bool | None]] = []
        # Done when the exchange that is under way has its answer; None between two exchanges.
        self.exchange: asyncio.Future[None] | None = None

    def use(self, rate: Rate) -> None:
        """Count by this rate from now on."""
        self.rate, self._share, self._tick = rate, rate.share, tick_of(rate.requests, rate.seconds)

    def slide(self, now: int) -> None:
        """Forget requests that are outside the window by now."""
        since, log = now - self.rate.seconds * SECOND, self.log
        if log.moments and log.moments[0] <= since:
            log.slide(since)
        if len(self.unsent) > 2 * len(log.moments) + 100:
            # After a long outage: requests outside the window do not matter to the others any more.
            self.unsent = {moment: count for moment, count in self.unsent.items() if moment > since}

    def has_room(self, now: int) -> bool:
        """Whether the window has room for one more request."""
        self.slide(now)
        return self.log.total < self.rate.requests

    @property
    def has_to_ask(self) -> bool:
        """Whether the next request has to wait for an exchange, because this process has used up its share."""
        return self.exchange is not None or self.pending >= self._share

    def passed(self, now: int) -> None:
        """Count one request."""
        self.note(self.log.add(stamp(now, self._tick)), 1)
        self.pending += 1

    def note(self, moment: int, count: int) -> None:
        """Tell the others at the next exchange."""
        total = self.unsent.get(moment, 0) + count
        if total:
            self.unsent[moment] = total
        else:
            self.unsent.pop(moment, None)

    def remaining(self) -> int:
        """How many requests the window has room for."""
        left = self.rate.requests - self.log.total
        return left if left > 0 else 0

    def reset(self, now: int) -> int:
        """The seconds after which the whole limit is free."""
        log, seconds = self.log, self.rate.seconds
        return _seconds(log.moments[-1] + seconds * SECOND - now, seconds) if log.total else seconds

    def allowance(self, now: int, *, allowed: bool) -> Allowance:
        """What a request hears that passed, or did not."""
        limit, log = self.rate.requests, self.log
        if allowed:
            return Allowance(True, limit, self.remaining(), self.reset(now), 0)
        free = SECOND
        if log.total:
            free = log.has_room_from(limit - self.rate.enough) + self.rate.seconds * SECOND - now
        return Allowance(False, limit, 0, self.reset(now), _seconds(free, self.rate.seconds))


def _seconds(microseconds: int, most: int) -> int:
    seconds = -(-microseconds // SECOND)
    if seconds < 1:
        return 1
    return seconds if seconds < most else most
