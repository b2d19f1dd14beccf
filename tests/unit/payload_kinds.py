"""One event, declared with each kind of payload that an outbox takes."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic

from aftercommit.event.definition import EventType
from aftercommit.outbox import Outbox

MOMENT = datetime(2026, 3, 1, 12, 30, 15, 250000, UTC)
CUSTOMER = UUID("0192b3c4-0000-7000-8000-00000000000a")


@dataclass
class Line:
    sku: str
    weight: float | None = None


@dataclass
class DataclassOrder:
    order_id: str
    quantity: int
    customer: UUID
    placed_at: datetime
    lines: list[Line]
    paid: bool = False
    note: str | None = None
    extra: Any = None


class StructLine(msgspec.Struct):
    sku: str
    weight: float | None = None


class StructOrder(msgspec.Struct):
    order_id: str
    quantity: int
    customer: UUID
    placed_at: datetime
    lines: list[StructLine]
    paid: bool = False
    note: str | None = None
    extra: Any = None


class PydanticLine(pydantic.BaseModel):
    sku: str
    weight: float | None = None


class PydanticOrder(pydantic.BaseModel):
    order_id: str
    quantity: int
    customer: UUID
    placed_at: datetime
    lines: list[PydanticLine]
    paid: bool = False
    note: str | None = None
    extra: Any = None


class TypedLine(TypedDict):
    sku: str
    weight: NotRequired[float | None]


class TypedOrder(TypedDict):
    order_id: str
    quantity: int
    customer: UUID
    placed_at: datetime
    lines: list[TypedLine]
    paid: NotRequired[bool]
    note: NotRequired[str | None]
    extra: NotRequired[Any]


SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["order_id", "quantity", "customer", "placed_at", "lines"],
    "properties": {
        "order_id": {"type": "string"},
        "quantity": {"type": "integer"},
        "customer": {"type": "string"},
        "placed_at": {"type": "string"},
        "paid": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "$defs": {
        "line": {
            "type": "object",
            "required": ["sku"],
            "properties": {"sku": {"type": "string"}, "weight": {"type": ["number", "null"]}},
        }
    },
}


@dataclass(frozen=True)
class Kind:
    """How an order is made and read with one kind of payload."""

    event_type: EventType
    line: Callable[..., Any]
    as_dict: Callable[[Any], dict[str, Any]]
    # What comes back from JSON without a type is still text.
    is_typed: bool = True

    def fields(self, **changes: Any) -> dict[str, Any]:
        lines = [self.line(sku="a", weight=1.5), self.line(sku="b")]
        given = {"order_id": "o-1", "quantity": 3, "customer": CUSTOMER, "placed_at": MOMENT, "lines": lines}
        return given | changes

    def unchecked(self, **changes: Any) -> Any:
        """A payload with these values, whatever its class says about them."""
        fields = self.fields(**changes)
        payload_class = self.event_type.payload_class
        if payload_class is None:
            return fields
        if issubclass(payload_class, pydantic.BaseModel):
            return payload_class.model_construct(**fields)
        return payload_class(**fields)


OUTBOX = Outbox("kinds")
KINDS = {
    "dataclass": Kind(OUTBOX.declare("dataclass", DataclassOrder), Line, dataclasses.asdict),
    "struct": Kind(OUTBOX.declare("struct", StructOrder), StructLine, msgspec.to_builtins),
    "pydantic": Kind(OUTBOX.declare("pydantic", PydanticOrder), PydanticLine, pydantic.BaseModel.model_dump),
    "typed dict": Kind(OUTBOX.declare("typed_dict", TypedOrder), TypedLine, dict),
    "schema": Kind(OUTBOX.declare("schema", schema=SCHEMA), dict, dict, is_typed=False),
}
