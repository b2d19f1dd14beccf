"""Notices that the feed as a whole does not answer, so that a thousand readers do not ask it all at once. Pure.

One reader's trouble is its own: others succeed in between. Failures in a row without a success are everybody's; then
all wait, longer and longer, and one of them tries.
"""

from typing import Final

import msgspec

ROW: Final = 3


class Outage(msgspec.Struct):
    """Whether there is one, and until when to wait. Times are of one clock that never runs backwards."""

    first: float = 1.0
    longest: float = 30.0
    failures: int = 0
    until: float = float("-inf")

    @property
    def is_on(self) -> bool:
        """Whether one at a time may ask."""
        return self.failures >= ROW

    def wait(self, now: float) -> float:
        """Seconds in which nobody asks."""
        return max(0.0, self.until - now) if self.is_on else 0.0

    def failed(self, now: float, asked_for: float | None = None) -> None:
        """A poll failed; `asked_for` is how long the server wants to be left alone."""
        if self.wait(now) == 0:
            # Those that were under way when it began say nothing more about how long it lasts.
            self.failures += 1
        if self.is_on:
            own = min(self.first * 2.0 ** min(self.failures - ROW, 30), self.longest)
            self.until = max(self.until, now + max(own, asked_for or 0.0))

    def succeeded(self) -> None:
        """A poll was answered."""
        self.failures = 0
        self.until = float("-inf")
