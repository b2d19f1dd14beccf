"""The grammar of selections: what it refuses, and that JSON carries it."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

from aftercommit.errors import SelectionError
from aftercommit.operate import Selection
from aftercommit.postgres.shape import Shape


def test_all_that_can_be_said_goes_through_json_and_back() -> None:
    selection = Selection(
        event_ids=(uuid4(), uuid4()),
        types=("order.placed",),
        aggregate_type="order",
        aggregate_id="o-1",
        correlation_id="c-1",
        scope={"tenant_id": "acme", "number": 7},
        since=datetime(2026, 3, 1, 10, tzinfo=timezone(timedelta(hours=2))),
        until=datetime(2026, 3, 2, tzinfo=UTC),
        from_position=1,
        to_position=9,
        consumer="index",
        error_class="ValueError",
        error="bad",
        statuses=("parked", "retrying"),
    )
    assert Selection.from_json(json.loads(json.dumps(selection.as_json()))) == selection
    assert Selection().as_json() == {}
    assert Selection().is_everything


@pytest.mark.parametrize("said", [{"consumer": "a"}, {"error_class": "E"}, {"error": "e"}, {"statuses": ("parked",)}])
def test_what_speaks_of_letters_chooses_letters(said: dict[str, Any]) -> None:
    assert Selection(**said).is_of_letters
    assert not Selection(types=("a",), from_position=0).is_of_letters


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"types": "order.placed"}, "must be a tuple of str"),
        ({"types": ("",)}, "must be non-empty text"),
        ({"event_ids": ("x",)}, "must be a tuple of UUID"),
        ({"consumer": ""}, "must be non-empty text"),
        ({"error": "a\x00b"}, "contains a NUL"),
        ({"since": datetime(2026, 1, 1)}, "with a time zone"),  # noqa: DTZ001 - that is the mistake
        ({"from_position": -1}, "an integer from 0"),
        ({"to_position": True}, "an integer from 0"),
        ({"to_position": 2**63}, "an integer from 0"),
        ({"statuses": ("dead",)}, "unknown status 'dead'"),
        ({"from_position": 2, "to_position": 1}, "must not be greater"),
        (
            {"since": datetime(2026, 1, 2, tzinfo=UTC), "until": datetime(2026, 1, 1, tzinfo=UTC)},
            "must be before",
        ),
    ],
)
def test_what_could_not_choose_anything_is_refused(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SelectionError, match=complaint):
        Selection(**said)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ([], "a JSON object"),
        ({"type": "a"}, "has no field 'type'"),
        ({"event_ids": ["x"]}, "event_ids=.* is malformed"),
        ({"event_ids": "x"}, "must be a list"),
        ({"since": 5}, "is malformed"),
        ({"since": "soon"}, "is malformed"),
        ({"scope": ["a"]}, "must be an object"),
        ({"types": [1]}, "tuple of str"),
    ],
)
def test_json_that_is_no_selection_is_refused_by_name(document: Any, complaint: str) -> None:
    with pytest.raises(SelectionError, match=complaint):
        Selection.from_json(document)


def test_scope_values_take_the_types_of_the_columns() -> None:
    shape = Shape("s", {"tenant": str, "user": int, "project": UUID})
    project = uuid4()
    selection = Selection(scope={"tenant": "acme", "user": "7", "project": str(project)})
    assert selection.scope_values(shape) == {"tenant": "acme", "user": 7, "project": project}
    with pytest.raises(SelectionError, match="user='x' is not of type int"):
        Selection(scope={"user": "x"}).scope_values(shape)
    with pytest.raises(SelectionError, match="it has tenant, user, project"):
        Selection(scope={"station": "x"}).scope_values(shape)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"scope": {"tenant": "a\x00b"}}, r"scope tenant='a\\x00b' contains a NUL"),
        ({"scope": {"tenant": "\udcff"}}, "lone surrogate"),
        ({"scope": {"tenant": ""}}, "must be non-empty text"),
        ({"scope": {"tenant": 1.5}}, "must be text, an integer or a UUID"),
        ({"scope": {"te\x00nant": "a"}}, "contains a NUL"),
        ({"scope": ["tenant"]}, "must be a mapping"),
        ({"aggregate_id": "a\x00"}, "contains a NUL"),
        ({"error": "\udcff"}, "lone surrogate"),
        ({"types": ("a\ud800",)}, "lone surrogate"),
        ({"since": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))}, "out of range: give a time from year 2"),
        ({"until": datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-14)))}, "out of range"),
    ],
)
def test_values_that_the_database_cannot_be_asked_for_are_refused(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SelectionError, match=complaint):
        Selection(**said)
    if "since" in said or "until" in said:
        return
    with pytest.raises(SelectionError):
        Selection.from_json({name: list(each) if isinstance(each, tuple) else each for name, each in said.items()})


def test_a_scope_number_that_no_column_holds_is_refused() -> None:
    with pytest.raises(SelectionError, match="must fit a signed 64-bit integer"):
        Selection(scope={"user": "99999999999999999999"}).scope_values(Shape("s", {"user": int}))
