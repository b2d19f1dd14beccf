"""How far updates were read. Pure.

Telegram forgets an update once it is asked for a later one, and tells all others again. So the question names the first
one that is not dealt with, and those behind it that are known already are passed over when they come again.
"""

from collections.abc import Iterable
from typing import Final

# What Telegram tells at a time, and so how far behind the first open one it lets us see.
WINDOW: Final = 100


class UpdateProgress:
    """Which updates are under way, and from which on to ask."""

    def __init__(self, offset: int) -> None:
        """Everything before this number is dealt with."""
        self._offset = offset
        self._known: set[int] = set()
        self._open: dict[int, bool] = {}

    @property
    def is_open(self) -> bool:
        """Whether something is under way."""
        return bool(self._open)

    def unknown(self, numbers: Iterable[int]) -> set[int]:
        """Those that were not told before."""
        return set(numbers) - self._known

    def begin(self, number: int, *, must: bool) -> None:
        """This one is under way; if it `must` not be lost, it is not given up for the sake of others."""
        self._known.add(number)
        self._open[number] = must

    def effected(self, number: int) -> None:
        """What it asks for is done; only its answer is not given."""
        if number in self._open:
            self._open[number] = False

    def done(self, number: int) -> None:
        """This one need not be told again."""
        self._open.pop(number, None)

    def offset(self) -> int:
        """The first one that has to be told again, or else the next."""
        if self._known:
            self._offset = min(self._open) if self._open else max(self._known) + 1
            self._known = {number for number in self._known if number >= self._offset}
        return self._offset

    def give_way(self) -> bool:
        """Go on although something is under way, as nothing new can be seen behind it; whether that may be.

        It is still being worked on. Only a crash would lose it, and then whoever asked is not answered and asks again.
        """
        if any(self._open.values()):
            return False
        self._open.clear()
        return True
