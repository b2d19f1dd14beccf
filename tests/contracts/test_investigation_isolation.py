"""Nothing of an investigation leaves to somebody who may not read it, over any route; no secret leaves to anybody."""

import json
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import httpx
import pytest

from tests.support.investigations import PATIENCE, ROOT, Service, cursor_parameter, line, some

pytestmark = pytest.mark.newest

BEGINNING = "1970-01-01T00:00:00.000Z#000"


def reading(client: httpx.Client, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Status and everything that came, headers too; of a stream what comes at once."""
    with client.stream("GET", path, headers=headers or {}, timeout=PATIENCE) as answer:
        told = json.dumps(dict(answer.headers))
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, told + next(answer.iter_text())
        return answer.status_code, told + answer.read().decode()


@pytest.mark.contract("L8")
def test_no_route_shows_a_foreign_investigation(investigations: Service) -> None:
    mine, foreign = investigations.open("mine"), investigations.open(canary := f"canary-{uuid4().hex}")
    investigations.write(mine, *some(3))
    investigations.write(foreign, *(line(canary, service=canary[:100], context={"text": canary}) for _ in range(3)))
    reader = investigations.client(f"investigation:{mine}:read", f"investigation:{mine}:write")
    last = investigations.logs(foreign).json()["pagination"]["nextCursor"]
    tag = investigations.logs(foreign).headers["ETag"]
    attempts = [
        (ROOT, {}),
        (f"{ROOT}?limit=200", {}),
        (f"{ROOT}/{foreign}", {}),
        (f"{ROOT}/{foreign}/logs", {}),
        (f"{ROOT}/{foreign}/logs", {"If-None-Match": tag}),
        (f"{ROOT}/{foreign}/logs", {"If-None-Match": "*"}),
        (f"{ROOT}/{foreign}/logs", {"Prefer": "wait=1"}),
        (f"{ROOT}/{foreign}/logs?afterCursor={cursor_parameter(last)}", {}),
        (f"{ROOT}/{foreign}/logs?beforeCursor={cursor_parameter(last)}", {}),
        (f"{ROOT}/{foreign}/logs?fromTime=1970-01-01T00:00:00Z", {}),
        (f"{ROOT}/{foreign}/logs/", {}),
        (f"{ROOT}/{foreign}/logs/stream", {}),
        (f"{ROOT}/{foreign}/logs/stream", {"Last-Event-ID": last}),
        (f"{ROOT}/{mine}/logs", {}),
        (f"{ROOT}/{mine}/logs?service={canary}", {}),
        (f"{ROOT}/{mine}/logs?afterCursor={cursor_parameter(last)}", {}),
        (f"{ROOT}/{mine}/logs?afterCursor={cursor_parameter(BEGINNING)}", {"If-None-Match": tag}),
        (f"{ROOT}/{mine}/logs?beforeCursor={cursor_parameter(last)}", {}),
        (f"{ROOT}/{mine}/logs?fromTime=1970-01-01T00:00:00Z", {}),
        (f"{ROOT}/{mine}/logs/stream", {"Last-Event-ID": last}),
        (f"{ROOT}/{mine}/logs/stream?service={canary}", {"Last-Event-ID": BEGINNING}),
        (f"{ROOT}/{mine}%2F..%2F{foreign}/logs", {}),
        (f"{ROOT}/{mine}/../{foreign}/logs", {}),
        (f"{ROOT}/*/logs", {}),
        (f"{ROOT}/%2A/logs", {}),
        (f"{ROOT}/{mine}:read/logs", {}),
        (f"{ROOT}/{foreign}%00/logs", {}),
        ("/", {}),
        ("/openapi.json", {}),
        ("/docs", {}),
        ("/healthz", {}),
        ("/readyz", {}),
        ("/metrics", {}),
        ("/site.json", {}),
        (f"/investigations/{foreign}", {}),
    ]
    for path, headers in attempts:
        status, told = reading(reader, path, headers)
        assert canary not in told.replace(path, ""), path
        assert status not in (304, 500, 503) or path == "/metrics", path
    for path in (f"{ROOT}/{foreign}", f"{ROOT}/{foreign}/logs", f"{ROOT}/{foreign}/logs/stream"):
        assert reading(reader, path, {"If-None-Match": tag})[0] == 403
    for path in (f"{ROOT}/{foreign}/logs", f"{ROOT}/{foreign}/logs/stream"):
        answer = reader.head(path, headers={"If-None-Match": tag})
        assert (answer.status_code, answer.headers.get("ETag"), answer.headers.get("X-Total-Count")) == (
            403,
            None,
            None,
        )


@pytest.mark.contract("L8", "L11")
def test_what_is_written_elsewhere_reaches_no_stream_and_no_poll_that_waits(investigations: Service) -> None:
    """Readers of one investigation wait while lines are written to another, and then hear of their own alone."""
    mine, foreign, canary = investigations.open(), investigations.open(), f"canary-{uuid4().hex}"
    investigations.write(mine, line("old"))
    cursor = investigations.logs(mine).json()["pagination"]["nextCursor"]
    waiting = {"afterCursor": cursor}
    with ThreadPoolExecutor(4) as pool:
        polls = [
            pool.submit(polled, investigations, mine, {**waiting, **filters}) for filters in ({}, {"minLevel": "ERROR"})
        ]
        told = [pool.submit(heard, investigations, mine, cursor, filters) for filters in ("", "?minLevel=ERROR")]
        investigations.write(foreign, *some(50, canary, level="ERROR", service=canary))
        investigations.write(mine, line("own", level="ERROR"))
        ways = [way.result(PATIENCE) for way in (*polls, *told)]
    for way in ways:
        assert "own" in way
        assert canary not in way


def polled(investigations: Service, case: str, parameters: dict[str, str]) -> str:
    """Everything that a poll is answered which waits, and waits again, until its first line."""
    reader, told = investigations.client(f"investigation:{case}:read"), ""
    while '"message"' not in told:
        answer = reader.get(f"{ROOT}/{case}/logs", params=parameters, headers={"Prefer": "wait=25"})
        told += answer.text
        assert answer.status_code == 200, told
    return told


def heard(investigations: Service, case: str, cursor: str, filters: str) -> str:
    """Everything that a stream says until its first line."""
    reader = investigations.client(f"investigation:{case}:read")
    path = f"{ROOT}/{case}/logs/stream{filters}"
    with reader.stream("GET", path, headers={"Last-Event-ID": cursor}, timeout=PATIENCE) as answer:
        return until_a_line(answer)


def until_a_line(answer: httpx.Response) -> str:
    """What comes until the first line is there, whole."""
    told = ""
    for piece in answer.iter_text():
        told += piece
        if "event: log" in told and told.endswith("\n\n"):
            break
    return told


@pytest.mark.contract("L12")
def test_a_name_that_is_taken_elsewhere_is_free_here_and_tells_nothing(investigations: Service) -> None:
    mine, foreign = investigations.open(), investigations.open()
    known = line("theirs", event_id=str(uuid4()))
    investigations.write(foreign, known)
    writer = investigations.client(f"investigation:{mine}:write")
    answer = writer.post(f"{ROOT}/{mine}/logs", json={**known, "message": "mine"})
    assert (answer.status_code, answer.json()["results"][0]["status"]) == (201, "stored")
    assert [log["message"] for log in investigations.logs(foreign).json()["logs"]] == ["theirs"]


@pytest.mark.contract("L8")
def test_writing_and_closing_a_foreign_investigation_is_refused(investigations: Service) -> None:
    mine, foreign = investigations.open(), investigations.open()
    writer = investigations.client(f"investigation:{mine}:read", f"investigation:{mine}:write")
    assert writer.post(f"{ROOT}/{foreign}/logs", json=line()).status_code == 403
    assert writer.post(f"{ROOT}/{foreign}/close").status_code == 403
    assert investigations.client().get(f"{ROOT}/{foreign}").json()["status"] == "open"


@pytest.mark.contract("L8")
def test_what_is_not_there_is_404_for_those_who_may_and_403_for_those_who_may_not(investigations: Service) -> None:
    for path in (f"{ROOT}/INV-none", f"{ROOT}/INV-none/logs", f"{ROOT}/INV-none/logs/stream"):
        allowed = investigations.client("investigation:*:read").get(path)
        assert (allowed.status_code, allowed.json()) == (
            404,
            {"error": "not_found", "message": "Investigation INV-none not found"},
        )
        refused = investigations.client("investigation:INV-other:read").get(path)
        assert (refused.status_code, refused.json()) == (
            403,
            {"error": "forbidden", "message": "Insufficient permissions for investigation:INV-none:read"},
        )


SECRETS = {
    "email": "ada.lovelace@example.com",
    "phone": "+44 20 7946 0958",
    "card": "4111 1111 1111 1111",
    "ssn": "078-05-1120",
    "ipv4": "203.0.113.77",
    "ipv6": "2001:db8:85a3::8a2e:370:7334",
    "bearer": "Bearer abcdefghijklmnopqrstuvwxyz0123456789",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "password": "password=hunter2hunter2",
    "url": "postgres://user:s3cr3t-pass@db.example.com/app",
}


@pytest.mark.contract("L10")
@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_leave_neither_in_messages_nor_in_contexts_by_page_or_stream(
    investigations: Service, kind: str
) -> None:
    case, secret = investigations.open(), SECRETS[kind]
    context = {"said": secret, "deep": [{"said": f"x {secret} y"}], "password": "hunter2hunter2"}
    investigations.write(case, line(f"it was {secret} all along", context=context))
    page = investigations.logs(case)
    reader = investigations.client(f"investigation:{case}:read")
    with reader.stream("GET", f"{ROOT}/{case}/logs/stream", headers={"Last-Event-ID": BEGINNING}) as stream:
        told = until_a_line(stream)
    hidden = secret.split("=")[-1].removeprefix("Bearer ")
    hidden = "s3cr3t-pass" if kind == "url" else hidden
    # What the servers wrote into their own logs is a way out, too.
    assert hidden not in str(investigations.server)
    for way in (page.text, told):
        assert "it was" in way
        assert hidden not in way
        assert "hunter2hunter2" not in way
