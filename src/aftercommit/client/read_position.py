"""Remembers where a reader is and what it has seen: tells repeats from news, and notices what is missing. Pure."""

import re
from collections import OrderedDict
from typing import Final

import msgspec

WINDOW: Final = 10_000
# A log is restored now and then, and a page tells of what lies before its own events.
_RANGES: Final = 100
_NUMBER: Final = re.compile(r"(?:.*#)?([0-9]{1,19})")


class Jump(msgspec.Struct, frozen=True):
    """Numbers that never came, in a sequence that is promised to have no gaps."""

    expected: int
    got: int


class Arrival(msgspec.Struct, frozen=True):
    """What an event is to its reader: seen before or not, and whether others are missing before it."""

    repeat: bool
    jump: Jump | None


class ReadPosition:
    """The way of one reader through one strand."""

    def __init__(self, cursor: str | None = None, *, sequence: bool = False, max_remembered_ids: int = WINDOW) -> None:
        """After `cursor`. With `sequence` numbers are held to be gapless. It remembers `max_remembered_ids`."""
        self.cursor = cursor
        self._sequence = sequence
        self._window = max_remembered_ids
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._last = number_in(cursor)
        self._never_given: list[tuple[int, int]] = []

    def never_given(self, low: int, high: int) -> None:
        """The server says that these numbers belong to no event: the log was restored between the two beside them."""
        self._never_given = [*self._never_given[1 - _RANGES :], (low, high)]

    def arrive(self, event_id: str, number: int | None, cursor: str | None, *, withheld: bool = False) -> Arrival:
        """An event is here. It is remembered, and the reader goes on after `cursor` where one is known.

        One that tells no number counts as the next: it is no gap that nothing is known of it. One that is withheld was
        not received, and is not remembered: when it comes after all, it is news.
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
        """The reader's place moved without an event; what lies before it is accounted for."""
        self.cursor = cursor or None
        self._last = number_in(self.cursor)

    def reset(self, cursor: str | None) -> None:
        """The cursor was replaced: nothing that was known about numbers holds any more."""
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
    """The number that a cursor holds: after its `#`, or the whole of it."""
    match = _NUMBER.fullmatch(cursor) if cursor else None
    return int(match[1]) if match else None
