"""Fixtures for all tests: a real PostgreSQL, an empty database per test, and programs that a test needs."""

import os
import shutil
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from aftercommit.postgres import migrate
from aftercommit.testing.postgres import PostgresServerForTests
from tests.shop import Shop, shop_outbox

# A busy machine is no reason to fail: nothing here is asserted about time.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Where the name of the Debian package is not the program's own.
DEBIAN_PACKAGES = {
    "unshare": "util-linux",
    "useradd": "passwd",
    "psql": "postgresql-client",
    "node": "nodejs",
    "tc": "iproute2",
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is missing; in CI, where it must not be missing, fail it."""
    for marker in item.iter_markers("needs"):
        for program in marker.args:
            require_program(program)


def require_program(program: str) -> None:
    """Skip or fail the running test when the program is not on this machine."""
    # Debian keeps servers such as pgbouncer in /usr/sbin, which is not on an ordinary user's path.
    if shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"):
        return
    reason = f"{program} is not installed: apt install {DEBIAN_PACKAGES.get(program, program)}"
    if os.environ.get("AFTERCOMMIT_CI") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServerForTests]:
    """One server per test process: from DATABASE_URL, or embedded (AFTERCOMMIT_TEST_POSTGRES: 16, 18)."""
    version = int(os.environ.get("AFTERCOMMIT_TEST_POSTGRES") or 18)
    with PostgresServerForTests.from_environment(version=version) as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgresServerForTests) -> Iterator[str]:
    """The connection URI of an empty database of the test's own."""
    dsn = postgres_server.clone(postgres_server.template("empty", prepare=_leave_empty))
    yield dsn
    postgres_server.drop(dsn)


def _leave_empty(dsn: str) -> None:
    """An empty database needs no preparation."""


@pytest.fixture
def shop(postgres_server: PostgresServerForTests) -> Iterator[Shop]:
    """A shop with a migrated database of its own."""
    dsn = postgres_server.clone(postgres_server.template("shop", prepare=_migrate_shop))
    yield Shop(dsn)
    postgres_server.drop(dsn)


def _migrate_shop(dsn: str) -> None:
    """The shop's schema, made once per session."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, shop_outbox().shape)
