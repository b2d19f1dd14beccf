"""The systems as running processes: started once per test process, used by many tests, and ended after the last one:
also when nobody asks them anything, all of them together are at work for a twentieth of the time.
"""

from collections.abc import Iterator

import pytest

from aftercommit.testing.postgres import PostgresServerForTests
from tests.support import tasks as task_system
from tests.support.investigations import DEVELOPMENT, Service, service


@pytest.fixture(scope="package")
def investigations(postgres_server: PostgresServerForTests) -> Iterator[Service]:
    """The investigations system: a relay and two server processes. Each test opens investigations of its own."""
    with service(postgres_server) as running:
        yield running


@pytest.fixture(autouse=True)
def readers_leave(request: pytest.FixtureRequest) -> Iterator[None]:
    """Who came to the investigations for one test goes after it: their connections would add up to more than a process
    may have.
    """
    yield
    if "investigations" in request.fixturenames:
        running: Service = request.getfixturevalue("investigations")
        running.part()


@pytest.fixture(scope="package")
def tasks(postgres_server: PostgresServerForTests) -> Iterator[task_system.Service]:
    """The tasks system: a relay and two server processes. Each test makes tasks of its own, and often people."""
    with task_system.service(postgres_server) as running:
        yield running


@pytest.fixture(scope="package")
def development_tasks(postgres_server: PostgresServerForTests) -> Iterator[task_system.Service]:
    """The same, served for development: programs of this machine are believed until a service token is made."""
    with task_system.service(postgres_server, kind=DEVELOPMENT) as running:
        yield running
