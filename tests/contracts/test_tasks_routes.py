"""Tasks over HTTP: making, finding, listing them; what cannot be read; two who want the same at once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.investigations import PATIENCE, eventually
from tests.support.tasks import (
    ADA,
    BARBARA,
    EDSGER,
    GRACE,
    LEADS,
    MALLORY,
    ROOT,
    STRANGER,
    Service,
    problem_of,
    service,
)

pytestmark = pytest.mark.newest

FIELDS = {
    *("task_id", "title", "description", "state", "creator_user_id", "assignee_user_id", "supervisor_role_ids"),
    *("report", "created_at", "updated_at", "actions", "version"),
}


@pytest.mark.contract("T6")
def test_a_task_goes_through_its_life_and_its_history_tells_it(tasks: Service):
    made = tasks.as_user(ADA).post(ROOT, json={"title": "chairs", "supervisor_role_ids": [LEADS, LEADS]})
    assert (made.status_code, made.headers["Location"]) == (201, f"{ROOT}/{made.json()['task_id']}")
    task = made.json()
    assert set(task) == FIELDS
    assert (task["state"], task["supervisor_role_ids"], task["actions"]) == ("new", [LEADS], ["assign", "cancel"])
    number = task["task_id"]
    tasks.act(GRACE, number, "assign", assignee_user_id=EDSGER)
    assert tasks.act(EDSGER, number, "submit-report", report="eleven")["report"] == "eleven"
    assert tasks.act(GRACE, number, "reject", reason="count again")["report"] == "eleven"
    tasks.act(EDSGER, number, "submit-report", report="twelve")
    assert tasks.act(ADA, number, "reassign", assignee_user_id=BARBARA)["report"] is None
    tasks.act(BARBARA, number, "submit-report", report="ten")
    done = tasks.try_to(ADA, number, "approve")
    assert (done.status_code, done.json()["report"]) == (200, "ten")
    again = tasks.act(GRACE, number, "reopen", reason="one is missing")
    assert (again["state"], again["assignee_user_id"], again["report"]) == ("assigned", BARBARA, None)
    tasks.act(ADA, number, "cancel", reason="never mind")
    assert tasks.act(ADA, number, "reopen", reason="do mind")["state"] == "assigned"

    entries = tasks.as_user(BARBARA).get(f"{ROOT}/{number}/history").json()["entries"]
    assert [(entry["action"], entry["from_state"], entry["to_state"]) for entry in entries] == [
        ("create", None, "new"),
        ("assign", "new", "assigned"),
        ("submit_report", "assigned", "reported"),
        ("reject", "reported", "rejected"),
        ("submit_report", "rejected", "reported"),
        ("reassign", "reported", "assigned"),
        ("submit_report", "assigned", "reported"),
        ("approve", "reported", "approved"),
        ("reopen", "approved", "assigned"),
        ("cancel", "assigned", "cancelled"),
        ("reopen", "cancelled", "assigned"),
    ]
    pages = [tasks.as_user(BARBARA).get(f"{ROOT}/{number}/history?limit=6&after={after}").json() for after in (0, 6)]
    assert [*pages[0]["entries"], *pages[1]["entries"]] == entries
    assert [page["next_after"] for page in pages] == [6, None]
    assert [entry["assignee_user_id"] for entry in entries[:6]] == [None, EDSGER, EDSGER, EDSGER, EDSGER, BARBARA]
    assert [entry["note"] for entry in entries[2:6]] == ["eleven", "count again", "twelve", None]
    # In which role: Grace supervises as a lead; Ada made it, and has a role of her own; Edsger reports as an engineer.
    assert [entry["actor_role_id"] for entry in entries[:3]] == [1, 2, 3]
    events = tasks.hears(
        GRACE, "task_created", "task_assigned", "report_submitted", "report_rejected", "report_submitted",
        "task_reassigned", "report_submitted", "report_approved", "task_reopened", "task_cancelled", "task_reopened",
        task_id=number,
    )  # fmt: skip
    ids = tasks.rows("select id from tasks_events.log where aggregate_id = %s order by position", str(number))
    assert [str(event_id) for (event_id,) in ids] == [entry["event_id"] for entry in entries]
    assert [event["event_id"] for event in events] == sorted({event["event_id"] for event in events})


@pytest.mark.contract("T6")
def test_who_is_not_known_or_has_nothing_to_do_with_a_task_is_refused_whatever_they_ask(tasks: Service):
    number = tasks.create(ADA, assignee_user_id=EDSGER)["task_id"]
    for user in (STRANGER, MALLORY, BARBARA):
        for path in (f"{ROOT}/{number}", f"{ROOT}/{number}/history"):
            assert problem_of(tasks.as_user(user).get(path)) == (403, "forbidden")
        assert problem_of(tasks.try_to(user, number, "approve")) == (403, "forbidden")
    for method, path, body in (
        ("GET", ROOT, None),
        ("POST", ROOT, {"title": "mine"}),
        ("GET", f"{ROOT}/me", None),
        ("GET", f"{ROOT}/users", None),
        ("GET", f"{ROOT}/roles", None),
        ("POST", f"{ROOT}/me/link-codes", None),
        ("PUT", f"{ROOT}/roles/2/members/5", None),
    ):
        refused = tasks.as_user(STRANGER).request(method, path, json=body)
        assert problem_of(refused) == (403, "forbidden"), path
        assert refused.json()["details"]["user_id"] == STRANGER


@pytest.mark.contract("T6")
def test_a_task_that_is_not_there_is_404_for_everybody(tasks: Service):
    for number in (2**62, 0, 2**63, 10**39):
        for user in (ADA, MALLORY):
            assert problem_of(tasks.as_user(user).get(f"{ROOT}/{number}")) == (404, "not_found")
            assert problem_of(tasks.as_user(user).get(f"{ROOT}/{number}/history")) == (404, "not_found")
            assert problem_of(tasks.try_to(user, number, "approve")) == (404, "not_found")
    for path in (
        f"{ROOT}/-1",
        f"{ROOT}/abc",
        f"{ROOT}/1.5",
        f"{ROOT}/{'9' * 5000}",
        f"{ROOT}/%00",
        f"{ROOT}/1/nothing",
    ):
        assert problem_of(tasks.as_user(ADA).get(path)) == (404, "not_found"), path[:40]


BAD_BODIES: list[tuple[str, Any, str | None]] = [
    ("", b"", None),
    ("", b"{", None),
    ("", b"\xff\xfe", None),
    ("", b"[" * 5000, None),
    ("", {}, "title"),
    ("", {"title": ""}, "title"),
    ("", {"title": "  \t"}, "title"),
    ("", {"title": "x" * 201}, "title"),
    ("", {"title": "with \x00 in it"}, "title"),
    ("", {"title": 7}, "title"),
    ("", {"title": "x", "description": "y" * 10_001}, "description"),
    ("", {"title": "x", "assignee_user_id": 0}, "assignee_user_id"),
    ("", {"title": "x", "assignee_user_id": 2**63}, "assignee_user_id"),
    ("", {"title": "x", "assignee_user_id": "3"}, "assignee_user_id"),
    ("", {"title": "x", "assignee_user_id": True}, "assignee_user_id"),
    ("", {"title": "x", "assignee_user_id": STRANGER}, "assignee_user_id"),
    ("", {"title": "x", "supervisor_role_ids": [2, 99]}, "supervisor_role_ids"),
    ("", {"title": "x", "supervisor_role_ids": [0]}, "supervisor_role_ids"),
    ("", {"title": "x", "supervisor_role_ids": list(range(1, 30))}, "supervisor_role_ids"),
    ("", {"title": "x", "state": "approved"}, "state"),
    ("reassign", {}, "assignee_user_id"),
    ("reassign", {"assignee_user_id": STRANGER}, "assignee_user_id"),
    ("reassign", {"assignee_user_id": None}, "assignee_user_id"),
    ("submit-report", {"report": " "}, "report"),
    ("submit-report", {"report": "x" * 10_001}, "report"),
    ("approve", {"comment": ""}, "comment"),
    ("approve", {"reason": "x"}, "reason"),
    ("reject", {}, "reason"),
    ("cancel", {"reason": 5}, "reason"),
    ("reopen", {"reason": "x" * 2001}, "reason"),
]


@pytest.mark.contract("T6")
def test_what_cannot_be_read_is_400_with_its_place_and_changes_nothing(tasks: Service):
    number = tasks.create(ADA, assignee_user_id=EDSGER)["task_id"]
    before = tasks.rows("select count(*), max(version) from tasks.tasks")
    for verb, body, field in BAD_BODIES:
        content = body if isinstance(body, bytes) else None
        path = f"{ROOT}/{number}/{verb}" if verb else ROOT
        answer = tasks.as_user(ADA).post(path, content=content, json=None if content is not None else body)
        assert problem_of(answer) == (400, "bad_request"), (verb, body, answer.text)
        assert answer.json().get("details", {}).get("field") == field, (verb, body, answer.text)
    assert tasks.rows("select count(*), max(version) from tasks.tasks") == before
    for query in ("state=done", "state=new&state=new", "before=0", "before=x", "limit=0", "limit=201", "unknown=1"):
        assert problem_of(tasks.as_user(ADA).get(f"{ROOT}?{query}")) == (400, "bad_request"), query


@pytest.mark.contract("T5")
def test_the_list_has_what_one_made_works_on_or_supervises_newest_first_page_by_page(tasks: Service):
    tasks.people(
        {70: "listed"},
        {70: ("creator", []), 71: ("worker", []), 72: ("supervisor", [70]), 73: ("nobody", []), 74: ("other", [])},
    )
    mine = [tasks.create(70, f"t{n}", assignee_user_id=71, supervisor_role_ids=[70])["task_id"] for n in range(5)]
    tasks.create(74, "another's")
    own = tasks.create(72, "one's own", supervisor_role_ids=[70])["task_id"]
    tasks.act(71, mine[1], "submit-report", report="done")

    def listed(user: int, **parameters: Any) -> list[int]:
        found: list[int] = []
        page: dict[str, Any] = {"next_before": None}
        while not found or page["next_before"] is not None:
            more = {} if page["next_before"] is None else {"before": page["next_before"]}
            page = tasks.as_user(user).get(ROOT, params={**parameters, **more}).json()
            found += [task["task_id"] for task in page["tasks"]]
            if not page["tasks"]:
                break
        return found

    assert listed(70) == listed(71) == mine[::-1]
    assert listed(72) == [own, *mine[::-1]]
    assert listed(72, limit=2) == [own, *mine[::-1]]
    assert listed(73) == []
    assert listed(72, state="reported") == [mine[1]]
    assert listed(70, state="assigned", limit=1) == [number for number in mine[::-1] if number != mine[1]]
    shown = tasks.as_user(72).get(ROOT, params={"state": "reported"}).json()["tasks"][0]
    assert shown["actions"] == ["reassign", "approve", "reject"]


@pytest.mark.contract("T6")
def test_two_who_decide_at_once_are_one_who_decides_and_one_who_is_too_late(tasks: Service):
    for one, other in (("approve", "approve"), ("approve", "reject"), ("reject", "cancel")):
        number = tasks.create(ADA, assignee_user_id=EDSGER, supervisor_role_ids=[LEADS])["task_id"]
        tasks.act(EDSGER, number, "submit-report", report="done")
        bodies = {"approve": {}, "reject": {"reason": "no"}, "cancel": {"reason": "no"}}
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(tasks.try_to, GRACE, number, one, **bodies[one])
            second = pool.submit(tasks.try_to, ADA, number, other, **bodies[other])
            answers = [first.result(), second.result()]
        # A rejected task can still be cancelled; whatever the order, nothing happens twice.
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200, 409] or (other == "cancel" and statuses == [200, 200])
        version = tasks.as_user(ADA).get(f"{ROOT}/{number}").json()["version"]
        [(entries, events)] = tasks.rows(
            """select (select count(*) from tasks.history where task_id = %s),
                      (select count(*) from tasks_events.event_outbox where aggregate_id = %s::text)""",
            number,
            number,
        )
        assert version == entries == events == 2 + statuses.count(200)


@pytest.mark.contract("T6")
def test_a_request_with_a_key_makes_one_task_however_often_and_by_however_many_it_is_sent(tasks: Service):
    key = {"Idempotency-Key": f"key-{uuid4()}"}
    body = {"title": "once", "supervisor_role_ids": [LEADS], "assignee_user_id": EDSGER}

    def send() -> httpx.Response:
        return httpx.post(
            f"{tasks.url}{ROOT}", json=body, headers={**tasks.as_user(ADA).headers, **key}, timeout=PATIENCE
        )

    with ThreadPoolExecutor(6) as pool:
        answers = [each.result() for each in [pool.submit(send) for _ in range(6)]]
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    assert len({answer.json()["task_id"] for answer in answers}) == 1
    number = answers[0].json()["task_id"]
    assert {answer.headers["Location"] for answer in answers} == {f"{ROOT}/{number}"}
    tasks.act(EDSGER, number, "submit-report", report="done")
    late = send()
    assert (late.status_code, late.json()["state"]) == (200, "reported")
    # Another request under the same key is a mistake; the same key of somebody else is another key.
    other = tasks.as_user(ADA).post(ROOT, json={**body, "title": "twice"}, headers=key)
    assert problem_of(other) == (409, "conflict")
    theirs = tasks.as_user(GRACE).post(ROOT, json=body, headers=key)
    assert (theirs.status_code, theirs.json()["task_id"] == number) == (201, False)
    assert tasks.rows("select count(*) from tasks.tasks where creation_key = %s", key["Idempotency-Key"]) == [(2,)]
    for bad in ("", "x" * 201):
        refused = tasks.as_user(ADA).post(ROOT, json=body, headers={"Idempotency-Key": bad})
        assert problem_of(refused) == (400, "bad_request")


def test_who_there_is_and_what_can_be_done_is_told(tasks: Service):
    me = tasks.as_user(GRACE).get(f"{ROOT}/me").json()
    assert me == {"user_id": GRACE, "name": "Grace", "roles": [{"role_id": LEADS, "name": "lead"}]}
    users = tasks.as_user(MALLORY).get(f"{ROOT}/users", params={"limit": 2}).json()
    assert [user["name"] for user in users["users"]] == ["Ada", "Grace"]
    rest = tasks.as_user(MALLORY).get(f"{ROOT}/users", params={"after": users["next_after"], "limit": 2}).json()
    assert [user["user_id"] for user in rest["users"]] == [EDSGER, BARBARA]
    roles = tasks.as_user(MALLORY).get(f"{ROOT}/roles").json()["roles"]
    assert [(role["name"], role["user_ids"]) for role in roles[:1]] == [("administrator", [ADA])]
    machine = tasks.as_user(MALLORY).get(f"{ROOT}/machine").json()
    assert [each["action"] for each in machine["actions"]][:3] == ["create", "assign", "reassign"]
    assert machine["routing"][2]["hears"] == ["creator", "assignee", "supervisors", "previous_assignee"]


def test_only_an_administrator_says_who_has_which_role_and_one_stays(tasks: Service):
    tasks.people({}, {75: ("newcomer", [])})
    path = f"{ROOT}/roles/{LEADS}/members/75"
    for user in (GRACE, MALLORY, 75):
        for method in ("PUT", "DELETE"):
            assert problem_of(tasks.as_user(user).request(method, path)) == (403, "forbidden")
    administrator = tasks.as_user(ADA)
    for _ in range(2):
        given = administrator.put(path)
        assert (given.status_code, given.json()["roles"]) == (200, [{"role_id": LEADS, "name": "lead"}])
    for _ in range(2):
        taken = administrator.delete(path)
        assert (taken.status_code, taken.json()["roles"]) == (200, [])
    for missing in (f"{ROOT}/roles/99/members/75", f"{ROOT}/roles/2/members/{STRANGER}", f"{ROOT}/roles/0/members/1"):
        assert problem_of(administrator.put(missing)) == (404, "not_found")
        assert problem_of(administrator.delete(missing)) == (404, "not_found")
    last = administrator.delete(f"{ROOT}/roles/1/members/{ADA}")
    assert problem_of(last) == (409, "conflict")
    assert administrator.put(f"{ROOT}/roles/1/members/75").status_code == 200
    with ThreadPoolExecutor(2) as pool:
        # Each takes it from the other: one is quicker, and the other is no administrator any more.
        both = [
            pool.submit(tasks.as_user(user).delete, f"{ROOT}/roles/1/members/{other}")
            for user, other in ((ADA, 75), (75, ADA))
        ]
        statuses = [each.result().status_code for each in both]
    assert sorted(statuses) == [200, 403]
    if statuses[0] == 403:
        assert tasks.as_user(75).put(f"{ROOT}/roles/1/members/{ADA}").status_code == 200
        assert tasks.as_user(75).delete(f"{ROOT}/roles/1/members/75").status_code == 200


@pytest.mark.thorough
def test_connections_that_the_database_has_ended_cost_one_request_and_not_one_each(
    postgres_server: PostgresServerForTests,
):
    waiting = """
        select count(*) from pg_stat_activity
        where application_name = 'tasks' and wait_event_type = 'Lock' and datname = current_database()
    """
    # A server of its own: others would meet what is left of its connections.
    with service(postgres_server, workers=1) as tasks, ThreadPoolExecutor(6) as many:
        ask = tasks.as_user(ADA).get
        with psycopg.connect(tasks.dsn) as holder:
            holder.execute("lock table tasks.users in access exclusive mode")
            asked = [many.submit(ask, f"{ROOT}/me") for _ in range(6)]
            eventually(lambda: tasks.rows(waiting)[0][0] == 6 or None)
        assert {each.result().status_code for each in asked} == {200}
        ended = tasks.rows(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
            "where application_name = 'tasks' and datname = current_database()"
        )
        assert len(ended) >= 6
        assert [ask(f"{ROOT}/me").status_code for _ in range(12)].count(503) == 1
