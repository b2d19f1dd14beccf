"""Taking logs: answered when committed, stored once, refused as a whole. Against running server processes."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from tests.support.investigations import ROOT, Service, eventually, line, some

pytestmark = [pytest.mark.contract("L12"), pytest.mark.newest]


def stored(investigations: Service, case: str) -> int:
    """How many lines of an investigation are in outbox and log."""
    query = """
        select count(*) from (
            select aggregate_id from investigation_events.outbox where aggregate_type = 'investigation'
            union all select aggregate_id from investigation_events.log where aggregate_type = 'investigation'
        ) as line where aggregate_id = %s
    """
    return int(investigations.rows(query, case)[0][0])


def test_a_line_is_committed_when_it_is_answered(investigations: Service) -> None:
    case = investigations.open()
    answer = investigations.client().post(f"{ROOT}/{case}/logs", json=line("one", event_id=str(uuid4())))
    assert answer.status_code == 201
    assert answer.json()["stored"] == 1
    assert stored(investigations, case) == 1


@pytest.mark.parametrize("form", ["array", "object"])
def test_a_batch_is_one_transaction_and_answered_line_by_line(investigations: Service, form: str) -> None:
    case, lines = investigations.open(), some(1000)
    body: Any = lines if form == "array" else {"logs": lines}
    answer = investigations.client().post(f"{ROOT}/{case}/logs", json=body)
    assert answer.status_code == 201
    assert [result["event_id"] for result in answer.json()["results"]] == [each["event_id"] for each in lines]
    assert {result["status"] for result in answer.json()["results"]} == {"stored"}
    assert stored(investigations, case) == 1000
    investigations.shows(case, 1000)
    shown = investigations.logs(case, limit=1000).json()["logs"]
    assert [log["event_id"] for log in shown] == [each["event_id"] for each in lines]


def test_a_repeated_event_id_is_stored_once(investigations: Service) -> None:
    case, lines = investigations.open(), some(5)
    producer = investigations.client()
    first = producer.post(f"{ROOT}/{case}/logs", json=[*lines, lines[0]])
    assert [result["status"] for result in first.json()["results"]] == ["stored"] * 5 + ["duplicate"]
    again = producer.post(f"{ROOT}/{case}/logs", json=[line("new", event_id=str(uuid4())), *lines])
    assert [result["status"] for result in again.json()["results"]] == ["stored"] + ["duplicate"] * 5
    only_old = producer.post(f"{ROOT}/{case}/logs", json=lines)
    assert (only_old.status_code, only_old.json()["stored"], only_old.json()["duplicates"]) == (200, 0, 5)
    assert stored(investigations, case) == 6


def test_producers_that_send_the_same_batch_at_once_store_it_once(investigations: Service) -> None:
    case, lines = investigations.open(), some(200)
    orders = [lines, lines[::-1], lines[100:] + lines[:100], lines[::2] + lines[1::2]]
    with ThreadPoolExecutor(len(orders)) as pool:
        answers = list(pool.map(lambda order: investigations.client().post(f"{ROOT}/{case}/logs", json=order), orders))
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert sum(answer.json()["stored"] for answer in answers) == 200
    assert stored(investigations, case) == 200


def test_the_same_event_id_in_two_investigations_is_two_lines(investigations: Service) -> None:
    one, other, log = investigations.open(), investigations.open(), line("both", event_id=str(uuid4()))
    producer = investigations.client()
    for case in (one, other):
        assert producer.post(f"{ROOT}/{case}/logs", json=log).json()["results"][0]["status"] == "stored"
    for case in (one, other):
        investigations.shows(case, 1)
        assert investigations.logs(case).json()["logs"][0]["event_id"] == log["event_id"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"level": "FATAL"}, "level"),
        ({"source": "middle"}, "source"),
        ({"service": ""}, "service"),
        ({"service": "x" * 101}, "service"),
        ({"message": 7}, "message"),
        ({"event_id": "not-a-uuid"}, "event_id"),
        ({"ts": "yesterday"}, "ts"),
        ({"ts": "2025-11-12T10:30:05"}, "ts"),
        ({"context": []}, "context"),
        ({"context": {"deep": {"nul": "a\x00b"}}}, "context.deep.nul"),
        ({"correlation_id": "a\x00b"}, "correlation_id"),
        ({"message": "a\x00b"}, "message"),
        ({"investigation_id": "INV-another"}, "investigation_id"),
        ({"schema_version": 2}, "schema_version"),
        ({"seq": 3}, "seq"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_stored(investigations: Service, wrong: dict[str, Any], field: str) -> None:
    case = investigations.open()
    answer = investigations.client().post(f"{ROOT}/{case}/logs", json=[line(), line(), {**line(), **wrong}, line()])
    assert answer.status_code == 400
    body = answer.json()
    assert body["error"] == "bad_request"
    assert (body["details"]["index"], body["details"]["field"]) == (2, field)
    assert stored(investigations, case) == 0


def test_a_missing_field_is_named(investigations: Service) -> None:
    case, incomplete = investigations.open(), line()
    del incomplete["level"]
    answer = investigations.client().post(f"{ROOT}/{case}/logs", json={"logs": [line(), incomplete]})
    assert (answer.status_code, answer.json()["details"]["index"], answer.json()["details"]["field"]) == (
        400,
        1,
        "level",
    )


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"7", b'"text"', b"\xff", b'{"logs": {}}', b'{"logs": []}']
)
def test_a_body_that_is_no_log_is_refused(investigations: Service, body: bytes) -> None:
    case = investigations.open()
    answer = investigations.client().post(f"{ROOT}/{case}/logs", content=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


def test_too_much_at_once_is_413(investigations: Service) -> None:
    case, producer = investigations.open(), investigations.client()
    many = producer.post(f"{ROOT}/{case}/logs", json=some(1001))
    long = producer.post(f"{ROOT}/{case}/logs", json=[line(), line(context={"text": "x" * 70_000})])
    huge = producer.post(f"{ROOT}/{case}/logs", content=b" " * (9 * 1024 * 1024))
    for answer in (many, long, huge):
        assert (answer.status_code, answer.json()["error"]) == (413, "payload_too_large")
    assert long.json()["details"]["index"] == 1
    assert stored(investigations, case) == 0


def test_a_closed_investigation_takes_no_logs_and_can_be_read(investigations: Service) -> None:
    case, owner = investigations.open(), investigations.client()
    investigations.write(case, line("before"))
    closed = owner.post(f"{ROOT}/{case}/close")
    assert (closed.status_code, closed.json()["status"]) == (200, "closed")
    assert owner.post(f"{ROOT}/{case}/close").json() == closed.json()
    late = owner.post(f"{ROOT}/{case}/logs", json=line("after"))
    assert (late.status_code, late.json()["error"]) == (409, "conflict")
    assert [log["message"] for log in investigations.logs(case).json()["logs"]] == ["before"]


def test_a_retry_after_the_closing_is_answered_as_before_it(investigations: Service) -> None:
    case, lines, producer = investigations.open(), some(3), investigations.client()
    assert producer.post(f"{ROOT}/{case}/logs", json=lines).status_code == 201
    before = producer.post(f"{ROOT}/{case}/logs", json=lines)
    assert producer.post(f"{ROOT}/{case}/close").status_code == 200
    after = producer.post(f"{ROOT}/{case}/logs", json=lines)
    assert (after.status_code, after.json()) == (200, before.json())
    mixed = producer.post(f"{ROOT}/{case}/logs", json=[*lines, *some(1)])
    assert (mixed.status_code, mixed.json()["error"]) == (409, "conflict")
    assert stored(investigations, case) == 3


def test_a_title_leaves_without_what_must_not_be_seen(investigations: Service) -> None:
    owner = investigations.client()
    made = owner.post(ROOT, json={"title": "login of ada@example.com fails, password=hunter2"})
    where = f"{ROOT}/{made.json()['investigation_id']}"
    for answer in (made, owner.get(where), owner.get(ROOT), owner.post(f"{where}/close")):
        assert answer.is_success
        assert "ada@example.com" not in answer.text
        assert "hunter2" not in answer.text
    assert made.json()["title"].startswith("login of ")


def test_what_is_allowed_at_the_logs_names_writing_too(investigations: Service) -> None:
    logs, anybody = f"{ROOT}/INV-1/logs", investigations.client()
    allowed = anybody.options(logs)
    assert (allowed.status_code, allowed.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    refused = anybody.delete(logs)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed.headers["allow"])
    assert anybody.options(f"{logs}/stream").headers["allow"] == "GET, HEAD, OPTIONS"


def test_writing_needs_the_permission_for_this_investigation(investigations: Service) -> None:
    case, other = investigations.open(), investigations.open()
    for permissions in ((f"investigation:{case}:read",), (f"investigation:{other}:write",), ("investigation:create",)):
        answer = investigations.client(*permissions).post(f"{ROOT}/{case}/logs", json=line())
        assert answer.status_code == 403
        assert answer.json()["message"] == f"Insufficient permissions for investigation:{case}:write"
    assert investigations.with_token(None).post(f"{ROOT}/{case}/logs", json=line()).status_code == 401
    missing = investigations.client().post(f"{ROOT}/INV-none/logs", json=line())
    assert (missing.status_code, missing.json()["message"]) == (404, "Investigation INV-none not found")
    assert stored(investigations, case) == 0


def test_investigations_are_opened_found_and_listed_by_those_who_may(investigations: Service) -> None:
    owner = investigations.client()
    name = f"case-{uuid4()}"
    made = owner.post(ROOT, json={"title": "Checkout is slow", "investigation_id": name})
    assert (made.status_code, made.headers["Location"]) == (201, f"{ROOT}/{name}")
    assert owner.post(ROOT, json={"title": "again", "investigation_id": name}).status_code == 409
    assert owner.get(f"{ROOT}/{name}").json() == made.json()
    assert owner.get(ROOT, params={"limit": "1"}).json()["investigations"][0] == made.json()
    newer = investigations.open()
    confined = investigations.client(f"investigation:{name}:read").get(ROOT).json()
    assert [case["investigation_id"] for case in confined["investigations"]] == [name]
    assert investigations.client("investigation:create").get(ROOT).json()["investigations"] == []
    assert newer not in str(confined)
    for wrong in (
        {"title": ""},
        {"title": "x", "investigation_id": "a:b"},
        {"title": "x", "more": 1},
        {},
        {"title": "a\x00"},
    ):
        assert owner.post(ROOT, json=wrong).status_code == 400, wrong
    assert investigations.client(f"investigation:{name}:read").post(ROOT, json={"title": "x"}).status_code == 403


def test_a_line_reaches_readers_with_the_eleven_fields(investigations: Service) -> None:
    case, event_id = investigations.open(), str(uuid4())
    sent = line(
        "Investigation started", event_id=event_id, correlation_id="req-abc123", context={"user_id": "user-456"}
    )
    investigations.write(case, sent)
    (log,) = eventually(lambda: investigations.logs(case).json()["logs"])
    assert log.pop("ts").endswith("Z")
    assert log == {**sent, "seq": 1, "investigation_id": case, "schema_version": 1}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"title": ""}, "title"),
        ({}, "title"),
        ({"title": 7}, "title"),
        ({"title": "x\x00"}, "title"),
        ({"title": "x", "id": "y"}, "id"),
        ({"title": "x", "investigation_id": "a b"}, "investigation_id"),
        ({"title": "x", "investigation_id": "x" * 101}, "investigation_id"),
    ],
)
def test_what_cannot_be_opened_is_named(investigations: Service, body: dict[str, Any], field: str) -> None:
    answer = investigations.client().post(ROOT, json=body)
    assert (answer.status_code, answer.json()["details"]) == (400, {"field": field})
