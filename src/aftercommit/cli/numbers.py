"""Numbers as options take them: counts, amounts and seconds, neither endless nor no number, nor more than can be meant.

Every option that is a number has one of these types, so that what is wrong with it is said in one way everywhere.
"""

import math
import re
from typing import Any, Final, NoReturn

import click

# What a bigint of PostgreSQL holds: positions, limits.
LARGEST: Final = 2**63 - 1
DAY: Final = 86_400.0
CENTURY: Final = 36_500 * DAY

_WHOLE = re.compile(r"[+-]?\d{1,100}", re.ASCII)


class Number(click.ParamType[Any]):
    """A number from `least` to `most`."""

    kind = "number"

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As a number, or wrong usage."""
        number = self.read(str(value))
        if number is None:
            self._refuse(value, f"no {self.kind}", param, ctx)
        if not self.least <= number <= self.most:
            self._refuse(value, "too small" if number < self.least else "too large", param, ctx)
        return number

    def read(self, text: str) -> float | None:
        """The number that a text says; None when it says none."""
        try:
            number = float(text)
        except ValueError:
            return None
        return None if math.isnan(number) else number

    def _refuse(self, value: Any, what: str, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        allowed = f"from {_shown(self.least)} to {_shown(self.most)}"
        self.fail(f"{str(value)!r:.60} is {what}: write a {self.kind} {allowed}", param, ctx)


class Count(Number):
    """A whole number: so many of something, or a place."""

    name = "count"
    kind = "whole number"

    def __init__(self, least: int = 0, most: int = LARGEST) -> None:
        super().__init__(least, most)

    def read(self, text: str) -> int | None:
        """The whole number that a text says, in digits."""
        return int(text) if _WHOLE.fullmatch(text.strip()) else None


class Amount(Number):
    """A number that need not be whole, like a rate."""

    name = "number"


class Seconds(Number):
    """A length of time that can be waited for."""

    name = "seconds"
    kind = "number of seconds"

    def __init__(self, least: float = 0.0, most: float = CENTURY) -> None:
        super().__init__(least, most)


def _shown(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"
