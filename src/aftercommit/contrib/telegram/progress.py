"""Tracks which updates are handled. Pure.

Telegram drops an update when the bot asks for a later one, and sends all others again. So the bot asks for the first
one that is not handled, and skips known ones behind it when they come again.
"""

from collections.abc import Iterable
from typing import Final

# Updates per request, and so how many can be seen behind the first open one.
WINDOW: Final = 100


class UpdateProgress:
    """The open updates, and the offset for the next request."""

    def __init__(self, offset: int) -> None:
        """All updates before `offset` are handled."""
        self._offset = offset
        self._known: set[int] = set()
        self._open: dict[int, bool] = {}

    @property
    def is_open(self) -> bool:
        """Whether any update is being handled."""
        return bool(self._open)

    def unknown(self, numbers: Iterable[int]) -> set[int]:
        """The updates that are new."""
        return set(numbers) - self._known

    def begin(self, number: int, *, must: bool) -> None:
        """Start an update. One that `must` not be lost is never given up for others."""
        self._known.add(number)
        self._open[number] = must

    def effected(self, number: int) -> None:
        """The update took effect; only its answer is missing."""
        if number in self._open:
            self._open[number] = False

    def done(self, number: int) -> None:
        """The update is handled."""
        self._open.pop(number, None)

    def offset(self) -> int:
        """The first open update, or else the next one."""
        if self._known:
            self._offset = min(self._open) if self._open else max(self._known) + 1
            self._known = {number for number in self._known if number >= self._offset}
        return self._offset

    def give_way(self) -> bool:
        """Move past open updates, because they hide newer ones; False if one of them must not be lost.

        They are still being handled. Only a crash would lose them, and then people ask again.
        """
        if any(self._open.values()):
            return False
        self._open.clear()
        return True
