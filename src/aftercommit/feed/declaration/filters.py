"""Filters: query parameters that select items by a facet. Pure.

A filter allows a set of values of one facet. The ring in memory compares facets with this set, and history looks it up
by index, so both return the same items.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from aftercommit.errors import BadParameter, DeclarationError
from aftercommit.feed.declaration.entry import Entry

# Indexes and memory keep so many characters of a facet. A filter's value must be shorter, or it would match a cut one.
LONGEST_FACET: Final = 255
LONGEST_VALUE: Final = 200
# The value of a facet that could not be computed. It could be any value, so every filter lets the event through.
UNKNOWN: Final = "\x00"


class Chosen(msgspec.Struct, frozen=True):
    """The filters of a request: for each filtered facet, its index in the feed's facets and the allowed values.

    `key` is part of ETags. It is the same for the same filters, however the query was written.
    """

    tests: tuple[tuple[int, frozenset[str]], ...] = ()
    key: str = ""

    def matches(self, entry: Entry) -> bool:
        """Whether an entry passes the filters."""
        facets = entry.facets
        return all(facets[place] in allowed or facets[place] == UNKNOWN for place, allowed in self.tests)


EVERYTHING: Final = Chosen()
"""No filter: every entry passes."""


class Filter(Protocol):
    """A query parameter that selects items by one facet."""

    @property
    def parameter(self) -> str:
        """The name of the query parameter."""

    @property
    def facet(self) -> str:
        """The name of the facet."""

    def allowed(self, text: str) -> frozenset[str] | None:
        """The facet values that pass; None if all do. BadParameter for a text that is not valid."""

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the parameter, for OpenAPI."""

    def describe(self) -> str:
        """The description of the parameter, for OpenAPI."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Passes the given value and those above it in a declared order, as in `minLevel=WARN`.

    The lowest value of the order filters nothing: values that the order does not have pass, too.
    """

    parameter: str
    facet: str
    order: tuple[str, ...]
    default: str | None = None

    def __post_init__(self) -> None:
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
        """The description for OpenAPI."""
        return f"Only items whose {self.facet} is at least this, in the order {' < '.join(self.order)}."


@dataclass(frozen=True, slots=True)
class OneOf:
    """Passes one of a few declared values, as in `source=frontend`."""

    parameter: str
    facet: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_values(self.parameter, self.values)

    def allowed(self, text: str) -> frozenset[str] | None:
        """This value only."""
        return frozenset({_known(self.parameter, text, self.values)})

    def schema(self) -> dict[str, Any]:
        """An enumeration."""
        return {"type": "string", "enum": list(self.values)}

    def describe(self) -> str:
        """The description for OpenAPI."""
        return f"Only items with this {self.facet}."


@dataclass(frozen=True, slots=True)
class Equals:
    """Passes exactly the given text, as in `service=checkout`."""

    parameter: str
    facet: str
    longest: int = LONGEST_VALUE

    def __post_init__(self) -> None:
        if not 1 <= self.longest <= LONGEST_VALUE:
            raise DeclarationError(f"filter {self.parameter!r}: longest={self.longest} must be 1 to {LONGEST_VALUE}")

    def allowed(self, text: str) -> frozenset[str] | None:
        """This text only."""
        if not 1 <= len(text) <= self.longest:
            raise BadParameter(self.parameter, text, f"must have 1 to {self.longest} characters")
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
            raise BadParameter(self.parameter, text, "must not have control characters")
        return frozenset({text})

    def schema(self) -> dict[str, Any]:
        """Text of bounded length."""
        return {"type": "string", "minLength": 1, "maxLength": self.longest}

    def describe(self) -> str:
        """The description for OpenAPI."""
        return f"Only items with exactly this {self.facet}."


def choose(filters: Sequence[Filter], facets: Sequence[str], given: Mapping[str, str]) -> Chosen:
    """The filters of these query parameters; BadParameter names one that is not valid."""
    allowed: dict[int, frozenset[str]] = {}
    for declared in filters:
        text = given.get(declared.parameter, getattr(declared, "default", None))
        values = declared.allowed(text) if text is not None else None
        if values is not None:
            place = facets.index(declared.facet)
            # Two filters on one facet: values that both allow.
            allowed[place] = allowed[place] & values if place in allowed else values
    if not allowed:
        return EVERYTHING
    tests = tuple(sorted(allowed.items()))
    key = msgspec.json.encode([(place, sorted(values)) for place, values in tests]).decode()
    return Chosen(tests, key)


def _check_values(parameter: str, values: Sequence[str]) -> None:
    if isinstance(values, str) or not values or len(set(values)) != len(values):
        raise DeclarationError(f"filter {parameter!r}: {values!r} must be a tuple of at least one value, each once")
    for value in values:
        if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_VALUE:
            raise DeclarationError(
                f"filter {parameter!r}: {value!r:.80} must be text of 1 to {LONGEST_VALUE} characters"
            )


def _known(parameter: str, text: str, values: Sequence[str]) -> str:
    if text not in values:
        raise BadParameter(parameter, text, f"must be one of {', '.join(values)}")
    return text
