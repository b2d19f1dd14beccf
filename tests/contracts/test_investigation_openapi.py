"""The OpenAPI document describes what the server does: asked by a machine that tries everything it allows and more."""

from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.investigations import PATIENCE, Service
from tests.support.sizes import size

pytestmark = [pytest.mark.contract("L1", "L2", "L8"), pytest.mark.newest]

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def test_every_route_is_described_and_its_page_needs_nobody_else(investigations: Service) -> None:
    described = httpx.get(f"{investigations.url}/openapi.json", timeout=PATIENCE).json()
    assert described["openapi"].startswith("3.1")
    operations = {
        (method, path) for path, methods in described["paths"].items() for method in methods if method != "parameters"
    }
    assert {method for method, path in operations if path.endswith("/logs")} == {"get", "post"}
    assert ("get", "/api/v1/investigations/{investigation_id}/logs/stream") in operations
    page = httpx.get(f"{investigations.url}/docs", follow_redirects=True, timeout=PATIENCE)
    assert page.status_code == 200
    assert "://" not in page.text


@pytest.mark.thorough
@pytest.mark.sized
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "not allowed"])
def test_no_answer_is_a_failure_or_differs_from_its_description(investigations: Service, mode: GenerationMode) -> None:
    described = schemathesis.openapi.from_url(f"{investigations.url}/openapi.json", timeout=PATIENCE)
    schema = described.include(path_regex="^/api/v1/investigations")
    case_id = investigations.open()
    investigations.write(case_id, {"source": "backend", "service": "s", "level": "INFO", "message": "m"})
    asked = 0
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]

        @seed(1)
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=size(15, 100),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            if asked % 2 and "investigation_id" in (case.path_parameters or {}):
                case.path_parameters["investigation_id"] = case_id
            case.headers.pop("Prefer", None)
            case.headers["Authorization"] = f"Bearer {investigations.token('investigation:*:read', *WRITING)}"
            if case.operation.path.endswith("/stream"):
                begin_and_validate(case)
            else:
                case.call_and_validate(checks=CHECKS, timeout=PATIENCE)

        ask()
    assert asked >= 100


def begin_and_validate(case: Any) -> None:
    """A stream does not end: that it begins as described is all one can say. What is refused is read like any other."""
    with requests.request(**case.as_transport_kwargs(), stream=True, timeout=PATIENCE) as answer:
        if answer.status_code == 200:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert next(answer.iter_content(5)) == b"retry"
        else:
            case.validate_response(answer, checks=CHECKS)


WRITING = ("investigation:create", "investigation:*:write")
