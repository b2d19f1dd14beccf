"""Filters and facets: what a request chooses, and what it is compared with."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from aftercommit.errors import BadParameter, DeclarationError
from aftercommit.feed import EVERYTHING, AtLeast, Equals, OneOf
from aftercommit.feed.declaration.facets import Facets
from aftercommit.feed.declaration.filters import choose
from tests.support.feeding import FILTERS, LEVELS

NAMES = ("level", "source", "service")


def chosen(**given_: str) -> dict[str, set[str]]:
    return {NAMES[place]: set(values) for place, values in choose(FILTERS, NAMES, given_).tests}


def test_at_least_allows_a_value_and_those_above_it():
    assert chosen(minLevel="WARN") == {"level": {"WARN", "ERROR"}}
    assert chosen(minLevel="ERROR") == {"level": {"ERROR"}}


def test_the_lowest_is_no_filter_so_that_unknown_levels_are_not_hidden():
    assert chosen(minLevel="DEBUG") == chosen() == {}
    assert choose(FILTERS, NAMES, {"minLevel": "DEBUG"}) is EVERYTHING


def test_several_filters_hold_together():
    assert chosen(minLevel="ERROR", source="frontend", service="api") == {
        "level": {"ERROR"},
        "source": {"frontend"},
        "service": {"api"},
    }


def test_two_filters_on_one_facet_allow_what_both_allow():
    both = (AtLeast("min", facet="level", order=LEVELS), OneOf("level", facet="level", values=LEVELS))

    assert choose(both, ("level",), {"min": "WARN", "level": "ERROR"}).tests == ((0, frozenset({"ERROR"})),)
    assert choose(both, ("level",), {"min": "WARN", "level": "INFO"}).tests == ((0, frozenset()),)


def test_the_same_choice_has_the_same_key_and_another_has_another():
    keys = {
        choose(FILTERS, NAMES, each).key
        for each in ({}, {"minLevel": "WARN"}, {"minLevel": "ERROR"}, {"service": "a"}, {"service": 'a"]'})
    }
    assert len(keys) == 5
    assert choose(FILTERS, NAMES, {"source": "backend", "minLevel": "WARN"}).key == (
        choose(FILTERS, NAMES, {"minLevel": "WARN", "source": "backend"}).key
    )


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("minLevel", "warn"),
        ("minLevel", ""),
        ("minLevel", "FATAL"),
        ("source", "elsewhere"),
        ("service", ""),
        ("service", "x" * 101),
        ("service", "a\x00b"),
        ("service", "\ud800"),
    ],
)
def test_a_value_that_a_filter_does_not_take_is_named(parameter: str, value: str):
    with pytest.raises(BadParameter, match=parameter) as caught:
        choose(FILTERS, NAMES, {parameter: value})
    assert (caught.value.parameter, caught.value.value) == (parameter, value)


@pytest.mark.parametrize(
    "declare",
    [
        lambda: AtLeast("min", facet="level", order=()),
        lambda: AtLeast("min", facet="level", order="DEBUG"),  # type: ignore[arg-type]
        lambda: AtLeast("min", facet="level", order=("A", "A")),
        lambda: AtLeast("min", facet="level", order=LEVELS, default="FATAL"),
        lambda: OneOf("source", facet="source", values=("x" * 201,)),
        lambda: Equals("service", facet="service", longest=0),
        lambda: Equals("service", facet="service", longest=256),
    ],
)
def test_a_filter_that_could_not_work_is_refused_when_it_is_declared(declare: Any):
    with pytest.raises(DeclarationError):
        declare()


def facets(payload: Any, **declared: str) -> tuple[str | None, ...]:
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return Facets("logs", declared).of(text, None)


def test_a_facet_is_the_text_at_its_place_in_the_payload():
    payload = {"level": "WARN", "context": {"tenant": "a", "n": 1.50, "on": True, "none": None}}

    assert facets(payload, a="level", b="context.tenant", c="context.on") == ("WARN", "a", "true")
    assert facets(payload, a="context.none") == (None,)
    assert facets(payload, a="missing", b="level.inside", c="context.tenant.deeper") == (None, None, None)
    assert facets(b'{"n": 1.50, "level": "a", "level": "b"}', a="n", b="level") == ("1.50", "b")


def test_a_long_value_is_cut_and_what_text_cannot_hold_is_nothing():
    assert facets({"level": "x" * 300}, a="level") == ("x" * 255,)
    assert facets({"level": "a\x00b"}, a="level") == (None,)
    assert facets({"level": "ok", "other": "\ud800"}, a="level") == (None,)
    assert facets({"level": "ok", "other": "😀 \\u0000"}, a="level") == ("ok",)


@pytest.mark.contract("E8")
def test_how_deep_a_payload_may_be_nested_does_not_depend_on_the_interpreter():
    def nested(depth: int) -> bytes:
        return b'{"level": "deep", "other": %b%b}' % (b"[" * depth, b"]" * depth)

    assert facets(nested(499), a="level") == ("deep",)
    for depth in (500, 1000, 5000, 100_000):
        assert facets(nested(depth), a="level") == (None,)
    # Many brackets are no depth: neither side by side nor within strings.
    assert facets({"level": "wide", "other": [{}] * 2000}, a="level") == ("wide",)
    assert facets({"level": "text", "other": '\\"' + "[" * 2000}, a="level") == ("text",)


# Small ones: what is drawn without bounds takes a tenth of a second to draw, and has no shape that these have not.
VALUES = some.recursive(
    some.none() | some.text(max_size=20) | some.floats(allow_nan=False),
    lambda held: some.lists(held, max_size=4),
    max_leaves=10,
)


@pytest.mark.thorough
@given(some.dictionaries(some.just("level") | some.text(max_size=20), VALUES, max_size=6))
def test_any_payload_has_facets(payload: dict[str, Any]):
    value = payload.get("level")

    (found,) = facets(payload, a="level")

    assert found is None or not isinstance(value, str) or found == value[:255]


TEXTS = some.none() | some.text(some.sampled_from('ab"\\\\/é😀\x00'), max_size=5) | some.integers(0, 9)


@given(
    some.lists(some.tuples(some.sampled_from(["level", "source", "le\\u0076el", "x"]), TEXTS), max_size=6),
    some.booleans(),
)
def test_facets_that_are_read_in_one_step_are_those_that_are_read_one_by_one(held: list[tuple[str, Any]], ascii: bool):
    members = [f'"{name}": {json.dumps(value, ensure_ascii=ascii)}' for name, value in held]
    payload = f"{{{', '.join(members)}}}".encode()

    one_by_one = facets(payload, a="level", b="source", c="level.deeper")[:2]

    assert facets(payload, a="level", b="source") == one_by_one


@pytest.mark.parametrize("path", ["", "a.", ".a", "a.0", "0", "a b", "a%", "a'b"])
def test_a_facet_that_is_no_field_is_refused(path: str):
    with pytest.raises(DeclarationError, match="field names"):
        Facets("logs", {"a": path})
