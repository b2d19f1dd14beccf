"""The ten scenarios of the investigation log's document, each against running server processes."""

from datetime import datetime, timedelta

import pytest

from tests.support.investigations import ROOT, Service, cursor_parameter, eventually, line, messages, some

pytestmark = [pytest.mark.contract("L15"), pytest.mark.newest]


@pytest.mark.contract("L3")
def test_scenario_01_initial_fetch(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(25))
    answer = investigations.logs(case, limit=10)
    assert messages(answer) == [f"line {number}" for number in range(15, 25)]
    assert answer.json()["pagination"]["afterCursor"] is None


@pytest.mark.contract("L3", "L5")
def test_scenario_02_pagination(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(35))
    first = investigations.logs(case, afterCursor="1970-01-01T00:00:00.000Z#000", limit=10).json()
    second = investigations.logs(case, afterCursor=first["pagination"]["nextCursor"], limit=10).json()
    assert [log["seq"] for log in first["logs"]] == list(range(1, 11))
    assert [log["seq"] for log in second["logs"]] == list(range(11, 21))
    assert second["pagination"]["afterCursor"] == first["pagination"]["nextCursor"]
    assert second["pagination"]["hasMore"] is True


@pytest.mark.contract("L5")
def test_scenario_03_end_of_stream(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(23))
    cursor, seen, pages = "1970-01-01T00:00:00.000Z#000", 0, 0
    while True:
        page = investigations.logs(case, afterCursor=cursor, limit=10).json()
        seen += len(page["logs"])
        pages += 1
        if not page["pagination"]["hasMore"]:
            break
        cursor = page["pagination"]["nextCursor"]
    assert (seen, pages) == (23, 3)
    last = page["pagination"]["nextCursor"]
    after_the_end = investigations.logs(case, afterCursor=last, limit=10).json()
    assert after_the_end["logs"] == []
    assert after_the_end["pagination"] == {
        "afterCursor": last,
        "nextCursor": None,
        "hasMore": False,
        "limit": 10,
        "returned": 0,
    }


@pytest.mark.contract("L6", "L7")
def test_scenario_04_etag_conditional(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(3))
    reader = investigations.client(f"investigation:{case}:read")
    path = f"{ROOT}/{case}/logs"
    tag = reader.get(path).headers["ETag"]
    again = reader.get(path, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
    # The form in which the document writes it.
    inner = tag.removeprefix("W/").strip('"')
    literal = reader.get(path, headers={"If-None-Match": f'"W/\\"{inner}\\""'})
    assert literal.status_code == 304
    investigations.write(case, line("news"))
    fresh = reader.get(path, headers={"If-None-Match": tag})
    assert fresh.status_code == 200
    assert messages(fresh)[-1] == "news"
    assert fresh.headers["ETag"] != tag


@pytest.mark.contract("L1")
def test_scenario_05_filtering(investigations: Service) -> None:
    case = investigations.open()
    levels = ["DEBUG", "INFO", "WARN", "ERROR"]
    investigations.write(case, *(line(f"{level} {turn}", level=level) for turn in range(6) for level in levels))
    found = investigations.logs(case, minLevel="ERROR").json()["logs"]
    assert [log["level"] for log in found] == ["ERROR"] * 6
    upwards = investigations.logs(case, minLevel="WARN").json()["logs"]
    assert {log["level"] for log in upwards} == {"WARN", "ERROR"}


@pytest.mark.contract("L9")
def test_scenario_06_rate_limiting(investigations: Service) -> None:
    case = investigations.open()
    reader = investigations.client(f"investigation:{case}:read")
    answers = [reader.get(f"{ROOT}/{case}/logs") for _ in range(101)]
    # Who is slow gets some more, as time goes on; and one is the share of the second server process.
    while answers[-1].status_code != 429 and len(answers) < 1000:
        answers.append(reader.get(f"{ROOT}/{case}/logs"))
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert {answer.status_code for answer in answers[:100]} == {200}
    body = refused.json()
    assert set(body) == {"error", "message", "retry_after"}
    assert body["error"] == "rate_limit_exceeded"
    assert body["message"] == "Too many requests. Limit: 100 per minute per user"
    # Until a minute has passed since the first two.
    assert 0 < body["retry_after"] <= 60
    assert refused.headers["Retry-After"] == str(body["retry_after"])


@pytest.mark.contract("L5")
@pytest.mark.parametrize(
    "cursor", ["invalid-format", "2025-11-12T10:30:05.123Z", "#042", "2025-13-12T10:30:05.123Z#042"]
)
def test_scenario_07_invalid_cursor(investigations: Service, cursor: str) -> None:
    case = investigations.open()
    reader = investigations.client(f"investigation:{case}:read")
    answer = reader.get(f"{ROOT}/{case}/logs?afterCursor={cursor_parameter(cursor)}")
    assert answer.status_code == 400
    body = answer.json()
    assert body["error"] == "bad_request"
    assert body["details"]["cursor"] == cursor
    if "#" not in cursor and cursor.endswith("Z"):
        assert "%23" in body["message"]


@pytest.mark.contract("L8")
def test_scenario_08_authorization(investigations: Service) -> None:
    case = investigations.open()
    answer = investigations.with_token(None).get(f"{ROOT}/{case}/logs")
    assert answer.status_code == 401
    assert answer.json() == {"error": "unauthorized", "message": "Missing or invalid authentication token"}


@pytest.mark.contract("L1")
def test_scenario_09_large_limit(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(1100))
    whole = investigations.logs(case, limit=1000).json()
    assert whole["pagination"]["returned"] == len(whole["logs"]) == 1000
    assert whole["pagination"]["limit"] == 1000
    reader = investigations.client(f"investigation:{case}:read")
    for limit in ("1001", "9", "0", "-1", "many", ""):
        answer = reader.get(f"{ROOT}/{case}/logs?limit={limit}")
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request"), limit
        assert answer.json()["details"]


@pytest.mark.contract("L4")
def test_scenario_10_clock_skew(investigations: Service) -> None:
    case = investigations.open()
    now = datetime.fromisoformat("2025-11-12T10:30:00+00:00")
    clocks = [now, now - timedelta(hours=3), now + timedelta(days=400), now - timedelta(days=9000)]
    for number, clock in enumerate(clocks):
        source = "frontend" if number % 2 else "backend"
        investigations.write(case, line(f"line {number}", source=source, ts=clock.isoformat()))
    logs = eventually(lambda: investigations.logs(case).json()["logs"])
    assert [log["message"] for log in logs] == [f"line {number}" for number in range(4)]
    assert [log["seq"] for log in logs] == [1, 2, 3, 4]
    assert [log["ts"] for log in logs] == sorted(log["ts"] for log in logs)
    assert [log["context"]["client_ts"] for log in logs] == [clock.isoformat() for clock in clocks]
