"""`GET /tasks/me/events` as its contract says: header, parameters, items, walks; as a long-poll and as a stream too."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from typing import Any

import httpx
import pytest

from aftercommit.client import TASKS, follow
from aftercommit.client.sse_decoder import SseDecoder, SseMessage
from tests.support.investigations import PATIENCE
from tests.support.tasks import ADA, EDSGER, EVENTS, ROOT, Service, problem_of, signed

pytestmark = pytest.mark.newest

# Whoever is prepared for several tests is so again when others came between them, and must have heard of nothing then.
_numbers = count(5000, 2)
ITEM = {"event_id", "task_id", "event_type", "actor_user_id", "actor_role_id", "created_at", "payload"}


@pytest.fixture(scope="module")
def reader(tasks: Service) -> int:
    """Somebody who has heard of 120 events, of three tasks at a time."""
    reader = next(_numbers)
    worker = reader + 1
    tasks.people({}, {reader: ("reader", []), worker: ("worker", [])})
    for _ in range(30):
        number = tasks.create(reader, assignee_user_id=worker)["task_id"]
        tasks.act(worker, number, "submit-report", report="done")
        tasks.act(reader, number, "reject", reason="no")
        tasks.act(reader, number, "cancel", reason="never mind")
    tasks.shown()
    assert len(tasks.walk(reader)) == 120
    return reader


@pytest.mark.thorough
@pytest.mark.contract("T1", "T2")
def test_the_answer_is_an_array_of_items_in_ascending_order_fifty_at_a_time(tasks: Service, reader: int):
    answer = tasks.as_user(reader).get(EVENTS)
    items = answer.json()
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    assert isinstance(items, list)
    assert len(items) == 50
    for item in items:
        assert set(item) == ITEM
        assert {type(item[name]) for name in ("event_id", "task_id", "actor_user_id")} == {int}
        assert item["actor_role_id"] is None
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", item["created_at"])
        assert isinstance(item["payload"], dict)
        assert {"title", "state", "actor_name"} <= set(item["payload"])
    numbers = [item["event_id"] for item in items]
    assert numbers == sorted(set(numbers))
    kinds = [item["event_type"] for item in items[:4]]
    assert kinds == ["task_created", "report_submitted", "report_rejected", "task_cancelled"]
    assert [item["payload"]["note"] for item in items[:4]] == [None, "done", "no", "never mind"]


@pytest.mark.contract("T1", "T3", "T4")
@pytest.mark.parametrize("limit", [1, 7, 50, 1000])
@pytest.mark.thorough
def test_a_walk_from_nothing_meets_every_event_once_with_pages_of_any_size(tasks: Service, reader: int, limit: int):
    """Without `after_id` a walk begins with the oldest event there is, and each page begins behind the one before."""
    seen: list[int] = []
    parameters: dict[str, Any] = {"limit": limit}
    while page := tasks.page(reader, **parameters):
        assert len(page) <= limit
        assert page == tasks.page(reader, **parameters)[: len(page)]
        seen += [item["event_id"] for item in page]
        parameters["after_id"] = page[-1]["event_id"]
    assert seen == [item["event_id"] for item in tasks.walk(reader)]
    assert len(seen) == len(set(seen)) == 120


@pytest.mark.contract("T1")
def test_what_is_no_number_is_400_and_names_itself(tasks: Service):
    for name, values in (
        ("after_id", ("x", "-1", "1.5", "", "1e3", "٣", "9" * 20, str(2**63), "1 ", "+1")),
        ("limit", ("0", "-1", "1001", "x", "", "5.0", "٣")),
        ("before_id", ("x",)),
        ("unknown", ("1",)),
    ):
        for value in values:
            for path in (EVENTS, f"{EVENTS}/stream")[: 1 if name == "before_id" else 2]:
                refused = tasks.as_user(ADA).get(path, params={name: value})
                assert problem_of(refused) == (400, "bad_request"), (name, value)
                assert ("parameter" if name == "unknown" else name) in refused.json()["details"], (name, value)
    twice = tasks.as_user(ADA).get(f"{EVENTS}?limit=1&limit=2")
    assert problem_of(twice) == (400, "bad_request")
    with tasks.client(X_User_Id="1", Authorization=f"Bearer {tasks.credential()}") as program:
        for value in ("x", "-1", "0", "1.5", "", "00", "01", "1 2", "9" * 20, str(2**63), "0x1", "1e1", "true", "1,2"):
            for path in (EVENTS, f"{EVENTS}/stream", ROOT, f"{ROOT}/me"):
                refused = program.get(path, headers={"X-User-Id": value})
                assert problem_of(refused) == (400, "bad_request"), (value, path)
                assert "X-User-Id" in refused.json()["details"], value
        repeated = program.get(EVENTS, headers=[("X-User-Id", "1"), ("X-User-Id", "2")])
        assert problem_of(repeated) == (400, "bad_request")
    with tasks.client() as nobody:
        for path in (EVENTS, f"{EVENTS}/stream", ROOT, f"{ROOT}/me", f"{ROOT}/1"):
            assert problem_of(nobody.get(path)) == (401, "unauthorized")


@pytest.mark.contract("T1", "T5")
def test_every_integer_has_a_feed_of_its_own_which_may_be_empty(tasks: Service):
    with tasks.client(Authorization=f"Bearer {tasks.credential()}") as program:
        for user in (999_999, 2**63 - 1):
            answer = program.get(EVENTS, headers={"X-User-Id": str(user)})
            assert (answer.status_code, answer.json()) == (200, [])


@pytest.mark.contract("T2")
def test_a_poll_that_waits_is_answered_when_there_is_news_also_without_a_cursor(tasks: Service):
    tasks.people({}, {82: ("waiting", [])})

    def wait(**parameters: Any) -> httpx.Response:
        headers = {"Prefer": "wait=50", "Authorization": f"Bearer {signed(82)}"}
        return httpx.get(tasks.feed, params=parameters, headers=headers, timeout=PATIENCE)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(wait), pool.submit(wait, after_id=0)
        number = tasks.create(82)["task_id"]
        for answer in (first.result(), second.result()):
            assert answer.headers["Preference-Applied"] == "wait=50"
            assert [item["task_id"] for item in answer.json()] == [number]
        last = first.result().json()[0]["event_id"]
        third = pool.submit(wait, after_id=last)
        tasks.act(82, number, "cancel", reason="x")
        assert [item["event_type"] for item in third.result().json()] == ["task_cancelled"]


def streamed(
    tasks: Service, user: int, number: int, headers: dict[str, str] | None = None, query: str = ""
) -> list[Any]:
    """So many events of a stream: (id, item)."""
    decoder = SseDecoder()
    with tasks.as_user(user).stream("GET", f"{EVENTS}/stream{query}", headers=headers or {}) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        told = (each for chunk in answer.iter_bytes() for each in decoder.decode(chunk) if isinstance(each, SseMessage))
        messages = list(islice(told, number))
    assert {message.event for message in messages} == {"task_event"}
    return [(message.id, json.loads(message.data)) for message in messages]


@pytest.mark.contract("T2", "T4")
def test_a_stream_begins_with_the_oldest_and_goes_on_behind_the_last_id(tasks: Service, reader: int):
    everything = tasks.walk(reader)
    whole = streamed(tasks, reader, 120)
    assert [item for _, item in whole] == everything
    assert [int(place) for place, _ in whole] == [item["event_id"] for item in everything]
    small = streamed(tasks, reader, 120, query="?limit=3")
    assert [item for _, item in small] == everything
    middle = everything[59]["event_id"]
    for rest in (
        streamed(tasks, reader, 60, {"Last-Event-ID": str(middle)}),
        streamed(tasks, reader, 60, query=f"?after_id={middle}"),
    ):
        assert [item for _, item in rest] == everything[60:]


@pytest.mark.contract("T2", "T4")
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "polls"])
async def test_the_client_reads_all_of_it_from_the_beginning_and_goes_on_from_where_it_was(
    tasks: Service, reader: int, stream: bool
):
    everything = [item["event_id"] for item in tasks.walk(reader)]
    seen: list[int] = []
    for start in (None, str(everything[59])):
        options: dict[str, Any] = {} if stream else {"stream": False}
        async with follow(tasks.feed, wire=TASKS, token=signed(reader), start=start, limit=7, **options) as events:
            async for event in events:
                seen.append(event.data["event_id"])
                if len(seen) % 60 == 0:
                    break
    assert seen == everything


@pytest.mark.contract("T5")
def test_everybody_around_a_task_hears_of_it_and_who_lost_it_hears_of_that(tasks: Service):
    tasks.people(
        {83: "bosses"},
        {83: ("maker", []), 84: ("first", []), 85: ("second", []), 86: ("boss", [83]), 87: ("boss too", [83])},
    )
    number = tasks.create(83, supervisor_role_ids=[83])["task_id"]
    tasks.act(86, number, "assign", assignee_user_id=84)
    tasks.act(84, number, "submit-report", report="r")
    tasks.act(87, number, "reassign", assignee_user_id=85)
    tasks.act(85, number, "submit-report", report="r")
    tasks.act(83, number, "approve")
    everything = (
        *("task_created", "task_assigned", "report_submitted", "task_reassigned", "report_submitted"),
        "report_approved",
    )
    tasks.shown()
    for user in (83, 86, 87):
        tasks.hears(user, *everything, task_id=number)
    tasks.hears(84, *everything[1:4], task_id=number)
    heard = tasks.hears(85, *everything[3:], task_id=number)
    assert heard[0]["payload"] == {
        "title": "a task",
        "state": "assigned",
        "previous_state": "reported",
        "creator_user_id": 83,
        "assignee_user_id": 85,
        "assignee_name": "second",
        "previous_assignee_user_id": 84,
        "previous_assignee_name": "first",
        "actor_name": "boss too",
        "note": None,
    }
    assert (heard[0]["actor_user_id"], heard[0]["actor_role_id"]) == (87, 83)


@pytest.mark.contract("T5")
def test_a_tag_is_good_for_one_reader_alone(tasks: Service, reader: int):
    last = tasks.walk(reader)[-1]["event_id"]
    parameters = {"after_id": last}
    tag = tasks.as_user(reader).get(EVENTS, params=parameters).headers["ETag"]
    for user, expected in ((reader, 304), (reader + 1, 200), (ADA, 200), (EDSGER, 200)):
        answer = tasks.as_user(user).get(EVENTS, params=parameters, headers={"If-None-Match": tag})
        assert answer.status_code == expected
        assert answer.headers["Vary"] == "Authorization, X-User-Id"
