"""Nothing of a task leaves to somebody who has nothing to do with it, over any route, whatever they send along."""

import json
from uuid import uuid4

import httpx
import pytest

from systems.tasks.api.routes import STEPS
from tests.contracts.test_tasks_machine import BODIES
from tests.support.investigations import PATIENCE
from tests.support.tasks import ADA, EDSGER, ENGINEERS, EVENTS, MALLORY, ROOT, Service, signed

pytestmark = [pytest.mark.contract("T5"), pytest.mark.newest]


def received(
    client: httpx.Client, method: str, path: str, headers: dict[str, str], body: object = None
) -> tuple[int, str]:
    """Status and everything that came, headers too; of a stream what comes at once."""
    with client.stream(method, path, headers=headers, json=body) as answer:
        told = json.dumps(dict(answer.headers))
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, told + next(answer.iter_text())
        return answer.status_code, told + answer.read().decode()


@pytest.mark.thorough
def test_no_route_shows_a_foreign_task_to_anybody(tasks: Service):
    canary = f"canary-{uuid4().hex}"
    key = {"Idempotency-Key": f"key-{uuid4()}"}
    body = {"title": canary, "description": canary, "assignee_user_id": EDSGER, "supervisor_role_ids": [ENGINEERS]}
    foreign = tasks.as_user(ADA).post(ROOT, json=body, headers=key).json()["task_id"]
    tasks.act(EDSGER, foreign, "submit-report", report=canary)
    tasks.act(ADA, foreign, "reject", reason=canary)
    last = tasks.hears(ADA, "task_created", "report_submitted", "report_rejected", task_id=foreign)[-1]["event_id"]
    tasks.shown()
    tag = tasks.as_user(ADA).get(EVENTS, params={"after_id": last - 1}).headers["ETag"]
    reads = [
        (path, headers)
        for path in (
            *(EVENTS, f"{EVENTS}?limit=1000", f"{EVENTS}?after_id=0", f"{EVENTS}?after_id={last - 1}"),
            *(f"{EVENTS}?before_id={last + 1}", f"{EVENTS}?from_time=2020-01-01T00:00:00Z", f"{EVENTS}/stream"),
            *(f"{EVENTS}/stream?after_id={last - 3}", ROOT, f"{ROOT}?limit=200", f"{ROOT}?state=rejected"),
            *(f"{ROOT}?before={foreign + 1}", f"{ROOT}/{foreign}", f"{ROOT}/{foreign}/history", f"{ROOT}/0{foreign}"),
            *(f"{ROOT}/me", f"{ROOT}/users", f"{ROOT}/roles", f"{ROOT}/machine", f"{ROOT}/{foreign}/"),
            *("/", "/docs", "/openapi.json", "/metrics", "/healthz", "/readyz", "/sample.json"),
            *(f"{ROOT}/board", f"{ROOT}/board/{foreign}", f"/tasks/{ADA}/events", "/tasks/me/../../tasks/1"),
        )
        for headers in ({}, {"If-None-Match": tag}, {"Prefer": "wait=1"}, {"Last-Event-ID": str(last - 2)})
    ]
    for client, who in ((tasks.as_user(MALLORY), MALLORY), (tasks.as_user(77), 77)):
        for path, headers in reads:
            if headers.get("Prefer") and not path.startswith(f"{EVENTS}?after_id={last - 1}"):
                continue
            status, told = received(client, "GET", path, headers)
            assert canary not in told, (who, path)
            assert status not in (304, 500), (who, path)
        for verb in STEPS:
            status, told = received(client, "POST", f"{ROOT}/{foreign}/{verb}", {}, BODIES[verb])
            assert (status, canary in told) == (403, False), verb
        # The name that somebody else has given to a request finds nothing of theirs.
        status, told = received(client, "POST", ROOT, key, {"title": "x"})
        assert (status, canary in told) == (201 if who == MALLORY else 403, False)
        # Whom one names beside one's own token does not count.
        own = {"Authorization": f"Bearer {signed(who)}", "X-User-Id": str(ADA)}
        with httpx.Client(base_url=tasks.url, timeout=PATIENCE) as other:
            for path in (EVENTS, f"{EVENTS}/stream", f"{ROOT}/{foreign}", f"{ROOT}/me"):
                assert received(other, "GET", path, own)[0] == 401


def test_who_worked_on_a_task_before_sees_what_they_heard_and_nothing_new(tasks: Service):
    canary = f"canary-{uuid4().hex}"
    task = tasks.create(ADA, "handed on", assignee_user_id=MALLORY)["task_id"]
    tasks.act(ADA, task, "reassign", assignee_user_id=EDSGER)
    tasks.act(EDSGER, task, "submit-report", report=canary)
    tasks.act(ADA, task, "approve", comment=canary)
    tasks.shown()
    tasks.hears(MALLORY, "task_created", "task_reassigned", task_id=task)
    for path in (f"{ROOT}/{task}", f"{ROOT}/{task}/history", ROOT, EVENTS):
        status, told = received(tasks.as_user(MALLORY), "GET", path, {})
        assert canary not in told
        assert status == (403 if str(task) in path else 200)
