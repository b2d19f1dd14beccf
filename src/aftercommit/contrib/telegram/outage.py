"""Detects that the whole feed is down, so that a thousand chats do not all retry at once. Pure.

Trouble of one user is not an outage: polls of others succeed in between. Several failures in a row without a success
are one: then all chats wait, with growing delays, and one of them tries.
"""

from typing import Final

import msgspec

ROW: Final = 3


class Outage(msgspec.Struct):
    """Counts failures in a row, and says how long to wait. Times are monotonic."""

    first: float = 1.0
    longest: float = 30.0
    failures: int = 0
    until: float = float("-inf")

    @property
    def is_on(self) -> bool:
        """Whether the feed counts as down; then one chat at a time may poll."""
        return self.failures >= ROW

    def wait(self, now: float) -> float:
        """Seconds in which nobody may poll."""
        return max(0.0, self.until - now) if self.is_on else 0.0

    def failed(self, now: float, asked_for: float | None = None) -> None:
        """A poll failed; `asked_for` is the server's Retry-After."""
        if self.wait(now) == 0:
            # Polls that were already running when the wait began do not count again.
            self.failures += 1
        if self.is_on:
            own = min(self.first * 2.0 ** min(self.failures - ROW, 30), self.longest)
            self.until = max(self.until, now + max(own, asked_for or 0.0))

    def succeeded(self) -> None:
        """A poll succeeded."""
        self.failures = 0
        self.until = float("-inf")
