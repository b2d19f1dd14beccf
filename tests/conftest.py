"""Fixtures for all tests: a real PostgreSQL, an empty database per test, and programs that a test needs."""

import gc
import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from typing import LiteralString

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import sql

from aftercommit.schema import migrate
from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.shop import Shop, eyes_kept, shop_outbox
from tests.support.sizes import size

# A busy machine is no reason to fail: nothing here is asserted about time.
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=size(50, 500)
)
settings.load_profile("patient")

# What tests ask is plain HTTP, and yet httpx reads a file of all certificate authorities for each of its clients.
# From a folder it reads those that it needs.
os.environ.pop("SSL_CERT_FILE", None)
os.environ.setdefault("SSL_CERT_DIR", "/etc/ssl/certs")

# Where the name of the Debian package is not the program's own.
DEBIAN_PACKAGES = {
    "unshare": "util-linux",
    "useradd": "passwd",
    "psql": "postgresql-client",
    "node": "nodejs",
    "tc": "iproute2",
}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among modules and tests, which stay: neither while they are collected nor ever after.

    Python would look through all of them again and again, which costs more than most tests do.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that ask for more time than others, so that nobody waits for them alone at the end.

    Each worker of pytest-xdist is first given a share of the list and later takes from the ends of others', so every
    share begins with some. Who uses a system that runs for a whole folder stays beside those who use it too.
    """
    waiting = [item for item in items if item.get_closest_marker("timeout") and "investigations" not in fixtures(item)]
    waiting.sort(key=lambda item: -item.get_closest_marker("timeout").args[0])  # type: ignore[union-attr]
    chosen = set(waiting)
    others = [item for item in items if item not in chosen]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        share = (len(items) - len(ordered)) // (workers - worker)
        first = waiting[worker::workers]
        ordered += [*first, *others[: share - len(first)]]
        del others[: share - len(first)]
    items[:] = ordered


def fixtures(item: pytest.Item) -> Sequence[str]:
    """The names of all fixtures that a test uses."""
    return getattr(item, "fixturenames", ())


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


class BusyServer(PostgresServerForTests):
    """One that makes and drops thousands of databases, and does not connect anew for each."""

    _kept: psycopg.Connection[tuple[object, ...]] | None = None

    def stop(self) -> None:
        """Without leaving the connection behind, by which databases are dropped on a server that goes on."""
        try:
            super().stop()
        finally:
            if self._kept is not None:
                self._kept.close()
                self._kept = None

    def _execute(self, statement: LiteralString, *databases: str) -> None:
        composed = sql.SQL(statement).format(*map(sql.Identifier, databases))
        if self._kept is not None:
            try:
                self._kept.execute(composed)
                return
            except psycopg.OperationalError:
                # A test has crashed the server since: that is no reason not to go on with the one that runs now.
                if not self._kept.broken:
                    raise
                self._kept.close()
        self._kept = self._connect()
        self._kept.execute(composed)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServerForTests]:
    """One server per test process: from DATABASE_URL, or embedded (AFTERCOMMIT_TEST_POSTGRES: 16, 18)."""
    version = int(os.environ.get("AFTERCOMMIT_TEST_POSTGRES") or 18)
    with BusyServer.from_environment(version=version) as server:
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
    with eyes_kept(dsn):
        yield Shop(dsn)
    postgres_server.drop(dsn)


def _migrate_shop(dsn: str) -> None:
    """The shop's schema, made once per session."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, shop_outbox().shape)
