"""What a validator says of a value, in words that people use: the end of a sentence that begins with a field. Pure."""

import re
from collections.abc import Callable, Sequence
from typing import Final

# "Expected `str`, got `int` - at `$[3].level`": the place is a path; missing and unknown fields are named before it.
PLACE: Final = re.compile(
    r"(?P<reason>.*?)(?: - at `(?:key in )?\$(?:\[(?P<index>\d+)\])?\.?(?P<path>[^`]*)`)?", re.DOTALL
)
NAMED: Final = re.compile(r"(?:missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_KINDS: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
    "uuid": "a UUID",
    "datetime": "a time",
}
_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_THINGS: Final = {"str": "character", "array": "item", "object": "field"}


def predicate(reason: str) -> str:
    """What is wrong, without the field: `must have at least 1 character`. What is not known stays as it is."""
    for pattern, words in _RULES:
        found = pattern.fullmatch(reason)
        if found is not None:
            return words(found)
    return f"cannot be read: {reason}"


def _length(found: re.Match[str]) -> str:
    kind, bound, count = found.groups()
    thing = _THINGS.get(kind, "item")
    return f"must have {_BOUNDS[bound]} {count} {thing}{'' if count == '1' else 's'}"


def _bound(found: re.Match[str]) -> str:
    return f"must be {_BOUNDS[found[1]]} {found[2]}"


def _kinds(found: re.Match[str]) -> str:
    wanted, got = found.groups()
    return f"must be {' or '.join(map(_kind, wanted.split(' | ')))}, not {_kind(got)}"


def _kind(name: str) -> str:
    return _KINDS.get(name, name)


_RULES: Final[Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]] = (
    (re.compile(r"Expected `(\w+)` of length (>=|<=|>|<) (\d+)"), _length),
    (re.compile(r"Expected `(?:int|float)` (>=|<=|>|<) (\S+)"), _bound),
    (re.compile(r"Expected `str` matching regex (.*)", re.DOTALL), lambda found: f"must match {found[1]}"),
    (re.compile(r"Expected `([\w |]+)`, got `(\w+)`"), _kinds),
    (re.compile(r"Object missing required field `.*`", re.DOTALL), lambda found: "is missing"),
    (re.compile(r"Object contains unknown field `.*`", re.DOTALL), lambda found: "is an unknown field"),
    (re.compile(r"Invalid enum value (.*)", re.DOTALL), lambda found: f"must not be {found[1]}"),
    (re.compile(r"Invalid UUID"), lambda found: "must be a UUID"),
    (re.compile(r"Number out of range"), lambda found: "is out of range"),
)
