"""Reading logs page by page from running server processes: parameters, body, order, ETags, limits across processes."""

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import jwt
import psycopg
import pytest

from systems.investigations.events import LogRecorded, outbox
from tests.support.investigations import KEY_SET, PATIENCE, ROOT, SECRET, TLS, Service, line, messages, some

pytestmark = pytest.mark.newest

BEGINNING = "1970-01-01T00:00:00.000Z#000"
WRONG = [
    "limit=9",
    "limit=1001",
    "limit=x",
    "limit=10&limit=20",
    "minLevel=FATAL",
    "minLevel=info",
    "source=middle",
    "service=",
    "service=%00",
    "service=%FF",
    f"service={'x' * 101}",
    "afterCursor=",
    "level=INFO",
]
CURSOR = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z#\d{3,}")


@pytest.mark.contract("L1")
def test_filters_by_level_source_and_service_can_be_combined(investigations: Service) -> None:
    case = investigations.open()
    kinds = [
        (source, service, level)
        for source in ("frontend", "backend")
        for service in ("shop", "bank")
        for level in ("DEBUG", "INFO", "WARN", "ERROR")
    ]
    investigations.write(
        case,
        *(line(" ".join(kind), source=kind[0], service=kind[1], level=kind[2]) for kind in kinds for _ in range(2)),
    )

    def found(**parameters: str) -> set[str]:
        return set(messages(investigations.logs(case, **parameters)))

    assert found() == {" ".join(kind) for kind in kinds}
    assert found(source="frontend") == {" ".join(kind) for kind in kinds if kind[0] == "frontend"}
    assert found(service="bank") == {" ".join(kind) for kind in kinds if kind[1] == "bank"}
    assert found(minLevel="WARN") == {" ".join(kind) for kind in kinds if kind[2] in ("WARN", "ERROR")}
    assert found(minLevel="ERROR", source="backend", service="shop") == {"backend shop ERROR"}
    assert found(service="nobody") == set()


@pytest.mark.contract("L1")
@pytest.mark.parametrize("query", WRONG)
def test_what_is_out_of_range_or_unknown_is_400_with_details(investigations: Service, query: str) -> None:
    reader = investigations.client("investigation:*:read")
    case = investigations.open()
    for path in (f"{ROOT}/{case}/logs?{query}", f"{ROOT}/{case}/logs/stream?{query}"):
        answer = reader.get(path)
        assert answer.status_code == 400, path
        body = answer.json()
        assert body["error"] == "bad_request"
        assert body["message"]
        assert "details" in body or "NUL" in body["message"] or "UTF-8" in body["message"]


@pytest.mark.contract("L2", "L6")
def test_the_body_and_the_headers_are_those_of_the_document(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(12))
    answer = investigations.logs(case, limit=10, afterCursor=BEGINNING)
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["ETag"].startswith('W/"')
    assert (answer.headers["X-Total-Count"], answer.headers["X-Has-More"]) == ("12", "true")
    body = answer.json()
    assert set(body) == {"logs", "pagination"}
    fields = "event_id ts seq source service level message investigation_id correlation_id context schema_version"
    for log in body["logs"]:
        assert set(log) == set(fields.split())
    last = body["logs"][-1]
    assert body["pagination"] == {
        "afterCursor": BEGINNING,
        "nextCursor": f"{last['ts']}#{last['seq']:03d}",
        "hasMore": True,
        "limit": 10,
        "returned": 10,
    }
    assert CURSOR.fullmatch(body["pagination"]["nextCursor"])


@pytest.mark.contract("L5")
def test_a_filtered_page_says_how_far_it_looked(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(30), line("the one", level="ERROR"), *some(30))
    first = investigations.logs(case, minLevel="ERROR", afterCursor=BEGINNING, limit=10).json()
    assert [log["message"] for log in first["logs"]] == ["the one"]
    assert first["pagination"]["nextCursor"].endswith("#061")
    investigations.write(case, *some(30))
    after = first["pagination"]["nextCursor"]
    second = investigations.logs(case, minLevel="ERROR", afterCursor=after, limit=10)
    assert second.json()["logs"] == []
    assert (second.json()["pagination"]["nextCursor"], second.json()["pagination"]["hasMore"]) == (None, False)
    assert second.headers["X-Next-Cursor"].endswith("#091")
    investigations.write(case, line("another", level="ERROR"))
    for after in (first["pagination"]["nextCursor"], second.headers["X-Next-Cursor"]):
        third = investigations.logs(case, minLevel="ERROR", afterCursor=after, limit=10)
        assert messages(third) == ["another"]


@pytest.mark.contract("L4", "L3")
def test_a_line_that_commits_late_is_not_hidden_behind_a_cursor(investigations: Service) -> None:
    case = investigations.open()

    def publish(connection: psycopg.Connection[Any], message: str) -> None:
        outbox.publish(connection, LogRecorded(case, uuid4(), "backend", "shop", "INFO", message))

    with psycopg.connect(investigations.dsn) as late, psycopg.connect(investigations.dsn) as early:
        publish(late, "written first, committed last")
        publish(early, "written last, committed first")
        early.commit()
        investigations.shows(case, 1)
        first = investigations.logs(case).json()
        assert [log["message"] for log in first["logs"]] == ["written last, committed first"]
        late.commit()
    investigations.shows(case, 2)
    rest = investigations.logs(case, afterCursor=first["pagination"]["nextCursor"])
    assert messages(rest) == ["written first, committed last"]
    assert rest.json()["logs"][0]["ts"] >= first["logs"][0]["ts"]


@pytest.mark.contract("L6", "L3")
@pytest.mark.parametrize("limit", [10, 37, 1000])
def test_a_poller_that_sends_the_last_etag_misses_nothing_while_lines_arrive(
    investigations: Service, limit: int
) -> None:
    """As the document's client does it: the ETag of whatever came last, on a new connection each time."""
    case, total = investigations.open(), 300
    lines = some(total)

    def produce(part: list[dict[str, Any]]) -> None:
        producer = investigations.client()
        for start in range(0, len(part), 7):
            assert producer.post(f"{ROOT}/{case}/logs", json=part[start : start + 7]).status_code == 201

    seen: list[str] = []
    cursor, tag, asked = BEGINNING, "", 0
    with ThreadPoolExecutor(3) as pool:
        work = [pool.submit(produce, lines[start::3]) for start in range(3)]
        deadline = time.monotonic() + 2 * PATIENCE
        headers: dict[str, str] = {}
        while len(seen) < total and time.monotonic() < deadline:
            if asked % 90 == 0:
                headers["Authorization"] = f"Bearer {investigations.token(f'investigation:{case}:read')}"
            asked += 1
            # Every second time it waits a moment for news: nobody reads one investigation a thousand times a minute.
            wait = {"Prefer": "wait=1"} if asked % 2 else {}
            answer = httpx.get(
                f"{investigations.url}{ROOT}/{case}/logs",
                params={"afterCursor": cursor, "limit": str(limit)},
                headers={**headers, **wait, "If-None-Match": tag},
                timeout=PATIENCE,
            )
            if answer.status_code == 304:
                continue
            assert answer.status_code == 200, answer.text
            tag = answer.headers["ETag"]
            seen += [log["event_id"] for log in answer.json()["logs"]]
            cursor = answer.json()["pagination"]["nextCursor"] or cursor
        for each in work:
            each.result()
    assert len(seen) == len(set(seen)) == total
    assert set(seen) == {each["event_id"] for each in lines}


@pytest.mark.contract("L7")
def test_a_304_costs_no_query(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(3))
    reader = investigations.client(f"investigation:{case}:read")

    def questions() -> float:
        figures = reader.get("/metrics").text
        return sum(map(float, re.findall(r"^feed_questions_total{\S+} (\S+)$", figures, re.MULTILINE)))

    # One connection, and so one process: it is warm after the first page. The others have nothing to do; but what
    # readers of another test have left behind may still be asked, and a process that is busy does not tell its figures.
    tag = reader.get(f"{ROOT}/{case}/logs").headers["ETag"]
    asked: list[float] = []
    while 0 not in asked and len(asked) < 4:
        before = questions()
        for _ in range(20):
            assert reader.get(f"{ROOT}/{case}/logs", headers={"If-None-Match": tag}).status_code == 304
        asked.append(questions() - before)
    assert 0 in asked, asked


@pytest.mark.contract("L7")
def test_a_long_poll_is_answered_by_the_line_it_waits_for(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, line("old"))
    cursor = investigations.logs(case).json()["pagination"]["nextCursor"]
    reader = investigations.client(f"investigation:{case}:read")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            reader.get, f"{ROOT}/{case}/logs", params={"afterCursor": cursor}, headers={"Prefer": "wait=50"}
        )
        investigations.write(case, line("new"))
        assert messages(waiting.result(PATIENCE)) == ["new"]


@pytest.mark.contract("L8")
@pytest.mark.parametrize("kind", ["none", "garbage", "expired", "forged", "other scheme"])
def test_whoever_is_not_known_is_401_on_every_route(investigations: Service, kind: str) -> None:
    case = investigations.open()
    token = investigations.token("investigation:*:read", "investigation:*:write")
    head, claims, signature = token.split(".")
    shown = {
        "none": None,
        "garbage": "Bearer garbage",
        "expired": f"Bearer {expired()}",
        "forged": f"Bearer {head}.{claims}.{signature[::-1]}",
        "other scheme": f"Basic {token}",
    }[kind]
    headers = {"Authorization": shown} if shown is not None else {}
    with httpx.Client(base_url=investigations.url, headers=headers, timeout=PATIENCE, verify=TLS) as nobody:
        for answer in (
            nobody.get(ROOT),
            nobody.post(ROOT, json={"title": "x"}),
            nobody.get(f"{ROOT}/{case}"),
            nobody.post(f"{ROOT}/{case}/close"),
            nobody.post(f"{ROOT}/{case}/logs", json=line()),
            nobody.get(f"{ROOT}/{case}/logs"),
            nobody.get(f"{ROOT}/{case}/logs", headers={"If-None-Match": "*"}),
            nobody.get(f"{ROOT}/{case}/logs/stream"),
        ):
            assert answer.status_code == 401
            assert answer.json() == {"error": "unauthorized", "message": "Missing or invalid authentication token"}


@pytest.mark.contract("L8")
def test_errors_have_the_bodies_of_the_document(investigations: Service) -> None:
    case = investigations.open()
    reader = investigations.client(f"investigation:{case}:read", "investigation:INV-none:read")
    for way in ("logs", "logs/stream"):
        stranger = investigations.client("investigation:other:read").get(f"{ROOT}/{case}/{way}")
        assert (stranger.status_code, stranger.json()) == (
            403,
            {"error": "forbidden", "message": f"Insufficient permissions for investigation:{case}:read"},
        )
        nothing = reader.get(f"{ROOT}/INV-none/{way}")
        assert (nothing.status_code, nothing.json()) == (
            404,
            {"error": "not_found", "message": "Investigation INV-none not found"},
        )
        wrong = reader.get(f"{ROOT}/{case}/{way}", params={"afterCursor": "invalid-format"})
        body = wrong.json()
        # Behind what the document says stands how it should look.
        assert body.pop("message").startswith("Invalid cursor format: expected 'timestamp#seq'")
        assert (wrong.status_code, body) == (400, {"error": "bad_request", "details": {"cursor": "invalid-format"}})


@pytest.mark.contract("L1")
def test_the_systems_own_routes_refuse_what_they_do_not_know_too(investigations: Service) -> None:
    case = investigations.open()
    anybody = investigations.client()
    for answer in (
        anybody.get(ROOT, params={"limt": "5"}),
        anybody.get(f"{ROOT}/{case}", params={"verbose": "1"}),
        anybody.post(f"{ROOT}/{case}/close", params={"force": "1"}),
        anybody.post(f"{ROOT}/{case}/logs", params={"sync": "1"}, json=line()),
    ):
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
        assert "takes" in answer.json()["message"]
    assert anybody.get(f"{ROOT}/{case}").json()["status"] == "open"
    long = anybody.get(f"{ROOT}/{'x' * 3000}")
    assert (long.status_code, len(long.json()["message"]) < 200) == (404, True)
    wrong = anybody.put(f"{ROOT}/{case}/logs")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET, HEAD, OPTIONS, POST")
    assert wrong.json()["message"] == "PUT is not allowed here: use GET, HEAD, OPTIONS, POST"


def expired() -> str:
    """A token whose time is up, leeway and all."""
    told = json.loads(KEY_SET)
    claims = {"iss": told["issuer"], "aud": told["audience"], "sub": "late", "exp": int(time.time()) - 600}
    granted = {"permissions": ["investigation:*:read"]}
    return jwt.encode({**claims, **granted}, jwt.PyJWK(SECRET).key, "HS256", {"kid": SECRET["kid"]})


@pytest.mark.thorough
@pytest.mark.contract("L9")
def test_the_limit_of_an_investigation_counts_all_users_in_all_processes(investigations: Service) -> None:
    case = investigations.open()

    def ask(number: int) -> list[str]:
        return many_at_once(investigations, case, 90)

    with ThreadPoolExecutor(4) as pool:
        answers = [answer for found in pool.map(ask, range(14)) for answer in found]
    refused = [answer for answer in answers if answer.startswith("429")]
    assert {answer[:3] for answer in answers} == {"200", "429"}
    assert '"Too many requests. Limit: 1000 per minute per investigation"' in refused[-1]
    assert "\r\nratelimit-policy:" in refused[-1].lower()
    # Another investigation is not concerned.
    other = investigations.open()
    assert investigations.logs(other).status_code == 200


def many_at_once(investigations: Service, case: str, number: int) -> list[str]:
    """So many requests of somebody new in one piece, and the answers from their status on.

    One after the other they might take so long that nobody asks too often.
    """
    where, token = urlsplit(investigations.url), investigations.token(f"investigation:{case}:read")
    request = f"GET {ROOT}/{case}/logs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    last = f"{request}Connection: close\r\n\r\n"
    with socket.create_connection((where.hostname, where.port), PATIENCE) as connection:
        connection.sendall(f"{request}\r\n".encode() * (number - 1) + last.encode())
        with connection.makefile("rb") as answers:
            told = answers.read().decode()
    return told.split("HTTP/1.1 ")[1:]
