"""Option types for numbers: counts, amounts and seconds, each within bounds. All number options use these types, so
that error messages are the same everywhere.
"""

import math
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

import click

from aftercommit.cli.options import Command

# The largest bigint of PostgreSQL.
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
        """The number; otherwise a usage error."""
        number = self.read(str(value))
        if number is None:
            self._refuse(value, f"not a {self.kind}", param, ctx)
        if not self.least <= number <= self.most:
            self._refuse(value, "too small" if number < self.least else "too large", param, ctx)
        return number

    def read(self, text: str) -> float | None:
        """Read a number; None if the text is not one."""
        try:
            number = float(text)
        except ValueError:
            return None
        return None if math.isnan(number) else number

    def _refuse(self, value: Any, what: str, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        allowed = f"from {_shown(self.least)} to {_shown(self.most)}"
        self.fail(f"{str(value)!r:.60} is {what}: write a {self.kind} {allowed}", param, ctx)


class Count(Number):
    """A whole number: a count or a position."""

    name = "count"
    kind = "whole number"

    def __init__(self, least: int = 0, most: int = LARGEST) -> None:
        super().__init__(least, most)

    def read(self, text: str) -> int | None:
        """Read a whole number in digits."""
        return int(text) if _WHOLE.fullmatch(text.strip()) else None


class Amount(Number):
    """A number, not necessarily whole, like a rate."""

    name = "number"


class Seconds(Number):
    """A duration in seconds."""

    name = "seconds"
    kind = "number of seconds"

    def __init__(self, least: float = 0.0, most: float = CENTURY) -> None:
        super().__init__(least, most)


def limit_option(default: int, most: int = LARGEST) -> Callable[[Command], Command]:
    """The option --limit of commands that list things."""
    kind = Count(1, most)
    return click.option(
        "--limit", type=kind, default=default, show_default=True, metavar="COUNT", help="Show at most COUNT."
    )


def _shown(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"
