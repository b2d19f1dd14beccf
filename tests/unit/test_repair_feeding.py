"""What becomes of an item of a replay, and how fast items are fed."""

from typing import Any
from uuid import uuid4

import pytest

from aftercommit.operate.repair.feeding import ReplayItem, ReplayPace, decide


def item(**known: Any) -> ReplayItem:
    said = {
        "ordinal": 1,
        "event_id": uuid4(),
        "consumer": "index",
        "position": 7,
        "letter_status": None,
        "row_status": None,
        "was_handled": False,
        "is_there": True,
        "is_past_horizon": False,
        "has_consumer": True,
    }
    return ReplayItem(**{**said, **known})


@pytest.mark.parametrize(
    ("known", "way"),
    [
        ({}, "new letter"),
        ({"letter_status": "parked"}, "letter"),
        ({"letter_status": "resolved"}, "letter"),
        ({"consumer": None, "position": None}, "row"),
        ({"position": None}, "row"),
        ({"was_handled": True}, "skip"),
        ({"was_handled": True, "letter_status": "resolved"}, "skip"),
        ({"was_handled": True, "letter_status": "parked"}, "letter"),
        ({"was_handled": True, "letter_status": "discarded", "is_wanted_again": True}, "letter"),
        ({"is_past_horizon": True}, "skip"),
        ({"is_there": False}, "fail"),
        ({"has_consumer": False}, "fail"),
        ({"has_consumer": False, "position": None}, "row"),
    ],
)
def test_each_item_goes_its_way(known: dict[str, Any], way: str) -> None:
    assert decide(item(**known), again=False, past_horizon=False).way == way


def test_again_takes_what_was_handled_and_past_horizon_what_was_forgotten() -> None:
    assert decide(item(was_handled=True), again=True, past_horizon=False).way == "new letter"
    assert decide(item(is_past_horizon=True), again=True, past_horizon=False).way == "skip"
    assert decide(item(is_past_horizon=True), again=False, past_horizon=True).way == "new letter"


def test_what_an_abort_brings_back_is_the_letter_or_the_row() -> None:
    by_letter = decide(item(letter_status="parked", row_status="failed"), again=False, past_horizon=False)
    by_row = decide(item(position=None, letter_status="parked", row_status="failed"), again=False, past_horizon=False)
    assert (by_letter.former_status, by_row.former_status) == ("parked", "failed")
    assert (by_letter.state, by_row.state) == ("started", "started")


def test_without_a_rate_only_what_is_under_way_bounds_the_next_chunk() -> None:
    pace = ReplayPace(None, started_at=0.0, chunk=10, most_untried=15, most_under_way=100)
    assert pace.room(0.0, under_way=0, untried=0) == 10
    assert pace.room(0.0, under_way=12, untried=12) == 3
    assert pace.room(0.0, under_way=95, untried=0) == 5
    assert pace.room(0.0, under_way=200, untried=20) == 0


def test_a_rate_is_kept_from_the_first_second_on() -> None:
    pace = ReplayPace(10.0, started_at=0.0)
    fed = []
    for tenth in range(101):
        room = pace.room(tenth / 10, 0, 0)
        pace.fed += room
        fed.append(pace.fed)
    assert fed[0] == 1
    assert all(count <= 10 * tenth / 10 + 1 for tenth, count in enumerate(fed))
    assert fed[-1] >= 100


def test_what_could_not_be_fed_for_a_while_does_not_come_in_a_flood() -> None:
    pace = ReplayPace(10.0, started_at=0.0)
    assert pace.room(100.0, 0, 0) <= 11
    pace.fed += 1
    assert pace.room(100.1, 0, 0) <= 11
