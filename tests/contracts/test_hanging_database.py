"""The systems' own routes while their database hangs: each is answered, and a change is made once."""

import asyncio
import json
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from aftercommit.application import Serving
from aftercommit.errors import DeclarationError
from aftercommit.postgres.database import Database
from aftercommit.testing.postgres import PostgresServerForTests
from systems.host.site import ANSWERS_WITHIN, Site
from systems.site import SYSTEMS
from tests.support.hanging import LIMIT, frozen
from tests.support.investigations import PATIENCE, TLS, eventually, line, serving
from tests.support.tasks import ADA, ENGINEERS, GRACE, Service, prepared, signed

INVESTIGATIONS = "/api/v1/investigations"
EVERYTHING = ("investigation:create", "investigation:*:read", "investigation:*:write")
SILENT = f"The database did not answer within {LIMIT:g} seconds"
NOTHING_DONE = "The database is busy or cannot be reached. Nothing was changed; try again"


@pytest.fixture
def hanging() -> Iterator[PostgresServerForTests]:
    """A server of the test's own."""
    with PostgresServerForTests() as server:
        yield server


def reader(url: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {signed(ADA, permissions=EVERYTHING)}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE, verify=TLS)


Asked = tuple[str, str, Any]


def asked(task: int, case: str) -> Sequence[Asked]:
    """Every route that needs the database, with a request that it would take."""
    member = f"/tasks/roles/{ENGINEERS}/members/{GRACE}"
    return [
        ("GET", "/tasks", None),
        ("GET", "/tasks/me", None),
        ("GET", "/tasks/users", None),
        ("GET", "/tasks/roles", None),
        ("GET", f"/tasks/{task}", None),
        ("GET", f"/tasks/{task}/history", None),
        ("POST", "/tasks", {"title": "another"}),
        ("POST", f"/tasks/{task}/cancel", {"reason": "because"}),
        ("POST", "/tasks/me/link-codes", None),
        ("PUT", member, None),
        ("DELETE", member, None),
        ("GET", INVESTIGATIONS, None),
        ("POST", INVESTIGATIONS, {"title": "another"}),
        ("GET", f"{INVESTIGATIONS}/{case}", None),
        ("POST", f"{INVESTIGATIONS}/{case}/close", None),
        ("POST", f"{INVESTIGATIONS}/{case}/logs", line()),
        # Whether it exists is asked before its feed is read.
        ("GET", f"{INVESTIGATIONS}/{case}/logs", None),
        ("GET", f"{INVESTIGATIONS}/{case}/logs/stream", None),
        ("GET", "/tasks/me/events?limit=5", None),
    ]


async def all_answered(client: httpx.AsyncClient, *questions: Asked) -> list[httpx.Response]:
    return await asyncio.gather(*(client.request(method, path, json=body) for method, path, body in questions))


@pytest.mark.thorough
def test_every_route_is_answered_and_a_change_is_made_once(hanging: PostgresServerForTests):
    told = {ANSWERS_WITHIN: str(LIMIT)}
    with prepared(hanging) as dsn, serving(dsn, workers=1, **told) as (server, url):
        site = Service(url, dsn, workers=1)
        task = site.create(ADA)["task_id"]
        case = open_case(url)
        with frozen(hanging):
            asyncio.run(try_everything(url, task, case))
        eventually(lambda: httpx.get(f"{url}/readyz", verify=TLS, timeout=PATIENCE).status_code == 200 or None)
        # The client that did not learn what became of its request sends it again, and once more to be sure.
        made = [post_task(url) for _ in range(2)]
        assert made[1].status_code == 200
        assert made[0].json()["task_id"] == made[1].json()["task_id"]
        assert site.rows("select count(*) from tasks.tasks where title = 'wanted'") == [(1,)]
        site.close()
        assert "request_failed" not in "\n".join(server.stderr)
        # An end that does not wait for the database.
        with frozen(hanging):
            server.send(signal.SIGTERM)
            assert server.ends() == 0


@pytest.mark.parametrize("limit", ["soon", "0", "-3", "nan"])
def test_a_limit_that_is_none_is_refused(limit: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ANSWERS_WITHIN, limit)
    with pytest.raises(DeclarationError, match=f"{ANSWERS_WITHIN}='{limit}' is not a number of seconds above 0"):
        Site(SYSTEMS, Serving(Database("postgresql://localhost/nowhere"), development=True))


async def try_everything(url: str, task: int, case: str) -> None:
    async with reader(url) as client:
        # The connection that lies ready is lent to this one: what it has asked may be done.
        unknown = await client.post("/tasks", json={"title": "wanted"}, headers={"Idempotency-Key": "k-1"})
        assert_refused(unknown, SILENT)
        assert "the same Idempotency-Key" in unknown.json()["message"]
        assert unknown.json()["details"] == {"outcome": "unknown"}
        answers = await all_answered(client, *asked(task, case))
        for answer in answers:
            assert_refused(answer, SILENT, NOTHING_DONE)
        # What needs no database is there, and who asks how the process is hears that it need not be started anew.
        for path in ("/tasks/machine", "/metrics", "/docs", "/openapi.json", "/healthz"):
            assert (await client.get(path)).status_code == 200, path


def assert_refused(answer: httpx.Response, *messages: str) -> None:
    assert answer.status_code == 503, (answer.request.url, answer.status_code, answer.text)
    assert answer.headers["retry-after"] == str(answer.json()["retry_after"])
    assert answer.json()["message"].startswith(messages), (answer.request.url, answer.text)


def open_case(url: str) -> str:
    headers = {"Authorization": f"Bearer {signed(ADA, permissions=EVERYTHING)}"}
    opened = httpx.post(f"{url}{INVESTIGATIONS}", json={"title": "a case"}, headers=headers, verify=TLS)
    assert opened.status_code == 201, opened.text
    return str(json.loads(opened.text)["investigation_id"])


def post_task(url: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {signed(ADA)}", "Idempotency-Key": "k-1"}
    answer = httpx.post(f"{url}/tasks", json={"title": "wanted"}, headers=headers, verify=TLS, timeout=PATIENCE)
    assert answer.status_code in (200, 201), answer.text
    return answer
