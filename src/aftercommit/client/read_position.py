"""Remembers where a reader is and what it has seen, so that it notices repeated and missing events. Pure."""

import re
from collections import OrderedDict
from typing import Final

import msgspec

WINDOW: Final = 10_000
# How many ranges are remembered: one for each restore of the log.
_RANGES: Final = 100
_NUMBER: Final = re.compile(r"(?:.*#)?([0-9]{1,19})")


class Jump(msgspec.Struct, frozen=True):
    """Numbers that did not come, in a sequence without gaps."""

    expected: int
    got: int


class Arrival(msgspec.Struct, frozen=True):
    """Whether an event was seen before, and whether others are missing before it."""

    repeat: bool
    jump: Jump | None


class ReadPosition:
    """The position of one reader in one strand."""

    def __init__(self, cursor: str | None = None, *, sequence: bool = False, max_remembered_ids: int = WINDOW) -> None:
        """Begins after `cursor`. `sequence` says that numbers have no gaps."""
        self.cursor = cursor
        self._sequence = sequence
        self._window = max_remembered_ids
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._last = number_in(cursor)
        self._never_given: list[tuple[int, int]] = []

    def never_given(self, low: int, high: int) -> None:
        """These numbers belong to no event: the log was restored between the numbers beside them."""
        self._never_given = [*self._never_given[1 - _RANGES :], (low, high)]

    def arrive(self, event_id: str, number: int | None, cursor: str | None, *, withheld: bool = False) -> Arrival:
        """An event is here. Remembers its id, and moves to `cursor` if it has one.

        An event without a number counts as the next one. A withheld event was not received, and its id is not
        remembered: if it comes after all, it is new.
        """
        if number is None and self._last is not None:
            number = self._last + 1
        behind = self._sequence and number is not None and self._last is not None and number <= self._last
        repeat = (event_id in self._seen if withheld else self._remember(event_id)) or behind
        jump = None if repeat else self._jump(number)
        if not behind:
            self.cursor = self.cursor if cursor is None else cursor
            self._last = self._last if number is None else number
        return Arrival(repeat, jump)

    def move(self, cursor: str) -> None:
        """The place moved on without an event; nothing is missing before it."""
        self.reset(cursor or None)

    def reset(self, cursor: str | None) -> None:
        """The server replaced the cursor: numbers are counted from there."""
        self.cursor = cursor
        self._last = number_in(cursor)

    def _remember(self, event_id: str) -> bool:
        known = event_id in self._seen
        self._seen[event_id] = None
        self._seen.move_to_end(event_id)
        if len(self._seen) > self._window:
            self._seen.popitem(last=False)
        return known

    def _jump(self, number: int | None) -> Jump | None:
        if not self._sequence or number is None or self._last is None:
            return None
        expected = self._last + 1
        for low, high in self._never_given:
            if low <= expected <= high:
                expected = high + 1
        return None if number == expected else Jump(expected, number)


def number_in(cursor: str | None) -> int | None:
    """The number in a cursor: after its `#`, or all of it."""
    match = _NUMBER.fullmatch(cursor) if cursor else None
    return int(match[1]) if match else None
