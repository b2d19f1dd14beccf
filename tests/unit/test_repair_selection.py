"""The grammar of selections: what it refuses, and that JSON carries it."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

from aftercommit.errors import SelectionError
from aftercommit.postgres.shape import Shape
from aftercommit.repair import Selection


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
        ({"types": ("",)}, "not empty"),
        ({"event_ids": ("x",)}, "must be a tuple of UUID"),
        ({"consumer": ""}, "not empty"),
        ({"error": "a\x00b"}, "without NUL"),
        ({"since": datetime(2026, 1, 1)}, "with its time zone"),  # noqa: DTZ001 - that is the mistake
        ({"from_position": -1}, "an integer from 0"),
        ({"to_position": True}, "an integer from 0"),
        ({"to_position": 2**63}, "an integer from 0"),
        ({"statuses": ("dead",)}, "'dead' is not known"),
        ({"from_position": 2, "to_position": 1}, "nothing is between"),
        (
            {"since": datetime(2026, 1, 2, tzinfo=UTC), "until": datetime(2026, 1, 1, tzinfo=UTC)},
            "nothing lies between",
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
        ({"type": "a"}, "has no 'type'"),
        ({"event_ids": ["x"]}, "event_ids=.* cannot be read"),
        ({"event_ids": "x"}, "must be a list"),
        ({"since": 5}, "cannot be read"),
        ({"since": "soon"}, "cannot be read"),
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
