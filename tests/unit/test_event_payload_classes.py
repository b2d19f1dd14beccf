"""What may be declared as a payload, and what plain dicts and plain classes carry and refuse."""

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

from aftercommit.errors import DeclarationError, InvalidPayload
from aftercommit.outbox import Outbox
from tests.unit.payload_kinds import CUSTOMER, SCHEMA

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
