"""A task in work has somebody else who can decide on the report: otherwise nobody could ever approve it."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.support.tasks import ROOT, Service, problem_of

pytestmark = pytest.mark.contract("T6")

ALONE, MATE, SOLE, LEAD, OTHER_LEAD = range(360, 365)
OF_ONE, OF_TWO, EMPTY = 360, 361, 362
REMEDY = "Choose another assignee, or a supervising role that someone else has"


@pytest.fixture(scope="module", autouse=True)
def people(tasks: Service) -> None:
    named: dict[int, tuple[str, Sequence[int]]] = {
        ALONE: ("alone", []),
        MATE: ("mate", []),
        SOLE: ("sole", [OF_ONE]),
        LEAD: ("lead", [OF_TWO]),
        OTHER_LEAD: ("other lead", [OF_TWO]),
    }
    tasks.people({OF_ONE: "of one", OF_TWO: "of two", EMPTY: "of nobody"}, named)


def wish(tasks: Service, user: int, assignee: int | None, *roles: int) -> httpx.Response:
    body: dict[str, Any] = {"title": "decided by whom", "supervisor_role_ids": list(roles)}
    return tasks.as_user(user).post(ROOT, json=body if assignee is None else {**body, "assignee_user_id": assignee})


def refused(answer: httpx.Response) -> str:
    """That it was refused for want of somebody who decides; the message."""
    assert problem_of(answer) == (400, "bad_request"), answer.text
    assert answer.json()["details"]["field"] == "assignee_user_id"
    return str(answer.json()["message"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("user", "roles"), [(ALONE, ()), (ALONE, (EMPTY,)), (SOLE, (OF_ONE,)), (SOLE, (OF_ONE, EMPTY))]
)
def test_a_task_that_only_its_assignee_could_decide_on_is_not_made(tasks: Service, user: int, roles: tuple[int, ...]):
    before = tasks.rows("select count(*) from tasks.tasks")
    message = refused(wish(tasks, user, user, *roles))
    assert f"user {user}" in message
    assert message.endswith(REMEDY)
    assert tasks.rows("select count(*) from tasks.tasks") == before


@pytest.mark.parametrize(
    ("user", "assignee", "roles"),
    [(ALONE, MATE, ()), (ALONE, None, ()), (ALONE, ALONE, (OF_ONE,)), (LEAD, LEAD, (OF_TWO,)), (MATE, SOLE, (OF_ONE,))],
)
@pytest.mark.thorough
def test_where_somebody_else_can_decide_the_task_is_made_and_can_be_approved(
    tasks: Service, user: int, assignee: int | None, roles: tuple[int, ...]
):
    made = wish(tasks, user, assignee, *roles)
    assert made.status_code == 201, made.text
    if assignee is None:
        return
    number = made.json()["task_id"]
    tasks.act(assignee, number, "submit-report", report="done")
    others = [each for each in (user, SOLE, OTHER_LEAD) if each != assignee]
    assert any(tasks.try_to(each, number, "approve").status_code == 200 for each in others)


def test_neither_assigning_nor_reassigning_leads_there(tasks: Service):
    new = tasks.create(ALONE)["task_id"]
    assert "user 360" in refused(tasks.try_to(ALONE, new, "assign", assignee_user_id=ALONE))
    tasks.act(ALONE, new, "assign", assignee_user_id=MATE)
    tasks.act(MATE, new, "submit-report", report="done")
    assert refused(tasks.try_to(ALONE, new, "reassign", assignee_user_id=ALONE)).endswith(
        "Choose another assignee, or have an administrator give one of the supervising roles to someone else"
    )
    assert tasks.act(ALONE, new, "approve")["state"] == "approved"


def test_who_loses_a_role_loses_it_and_the_creator_can_still_hand_the_task_on(tasks: Service):
    """Rights are taken away at once, whatever tasks there are."""
    tasks.people({363: "given and taken"}, {365: ("for a while", [363])})
    number = tasks.create(ALONE, assignee_user_id=ALONE, supervisor_role_ids=[363])["task_id"]
    tasks.act(ALONE, number, "submit-report", report="done")
    assert tasks.as_user(1).delete(f"{ROOT}/roles/363/members/365").status_code == 200
    assert tasks.try_to(ALONE, number, "approve").status_code == 403
    tasks.act(ALONE, number, "reassign", assignee_user_id=MATE)
    tasks.act(MATE, number, "submit-report", report="done")
    assert tasks.act(ALONE, number, "approve")["state"] == "approved"
