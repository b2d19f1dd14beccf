"""Payloads of every kind: what goes in comes out, and what cannot come out does not go in."""

import enum
import math
import types
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from aftercommit.errors import DeclarationError, InvalidPayload, UnreadableEvent
from aftercommit.outbox import Outbox
from tests.unit.payload_kinds import CUSTOMER, KINDS, MOMENT, SCHEMA, Kind


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


# What plain dicts refuse, because no type is there to read it back.


def test_bytes_in_a_dict_are_refused_and_in_a_typed_field_are_not():
    outbox = Outbox("bytes")

    @dataclass
    class Sealed:
        seal: bytes

    sealed = outbox.declare("typed", Sealed)
    assert sealed.codec.decode(sealed.encode(Sealed(b"\x00\xff"))) == Sealed(b"\x00\xff")

    for value in (b"x", bytearray(b"x"), memoryview(b"x")):
        with pytest.raises(InvalidPayload, match=r"\$\.seal is .*encode it as text"):
            outbox.declare(f"free_{type(value).__name__}").encode({"seal": value})


@pytest.mark.parametrize("key", [1, None, 1.5, CUSTOMER, (1, 2), b"x", True])
def test_keys_of_a_dict_that_are_not_strings_are_refused(key):
    with pytest.raises(InvalidPayload, match="string keys") as caught:
        Outbox("keys").declare("free").encode({"a": [{key: 1}]})

    assert caught.value.field == "$.a[0]"


def test_keys_that_are_not_strings_are_fine_where_a_type_reads_them_back():
    @dataclass
    class Stock:
        by_shelf: dict[int, str]

    stock = Outbox("keys").declare("typed", Stock)

    assert stock.codec.decode(stock.encode(Stock({7: "screws"}))) == Stock({7: "screws"})
    with pytest.raises(InvalidPayload) as caught:
        stock.encode(Stock({"seven": "screws"}))  # type: ignore[dict-item]
    assert caught.value.field == "$.by_shelf"


def test_a_dict_may_hold_whatever_has_one_json_form():
    free = Outbox("forms").declare("free")

    class Colour(enum.Enum):
        RED = "red"

    class Marked(str):
        """As template engines have it."""

    class Celsius(float):
        """As numpy has it."""

    class Counter(int):
        """As some libraries have it."""

    class Frozen(datetime):
        """As libraries that freeze time have it."""

    class Point(msgspec.Struct):
        x: int

    class Model(pydantic.BaseModel):
        long_name: int = pydantic.Field(alias="longName")

    given = {
        "uuid": CUSTOMER,
        "decimal": Decimal("10.50"),
        "date": date(2026, 3, 1),
        "datetime": Frozen(2026, 3, 1, tzinfo=UTC),
        "time": time(1, tzinfo=UTC),
        "duration": timedelta(hours=1),
        "enum": Colour.RED,
        "marked": Marked("<b>"),
        "celsius": Celsius(1.5),
        "counter": Counter(3),
        "mapping": types.MappingProxyType({"a": 1}),
        "ordered": OrderedDict(b=1, a=2),
        "tuple": (1, (2,)),
        "struct": Point(1),
        "model": Model(longName=5),
        "large": 2**70,
        "raw": msgspec.Raw(b'{"a": [1]}'),
    }

    assert msgspec.json.decode(free.encode(given)) == {
        "uuid": str(CUSTOMER),
        "decimal": "10.50",
        "date": "2026-03-01",
        "datetime": "2026-03-01T00:00:00Z",
        "time": "01:00:00Z",
        "duration": "PT3600S",
        "enum": "red",
        "marked": "<b>",
        "celsius": 1.5,
        "counter": 3,
        "mapping": {"a": 1},
        "ordered": {"b": 1, "a": 2},
        "tuple": [1, [2]],
        "struct": {"x": 1},
        "model": {"longName": 5},
        "large": 2**70,
        "raw": {"a": [1]},
    }


class Hidden(enum.Enum):
    NUL = "a\x00"


@dataclass
class Inner:
    value: Any


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Hidden.NUL, "$.x"),
        (Inner("\x00"), "$.x.value"),
        (Inner({1}), "$.x.value"),
        (msgspec.Raw(b"not json"), "$.x"),
        (msgspec.Raw(b'"\\u0000"'), "$.x"),
        pytest.param(10**5000, "$.x", id="endless number"),
    ],
)
def test_what_hides_inside_other_values_is_found(value, place):
    with pytest.raises(InvalidPayload) as caught:
        Outbox("hidden").declare("free").encode({"x": value})

    assert caught.value.field == place


@pytest.mark.parametrize("payload", [None, [], "text", 5, object()])
def test_a_payload_must_be_an_object(kind, payload):
    refusal(kind, payload)


# Classes of strings and numbers alone, for which the walk is not taken unless the encoded bytes give a reason.


@dataclass
class PlainDataclass:
    text: str = ""
    number: float = 0.0
    maybe: int | None = 0


class PlainStruct(msgspec.Struct):
    text: str = ""
    number: float = 0.0
    maybe: int | None = 0


class PlainDict(TypedDict, total=False):
    text: str
    number: float
    maybe: int | None


@pytest.mark.parametrize("payload_class", [PlainDataclass, PlainStruct, PlainDict])
@pytest.mark.parametrize(
    ("field_name", "value", "words"),
    [
        ("text", "a\x00", "NUL"),
        ("text", "\ud800", "lone surrogate"),
        ("number", math.nan, "nan, which JSON does not have"),
        ("number", -math.inf, "-inf, which JSON does not have"),
        ("maybe", math.nan, "nan, which JSON does not have"),
        ("text", 1j, "no JSON form"),
    ],
)
def test_a_plain_class_loses_nothing_either(payload_class, field_name, value, words):
    plain = Outbox("plain").declare("plain", payload_class)
    assert plain.encode(payload_class(maybe=None, text="null \\u0000"))

    with pytest.raises(InvalidPayload, match=words) as caught:
        plain.encode(payload_class(**{field_name: value}))
    assert caught.value.field == f"$.{field_name}"


# What can be declared as a payload.


def test_a_payload_must_be_written_as_an_object():
    class Row(msgspec.Struct, array_like=True):
        a: int

    class Root(pydantic.RootModel[list[int]]):
        pass

    for payload in (Row(1), Root([1])):
        event_type = Outbox("arrays").declare("array", type(payload))
        with pytest.raises(InvalidPayload, match="must be a JSON object"):
            event_type.encode(payload)


@pytest.mark.parametrize("stranger", [str, int, list, object, types.SimpleNamespace, "Order"])
def test_a_class_without_fields_is_no_payload(stranger):
    with pytest.raises(DeclarationError, match="cannot be a payload"):
        Outbox("strangers").declare("stranger", stranger)


def test_a_class_and_a_schema_are_one_too_many():
    with pytest.raises(DeclarationError, match="not both"):
        Outbox("both").declare("both", Inner, schema=SCHEMA)


def test_a_class_whose_annotations_cannot_be_resolved_is_refused_at_its_declaration():
    @dataclass
    class Forward:
        other: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DeclarationError, match="Nowhere"):
        Outbox("forward").declare("forward", Forward)


def test_a_schema_that_is_none_is_refused_at_its_declaration():
    with pytest.raises(DeclarationError, match="not valid"):
        Outbox("schemas").declare("bad", schema={"type": "objekt"})


def test_a_schema_that_points_elsewhere_is_refused_and_nothing_is_fetched():
    away = Outbox("schemas").declare("away", schema={"properties": {"a": {"$ref": "https://example.org/a.json"}}})

    with pytest.raises(DeclarationError, match=r"example.org"):
        away.encode({"a": 1})


def test_constraints_of_the_class_are_checked_when_the_event_is_encoded():
    class Bounded(msgspec.Struct):
        age: Annotated[int, msgspec.Meta(ge=0, le=150)]

    with pytest.raises(InvalidPayload, match="<= 150") as caught:
        Outbox("bounds").declare("bounded", Bounded).encode(Bounded(151))
    assert caught.value.field == "$.age"


def test_what_the_class_itself_refuses_is_an_invalid_payload():
    @dataclass
    class Positive:
        amount: int

        def __post_init__(self) -> None:
            if self.amount < 0:
                raise ValueError("amount is negative")

    positive = Outbox("classes").declare("positive", Positive)
    with pytest.raises(InvalidPayload, match="amount is negative"):
        positive(amount=-1)
    with pytest.raises(InvalidPayload, match="unexpected keyword argument 'colour'"):
        positive(colour="red")


def test_a_pydantic_model_that_was_changed_after_its_validation_is_validated_again():
    class Shipped(pydantic.BaseModel):
        parcels: int

    shipped = Outbox("models").declare("shipped", Shipped)
    payload = Shipped(parcels=1)
    payload.parcels = "some"  # type: ignore[assignment]

    with pytest.raises(InvalidPayload) as caught:
        shipped.encode(payload)
    assert caught.value.field == "$.parcels"
    with pytest.raises(InvalidPayload, match="parcels"):
        shipped(parcels="none")


def test_aliases_of_a_pydantic_model_are_the_names_on_the_wire():
    class Aliased(pydantic.BaseModel):
        order_id: str = pydantic.Field(alias="orderId")

    aliased = Outbox("aliases").declare("aliased", Aliased, aggregate="order", key="order_id")
    payload = Aliased(orderId="o-1")

    assert aliased.encode(payload) == b'{"orderId":"o-1"}'
    assert aliased.codec.decode(b'{"orderId":"o-1"}') == payload
    assert aliased.aggregate_id_of(payload) == "o-1"


def test_renamed_fields_of_a_struct_are_the_names_on_the_wire():
    class Renamed(msgspec.Struct, rename="camel"):
        order_id: str

    renamed = Outbox("renamed").declare("renamed", Renamed, required=["order_id"])

    assert renamed.encode(Renamed("o-1")) == b'{"orderId":"o-1"}'
    assert renamed.codec.decode(b'{"orderId":"o-1"}') == Renamed("o-1")


def test_a_type_that_contains_itself_can_be_published_within_reason():
    @dataclass
    class Tree:
        name: str
        children: "list[Tree]" = field(default_factory=list)

    Tree.__annotations__["children"] = list[Tree]
    trees = Outbox("trees").declare("tree", Tree)
    small = Tree("root", [Tree("leaf"), Tree("leaf")])
    assert trees.codec.decode(trees.encode(small)) == small

    tall = Tree("top")
    for _ in range(80):
        tall = Tree("more", [tall])
    with pytest.raises(InvalidPayload, match="deeper than"):
        trees.encode(tall)


def test_ids_of_a_subclass_read_from_a_driver_are_ids():
    class DriverId(UUID):
        pass

    assert Outbox("ids").declare("free").encode({"id": DriverId(int=1)}) == b'{"id":"%s"}' % str(UUID(int=1)).encode()
