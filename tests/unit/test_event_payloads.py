"""Payloads of every kind: what goes in comes out, and what cannot come out does not go in."""

import math
from dataclasses import dataclass
from datetime import datetime, time
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftercommit.errors import InvalidPayload, UnreadableEvent
from aftercommit.event.codec import MsgspecCodec
from tests.unit.payload_kinds import CUSTOMER, KINDS, MOMENT, Kind


@pytest.fixture(params=KINDS, name="kind")
def every_kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=["dataclass", "struct", "pydantic", "typed dict"])
def typed_kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def refusal(kind: Kind, payload: Any) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        kind.event_type.encode(payload)
    assert str(caught.value).startswith(f"{kind.event_type.name}: ")
    return caught.value


def test_what_is_encoded_is_json_and_reads_back_the_same(kind):
    payload = kind.unchecked(note="ünï ☃ 𝄞", extra={"deep": [1, None, {"x": 1.5}]})

    data = kind.event_type.encode(payload)

    assert msgspec.json.decode(data)["customer"] == str(CUSTOMER)
    assert msgspec.json.decode(data)["placed_at"] == "2026-03-01T12:30:15.250000Z"
    read = kind.event_type.codec.decode(data)
    if kind.is_typed:
        assert read == payload
    else:
        assert read == msgspec.json.decode(data)


def test_a_draft_is_made_by_calling_the_type_with_the_fields(kind):
    draft = kind.event_type(**kind.fields(quantity=5))

    assert draft.type_name == kind.event_type.name
    assert kind.as_dict(draft.payload)["quantity"] == 5


def test_a_dict_of_the_fields_will_do(kind):
    read = [kind.event_type.codec.decode(kind.event_type.encode(made)) for made in (kind.fields(), kind.unchecked())]

    assert read[0] == read[1]


def test_the_schema_of_every_kind_can_be_shown(kind):
    assert "order_id" in str(kind.event_type.codec.json_schema())


@pytest.mark.parametrize("missing", ["order_id", "lines"])
def test_a_missing_field_is_named(kind, missing):
    fields = kind.fields()
    del fields[missing]

    problem = refusal(kind, fields)

    assert problem.field == f"$.{missing}"
    assert missing in str(problem)


def test_a_missing_field_inside_is_named_with_its_place(kind):
    problem = refusal(kind, kind.fields(lines=[{"sku": "a"}, {"weight": 1.0}]))

    assert problem.field == "$.lines[1].sku"


@pytest.mark.parametrize(
    ("field_name", "value"),
    [("quantity", "many"), ("order_id", 7), ("paid", "perhaps"), ("lines", {"a": 1}), ("note", 1)],
)
def test_a_mistyped_field_is_named(kind, field_name, value):
    problem = refusal(kind, kind.unchecked(**{field_name: value}))

    assert problem.field == f"$.{field_name}"
    assert f"$.{field_name}" in str(problem)


def test_a_mistyped_field_inside_is_named_with_its_place(kind):
    line = kind.line(sku="a", weight=1.0)
    if isinstance(line, dict):
        line["weight"] = "heavy"
    else:
        line.weight = "heavy"

    assert refusal(kind, kind.unchecked(lines=[line])).field == "$.lines[0].weight"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_named(kind, value):
    """An encoder would write null, and a field that may be None would take it."""
    assert refusal(kind, kind.unchecked(lines=[kind.line(sku="a", weight=value)])).field == "$.lines[0].weight"
    assert refusal(kind, kind.unchecked(note=value)).field == "$.note"
    assert refusal(kind, kind.unchecked(extra=[value])).field == "$.extra[0]"


@pytest.mark.parametrize(
    ("text", "words"),
    [("a\x00b", "NUL character"), ("a\ud800b", "lone surrogate '\\ud800'"), ("\udfff", "lone surrogate")],
)
def test_text_that_postgresql_cannot_store_is_named(kind, text, words):
    for place, changes in {
        "$.order_id": {"order_id": text},
        "$.lines[0].sku": {"lines": [kind.line(sku=text)]},
        "$.extra.inner[1]": {"extra": {"inner": ["fine", text]}},
    }.items():
        problem = refusal(kind, kind.unchecked(**changes))
        assert problem.field == place
        assert words in str(problem)


def test_a_key_that_postgresql_cannot_store_is_named(kind):
    problem = refusal(kind, kind.unchecked(extra={"a\x00": 1}))

    assert problem.field == "$.extra"
    assert "'a\\x00'" in str(problem)


def test_text_that_only_looks_like_nul_is_fine(kind):
    payload = kind.unchecked(note="\\u0000", extra="\\\\u0000")

    assert kind.as_dict(kind.event_type.codec.decode(kind.event_type.encode(payload)))["note"] == "\\u0000"


@pytest.mark.parametrize("value", [{1, 2}, frozenset({"a"}), set()])
def test_a_set_has_no_order_and_is_refused(kind, value):
    problem = refusal(kind, kind.unchecked(extra={"tags": value}))

    assert problem.field == "$.extra.tags"
    assert "sorted list" in str(problem)


@pytest.mark.parametrize("value", [datetime(2026, 1, 1), time(12, 0)])  # noqa: DTZ001 - the point of the test
def test_a_naive_time_is_refused(kind, value):
    problem = refusal(kind, kind.unchecked(extra=[value]))

    assert problem.field == "$.extra[0]"
    assert "naive" in str(problem)
    assert "time zone" in str(problem)


def test_a_naive_datetime_in_its_own_field_is_refused(kind):
    assert refusal(kind, kind.unchecked(placed_at=MOMENT.replace(tzinfo=None))).field == "$.placed_at"


def test_nesting_without_end_is_refused(kind):
    deep: Any = "bottom"
    for _ in range(200):
        deep = [deep]
    circular: dict[str, Any] = {}
    circular["self"] = circular

    for value in (deep, circular):
        problem = refusal(kind, kind.unchecked(extra=value))
        assert "deep" in str(problem)
        assert problem.field is not None
        assert problem.field.startswith("$.extra")


def test_nesting_within_reason_is_fine(kind):
    deep: Any = "bottom"
    for _ in range(99):
        deep = [deep]

    assert kind.event_type.encode(kind.unchecked(extra=deep)).count(b"[") >= 99


@pytest.mark.parametrize("value", [object(), 1j, ValueError("x"), KINDS, range(3)])
def test_what_has_no_json_form_is_refused(kind, value):
    assert refusal(kind, kind.unchecked(extra=[value])).field is not None


def test_unreadable_bytes_are_an_unreadable_event(kind):
    for data in (b"", b"{", b'{"order_id": "\xff"}', b"[" * 100_000):
        with pytest.raises(UnreadableEvent, match="cannot be read"):
            kind.event_type.codec.decode(data)


def test_stored_bytes_of_another_shape_are_an_unreadable_event(typed_kind):
    with pytest.raises(UnreadableEvent, match="quantity"):
        typed_kind.event_type.codec.decode(b'{"order_id": "o"}')


@pytest.mark.parametrize("payload", [None, [], "text", 5, object()])
def test_a_payload_must_be_an_object(kind, payload):
    refusal(kind, payload)


# The short way of classes that hold nothing but text, whole numbers and booleans.


@dataclass
class PlainOrder:
    order_id: str
    number: int
    expedited: bool


ANYTHING = st.one_of(
    st.text(),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(),
    st.sampled_from(["\x00", "\ud800", "\\u0000", 2**63, 2**64, -(2**63) - 1, "null", [], {}, object()]),
)


@given(ANYTHING, ANYTHING, ANYTHING)
def test_the_short_way_of_plain_payloads_takes_and_refuses_what_the_long_one_does(order_id, number, expedited):
    short, long = MsgspecCodec(PlainOrder), MsgspecCodec(PlainOrder)
    assert short._plain == (str, int, bool)
    long._plain = None
    payload = PlainOrder(order_id, number, expedited)

    def told(codec):
        try:
            return codec.encode(payload)
        except InvalidPayload as problem:
            return problem.field, str(problem)

    assert told(short) == told(long)


def test_only_classes_without_rules_of_their_own_go_the_short_way():
    @dataclass
    class Checked:
        name: str
        number: int

        def __post_init__(self):
            if self.number < 0:
                raise ValueError("below nothing")

    @dataclass
    class Bounded:
        name: Annotated[str, msgspec.Meta(min_length=1)]
        number: int

    for payload, problem in ((Checked("a", 1), "below nothing"), (Bounded("", 1), "length >= 1")):
        if isinstance(payload, Checked):
            payload.number = -1
        with pytest.raises(InvalidPayload, match=problem):
            MsgspecCodec(type(payload)).encode(payload)


def test_an_object_without_one_of_its_fields_is_refused():
    payload = PlainOrder("o-1", 1, False)
    del payload.number

    with pytest.raises(InvalidPayload, match="missing required field `number`"):
        MsgspecCodec(PlainOrder).encode(payload)
