"""What can be declared as an event type, and how records of older versions are lifted to it."""

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from aftercommit.errors import (
    DeclarationError,
    DuplicateDeclaration,
    InvalidPayload,
    NewerSchemaVersion,
    UnknownEventType,
    UnreadableEvent,
)
from aftercommit.event.definition import EventType
from aftercommit.event.envelope import Record
from aftercommit.outbox import Outbox


@dataclass
class Placed:
    order_id: str
    total: int = 0


@pytest.fixture
def outbox() -> Outbox:
    return Outbox("definitions")


def recorded(event_type: str, payload: bytes, version: int = 1) -> Record:
    now = datetime.now(UTC)
    return Record(
        event_id=uuid4(),
        event_type=event_type,
        schema_version=version,
        aggregate_type="order",
        aggregate_id="o-1",
        occurred_at=now,
        correlation_id="story",
        causation_id=None,
        scope={"tenant": "acme"},
        payload=payload,
        created_at=now,
        seq=5,
        position=17,
    )


# Names, versions, fields.


@pytest.mark.parametrize("name", ["a", "OrderPlaced", "order.placed/v1:eu-west_1", "9lives", "x" * 100])
def test_ordinary_names_are_taken(outbox, name):
    assert outbox.declare(name).name == name


@pytest.mark.parametrize(
    "name", ["", " ", "a b", ".a", "-a", "a\n", "ünï", "a\x00", "x" * 101, None, 5, "a;b", "@relay"]
)
def test_other_names_are_refused(outbox, name):
    with pytest.raises(DeclarationError, match=r"event type .* is not valid: use 1 to 100"):
        outbox.declare(name)


@pytest.mark.parametrize("aggregate", ["", "a b", "x" * 51])
def test_names_of_aggregates_fit_their_column(outbox, aggregate):
    outbox.declare("fits", aggregate="x" * 50)
    with pytest.raises(DeclarationError, match=r"aggregate type .* is not valid: use 1 to 50"):
        outbox.declare("placed", aggregate=aggregate)


@pytest.mark.parametrize("version", [0, -1, 32768, "1", 1.0, None, True])
def test_versions_are_small_positive_integers(outbox, version):
    assert outbox.declare("highest", version=32767).version == 32767
    with pytest.raises(DeclarationError, match="1 to 32767"):
        outbox.declare("placed", version=version)


def test_the_version_is_one_unless_told_otherwise(outbox):
    assert outbox.declare("placed", Placed).version == 1


def test_a_key_needs_an_aggregate(outbox):
    with pytest.raises(DeclarationError, match="aggregate= is missing"):
        outbox.declare("placed", Placed, key="order_id")


@pytest.mark.parametrize("declaration", [{"required": ["colour"]}, {"aggregate": "order", "key": "colour"}])
def test_fields_that_the_payload_does_not_have_are_refused(outbox, declaration):
    with pytest.raises(DeclarationError, match=r"'colour' is not a field of its payload \(\['order_id', 'total'\]\)"):
        outbox.declare("placed", Placed, **declaration)


def test_one_string_of_required_fields_is_not_a_list_of_them(outbox):
    with pytest.raises(DeclarationError, match=r"give a list, \['order_id'\]"):
        outbox.declare("placed", required="order_id")


# Required fields.


class Optional(msgspec.Struct):
    node: str | msgspec.UnsetType | None = msgspec.UNSET


@pytest.mark.parametrize(
    ("payload_class", "payload"),
    [(None, {}), (None, {"node": None}), (Optional, Optional()), (Optional, Optional(None))],
)
def test_a_required_field_that_is_missing_or_none_is_named(outbox, payload_class, payload):
    created = outbox.declare("node_created", payload_class, required=["node"])

    with pytest.raises(InvalidPayload, match="node_created needs the field 'node'") as caught:
        created.encode(payload)
    assert caught.value.field == "$.node"


@pytest.mark.parametrize("value", ["", 0, False, []])
def test_a_required_field_may_be_empty(outbox, value):
    assert outbox.declare("node_created", required=["node"]).encode({"node": value})


def test_a_field_may_have_any_name_that_python_allows(outbox):
    assert outbox.declare("named")(self=1, fields=2, payload=3).payload == {"self": 1, "fields": 2, "payload": 3}


# The aggregate's id.


class Shelf(enum.Enum):
    LOW = "low"


@pytest.mark.parametrize(
    ("value", "text"), [("o-1", "o-1"), (0, "0"), (-5, "-5"), (UUID(int=1), str(UUID(int=1))), (Shelf.LOW, "low")]
)
def test_the_aggregates_id_is_the_field_that_the_key_names(outbox, value, text):
    by_name = outbox.declare("by_name", aggregate="order", key="id")
    by_function = outbox.declare("by_function", aggregate="order", key=lambda payload: payload["id"])

    assert by_name.aggregate_id_of({"id": value}) == by_function.aggregate_id_of({"id": value}) == text


@pytest.mark.parametrize("payload", [{}, *({"id": value} for value in (None, "", 1.5, True, [1], {"a": 1}, b"x"))])
def test_an_aggregates_id_that_is_none_is_refused(outbox, payload):
    by_name = outbox.declare("by_name", aggregate="order", key="id")
    by_function = outbox.declare("by_function", aggregate="order", key=lambda payload: payload["id"])

    with pytest.raises(InvalidPayload, match=r"by_name has no aggregate id: id is .*str, int or UUID") as caught:
        by_name.aggregate_id_of(payload)
    assert caught.value.field == "$.id"
    with pytest.raises(InvalidPayload, match="by_function has no aggregate id: "):
        by_function.aggregate_id_of(payload)


# Versions.


@pytest.fixture
def renamed_twice(outbox: Outbox) -> EventType:
    """Version 1 had `id`, version 2 `order`, version 3 `order_id` and a total."""
    placed = outbox.declare("placed", Placed, version=3)

    @outbox.upcast("placed", from_version=1)
    def name_the_order(payload: dict[str, Any]) -> dict[str, Any]:
        return {"order": payload["id"]}

    @outbox.upcast(Placed, from_version=2)
    def add_a_total(payload: dict[str, Any]) -> dict[str, Any]:
        return {"order_id": payload["order"], "total": 1}

    return placed


@pytest.mark.parametrize(
    ("version", "payload", "read"),
    [
        (1, b'{"id":"o-1"}', Placed("o-1", 1)),
        (2, b'{"order":"o-1"}', Placed("o-1", 1)),
        (3, b'{"order_id":"o-1","total":9}', Placed("o-1", 9)),
    ],
)
def test_older_versions_are_lifted_step_by_step(outbox, renamed_twice, version, payload, read):
    event = outbox.registry.read(recorded("placed", payload, version), attempt=2)

    assert event.payload == read
    assert (event.schema_version, event.attempt, event.position) == (3, 2, 17)
    assert (event.type, event.aggregate_id, event.correlation_id, event.scope) == (
        "placed",
        "o-1",
        "story",
        {"tenant": "acme"},
    )


def test_a_newer_version_waits_for_newer_code(outbox, renamed_twice):
    with pytest.raises(NewerSchemaVersion, match="schema version 4, this code knows 3: deploy newer code"):
        outbox.registry.read(recorded("placed", b"{}", 4))


def test_a_missing_step_is_named(outbox):
    outbox.declare("placed", Placed, version=3)
    outbox.upcast("placed", from_version=1)(lambda payload: payload)

    with pytest.raises(UnreadableEvent, match=r"from version 2 to 3: declare one with @outbox.upcast\('placed', from"):
        outbox.registry.read(recorded("placed", b"{}", 1))


@pytest.mark.parametrize(
    ("upcaster", "words"),
    [
        (lambda payload: payload["gone"], "KeyError"),
        (lambda payload: payload["lines"][3], "IndexError"),
        (lambda payload: {"total": 1 // payload["none"]}, "ZeroDivisionError"),
        (lambda payload: payload.colour, "AttributeError"),
        (lambda payload: None, "returned None"),
        (lambda payload: ["list"], "must return the new payload as a dict"),
        (lambda payload: {"order_id": object()}, "not JSON"),
        (lambda payload: {"total": 5}, "order_id"),
    ],
)
def test_a_failing_upcaster_makes_the_event_unreadable_and_says_why(outbox, upcaster, words):
    outbox.declare("placed", Placed, version=2)
    outbox.upcast("placed", from_version=1)(upcaster)

    with pytest.raises(UnreadableEvent, match=words):
        outbox.registry.read(recorded("placed", b'{"lines":[],"none":0}', 1))


@pytest.mark.parametrize("payload", [b"{", b"\xff"])
def test_a_damaged_payload_is_unreadable_in_every_version(outbox, renamed_twice, payload):
    for version in (1, 3):
        with pytest.raises(UnreadableEvent, match="cannot be read"):
            outbox.registry.read(recorded("placed", payload, version))


@pytest.mark.parametrize("from_version", [0, 3, 4, -1])
def test_an_upcaster_must_lead_somewhere(outbox, from_version):
    outbox.declare("placed", Placed, version=3)

    with pytest.raises(DeclarationError, match="must be from version 1 to"):
        outbox.upcast("placed", from_version=from_version)(dict)


def test_a_step_is_declared_once(outbox, renamed_twice):
    with pytest.raises(DuplicateDeclaration, match="already has an upcaster from version 1"):
        outbox.upcast("placed", from_version=1)(dict)


# The registry.


def test_a_name_is_declared_once(outbox):
    outbox.declare("placed")

    with pytest.raises(DuplicateDeclaration, match="'placed' is declared twice"):
        outbox.declare("placed", Placed)


def test_a_payload_class_belongs_to_one_event_type(outbox):
    outbox.declare("placed", Placed)

    with pytest.raises(DuplicateDeclaration, match="Placed is already the payload of 'placed'"):
        outbox.event("ordered")(Placed)
    assert "ordered" not in outbox.registry


def test_dicts_may_be_the_payload_of_many_types(outbox):
    outbox.declare("one")
    outbox.declare("two", dict)

    assert [event_type.name for event_type in outbox.registry] == ["one", "two"]


def test_the_decorator_leaves_the_class_as_it_is(outbox):
    assert outbox.event("placed")(Placed) is Placed
    assert outbox.registry.resolve(Placed).name == "placed"


def test_a_type_is_found_by_its_name_its_class_and_its_declaration(outbox):
    placed = outbox.declare("placed", Placed)

    assert [outbox.registry.resolve(reference) for reference in ("placed", Placed, placed)] == [placed] * 3


@pytest.mark.parametrize("reference", ["ordered", Optional, Outbox("elsewhere").declare("ordered")])
def test_an_undeclared_type_is_refused_with_the_declared_ones(outbox, reference):
    outbox.declare("placed")

    with pytest.raises(UnknownEventType, match="declared types are placed"):
        outbox.registry.resolve(reference)


@pytest.mark.parametrize("event", [Optional(), {"a": 1}, "placed", None, 5])
def test_what_is_no_event_cannot_be_published(outbox, event):
    with pytest.raises(UnknownEventType, match="declared types are none yet; a dict needs its type"):
        outbox.registry.draft(event)


def test_a_draft_of_a_foreign_type_cannot_be_published(outbox):
    with pytest.raises(UnknownEventType, match="'ordered' is not declared"):
        outbox.registry.draft(Outbox("elsewhere").declare("ordered")(a=1))


def test_a_subclass_of_a_payload_is_another_class(outbox):
    """It may have fields that the declared type would drop in silence."""
    outbox.declare("placed", Placed)

    @dataclass
    class Special(Placed):
        discount: int = 5

    with pytest.raises(UnknownEventType, match="Special"):
        outbox.registry.draft(Special("o-1"))


def test_a_record_of_an_unknown_type_is_unreadable(outbox):
    outbox.declare("placed")

    with pytest.raises(UnreadableEvent, match=r"'ordered' of .* is not declared here: declared types are placed"):
        outbox.registry.read(recorded("ordered", b"{}"))
