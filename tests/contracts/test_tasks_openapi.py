"""The description of the tasks system is what it does: asked by a machine that tries everything it allows and more."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode

from tests.contracts.test_investigation_openapi import CHECKS, begin_and_validate
from tests.support.investigations import PATIENCE
from tests.support.sizes import size
from tests.support.tasks import ADA, EDSGER, LEADS, STRANGER, Service, signed

pytestmark = [pytest.mark.contract("T1", "T2", "T6"), pytest.mark.newest]

OPERATIONS = 21


@pytest.fixture(scope="module")
def tasks(development_tasks: Service) -> Service:
    """Here a header alone may name a user."""
    return development_tasks


@pytest.mark.thorough
@pytest.mark.sized
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "not allowed"])
def test_no_answer_is_a_failure_or_differs_from_its_description(tasks: Service, mode: GenerationMode):
    schema = schemathesis.openapi.from_url(f"{tasks.url}/openapi.json", timeout=PATIENCE).include(path_regex="^/tasks")
    number = tasks.create(ADA, assignee_user_id=EDSGER, supervisor_role_ids=[LEADS])["task_id"]
    operations = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) == OPERATIONS
    statuses: set[int] = set()
    for operation in operations:

        @seed(1)
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=size(8, 60),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any) -> None:
            prepared(case, number)
            if case.operation.path.endswith("/stream"):
                begin_and_validate(case)
            else:
                statuses.add(case.call_and_validate(checks=CHECKS, timeout=PATIENCE).status_code)

        ask()
    assert {200, 400, 403, 404} <= statuses if mode is GenerationMode.POSITIVE else {400, 404} <= statuses


def prepared(case: Any, number: int) -> None:
    """Asked by people around a task and by strangers; every second time about that task. Nobody loses a role by it."""
    path, length = case.operation.path, len(str(case.body)) + len(str(case.path_parameters))
    case.headers.pop("Prefer", None)
    if path.endswith("/redeem"):
        # By a neighbour: a user is no program.
        return
    if "X-User-Id" in case.headers and length % 4 == 0:
        # On its own, as a neighbour sends it.
        return
    if "{task_id}" in path and length % 2:
        case.path_parameters["task_id"] = number
    case.headers.pop("X-User-Id", None)
    user = EDSGER if "/members/" in path else (ADA, EDSGER, STRANGER)[length % 3]
    case.headers["Authorization"] = f"Bearer {signed(user)}"
