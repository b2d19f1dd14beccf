"""Filters: what a reader may ask for beyond the cursor, and how an entry is held against it. Pure.

A filter looks at one facet of an event and allows a set of its values. The set is what the ring compares with and what
history looks up by index, so both answer alike.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from aftercommit.errors import BadParameter, DeclarationError
from aftercommit.feed.declaration.entry import Entry

# A facet is kept up to this length in indexes and in memory; a filter's value is shorter, or it would match a cut one.
LONGEST_FACET: Final = 255
LONGEST_VALUE: Final = 200
# The value of a facet that could not be computed. It may be any, so that no filter may leave the event out.
UNKNOWN: Final = "\x00"


class Chosen(msgspec.Struct, frozen=True):
    """What a reader has chosen: for each facet that matters its place among the feed's, and the values allowed.

    `key` is the same for the same choice, however it was written: it stands in ETags.
    """

    tests: tuple[tuple[int, frozenset[str]], ...] = ()
    key: str = ""

    def matches(self, entry: Entry) -> bool:
        """Whether the reader wants this entry."""
        facets = entry.facets
        return all(facets[place] in allowed or facets[place] == UNKNOWN for place, allowed in self.tests)


EVERYTHING: Final = Chosen()
"""No filter: every event is chosen."""


class Filter(Protocol):
    """One query parameter and the facet it looks at."""

    @property
    def parameter(self) -> str:
        """Its name in the query."""

    @property
    def facet(self) -> str:
        """The name of the facet."""

    def allowed(self, text: str) -> frozenset[str] | None:
        """The values that match; None when all do. BadParameter for what it does not know."""

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the parameter, for OpenAPI."""

    def describe(self) -> str:
        """What it does, for OpenAPI."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Values from the given one upwards in a declared order, as in `minLevel=WARN`.

    The lowest of the order is no filter: it lets values through that the order does not have.
    """

    parameter: str
    facet: str
    order: tuple[str, ...]
    default: str | None = None

    def __post_init__(self) -> None:
        """Refuse an order that could not be asked for."""
        _check_values(self.parameter, self.order)
        if self.default is not None and self.default not in self.order:
            raise DeclarationError(f"filter {self.parameter!r}: default {self.default!r} is not in {self.order}")

    def allowed(self, text: str) -> frozenset[str] | None:
        """The value and those above it."""
        rank = self.order.index(_known(self.parameter, text, self.order))
        return frozenset(self.order[rank:]) if rank > 0 else None

    def schema(self) -> dict[str, Any]:
        """An enumeration."""
        return {"type": "string", "enum": list(self.order), "default": self.default or self.order[0]}

    def describe(self) -> str:
        """In words."""
        return f"Only items whose {self.facet} is at least this, in the order {' < '.join(self.order)}."


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few declared values, as in `source=frontend`."""

    parameter: str
    facet: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse values that could not be asked for."""
        _check_values(self.parameter, self.values)

    def allowed(self, text: str) -> frozenset[str] | None:
        """This value alone."""
        return frozenset({_known(self.parameter, text, self.values)})

    def schema(self) -> dict[str, Any]:
        """An enumeration."""
        return {"type": "string", "enum": list(self.values)}

    def describe(self) -> str:
        """In words."""
        return f"Only items with this {self.facet}."


@dataclass(frozen=True, slots=True)
class Equals:
    """Any text, compared as it is, as in `service=checkout`."""

    parameter: str
    facet: str
    longest: int = LONGEST_VALUE

    def __post_init__(self) -> None:
        """Refuse a length that no index entry has room for."""
        if not 1 <= self.longest <= LONGEST_VALUE:
            raise DeclarationError(f"filter {self.parameter!r}: longest={self.longest} must be 1 to {LONGEST_VALUE}")

    def allowed(self, text: str) -> frozenset[str] | None:
        """This text alone."""
        if not 1 <= len(text) <= self.longest:
            raise BadParameter(self.parameter, text, f"must have 1 to {self.longest} characters")
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
            raise BadParameter(self.parameter, text, "must not have control characters")
        return frozenset({text})

    def schema(self) -> dict[str, Any]:
        """Text of bounded length."""
        return {"type": "string", "minLength": 1, "maxLength": self.longest}

    def describe(self) -> str:
        """In words."""
        return f"Only items with exactly this {self.facet}."


def choose(filters: Sequence[Filter], facets: Sequence[str], given: Mapping[str, str]) -> Chosen:
    """What these query parameters ask for; BadParameter names the one that cannot be answered."""
    allowed: dict[int, frozenset[str]] = {}
    for declared in filters:
        text = given.get(declared.parameter, getattr(declared, "default", None))
        values = declared.allowed(text) if text is not None else None
        if values is not None:
            place = facets.index(declared.facet)
            # Two filters on one facet: what both allow.
            allowed[place] = allowed[place] & values if place in allowed else values
    if not allowed:
        return EVERYTHING
    tests = tuple(sorted(allowed.items()))
    key = msgspec.json.encode([(place, sorted(values)) for place, values in tests]).decode()
    return Chosen(tests, key)


def _check_values(parameter: str, values: Sequence[str]) -> None:
    if isinstance(values, str) or not values or len(set(values)) != len(values):
        raise DeclarationError(f"filter {parameter!r}: {values!r} must be a tuple of different values, one at least")
    for value in values:
        if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_VALUE:
            longest = f"1 to {LONGEST_VALUE} characters"
            raise DeclarationError(f"filter {parameter!r}: {value!r:.80} must be text of {longest}")


def _known(parameter: str, text: str, values: Sequence[str]) -> str:
    if text not in values:
        raise BadParameter(parameter, text, f"must be one of {', '.join(values)}")
    return text
