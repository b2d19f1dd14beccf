"""The walk over a payload: it finds what JSON cannot carry, says where, and takes no longer than it must."""

import math
import time
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftercommit.errors import InvalidPayload
from aftercommit.event import json_rules
from aftercommit.event.codec import DictCodec

TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=6)
FORBIDDEN = st.sampled_from(
    [
        math.nan,
        math.inf,
        -math.inf,
        "\x00",
        "in the\x00middle",
        "\ud800",
        "\udfff tail",
        set(),
        frozenset({1}),
        b"bytes",
        bytearray(b"x"),
        datetime(2026, 1, 1),  # noqa: DTZ001 - the point of the test
        object(),
        1j,
        {1: "key"},
        {"nul\x00": 1},
    ]
)


def steps_into(value: Any, draw: Any) -> tuple[Any, list[str | int]]:
    """A random way into a value, to the container that it ends in."""
    way: list[str | int] = []
    while True:
        inside = [
            (step, inner)
            for step, inner in (value.items() if isinstance(value, dict) else enumerate(value))
            if isinstance(inner, dict | list)
        ]
        if not inside or draw(st.booleans()):
            return value, way
        step, value = draw(st.sampled_from(inside))
        way.append(step)


@pytest.mark.thorough
@settings(deadline=None)
@given(OBJECTS)
def test_any_json_object_reads_back_as_it_was(payload):
    codec = DictCodec(None)

    assert codec.decode(codec.encode(payload)) == payload


@settings(deadline=None)
@given(st.data(), OBJECTS, FORBIDDEN)
def test_a_forbidden_value_anywhere_is_refused_with_its_place(data, payload, forbidden):
    container, way = steps_into(payload, data.draw)
    if isinstance(container, dict):
        container["here"] = forbidden
        way.append("here")
    else:
        container.append(forbidden)
        way.append(len(container) - 1)

    with pytest.raises(InvalidPayload) as caught:
        DictCodec(None).encode(payload)

    assert caught.value.field == json_rules.dotted(way)


@pytest.mark.thorough
@settings(deadline=None)
@given(OBJECTS)
def test_what_may_be_stored_is_never_refused(payload):
    json_rules.check(payload, typed=False)
    json_rules.check(payload, typed=True)


@pytest.mark.parametrize(
    ("parts", "place"),
    [([], "$"), (["a"], "$.a"), ([0], "$[0]"), (["a b", 3, "c"], "$.a b[3].c"), (["k" * 500], "$." + "k" * 198 + "…")],
)
def test_a_place_is_written_so_that_a_person_finds_it(parts, place):
    assert json_rules.dotted(parts) == place


def seconds(value: Any) -> float:
    """The best of ten walks in time of this thread alone: a busy machine has others at work."""
    best = math.inf
    for _ in range(10):
        start = time.thread_time()
        json_rules.check(value, typed=False)
        best = min(best, time.thread_time() - start)
    return best


@pytest.mark.thorough
@pytest.mark.parametrize(
    "build",
    [
        lambda size: {"items": [{"n": number, "text": "x"} for number in range(size)]},
        lambda size: {f"key {number}": [number] for number in range(size)},
        lambda size: {"k" * size: [["x"] * 10 for _ in range(size)]},
        lambda size: {"text": "ü" * size * 100},
    ],
    ids=["many objects", "many keys", "long keys around many items", "long text"],
)
def test_the_walk_takes_time_in_proportion_to_the_payload(build):
    """Eight times the payload takes eight times the time, give or take, and never sixty-four times."""
    small, large = build(2_000), build(16_000)

    assert seconds(large) < 30 * max(seconds(small), 0.0005)


def test_a_value_that_contains_itself_many_times_is_refused_at_once():
    knot: list[Any] = []
    knot.extend([knot, knot, knot])

    with pytest.raises(InvalidPayload, match="deeper than 100"):
        json_rules.check({"knot": knot}, typed=False)
