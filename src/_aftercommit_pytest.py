"""The pytest plugin: fixtures for tests of code that publishes and consumes. Loaded by installing aftercommit.

It stands outside the package, and its fixtures import what they need when they are asked for, so that a run which uses
none of them pays for nothing. No fixture is autouse.

| fixture | what it is | to override |
|---|---|---|
| `aftercommit_outbox` | your Outbox | by a fixture of yours, or `aftercommit_app = package.module:outbox` in the ini file |
| `aftercommit_prepare` | a function that makes your tables in an empty database, given its URI | by a fixture, or `aftercommit_prepare = package.module:function` (or a file of SQL) |
| `aftercommit_transport` | how `drain` delivers: "log", "bus" or a Transport | by a fixture, or `aftercommit_transport = bus` |
| `aftercommit_server` | the PostgreSQL of this test process | see the options |
| `aftercommit_dsn` | the URI of a database of the test's own, cloned from a migrated template | |
| `aftercommit_world`, `aftercommit_async_world` | the test kit on that database | |
| `aftercommit_bot_api` | a local Bot API server, for tests of Telegram bots | |
"""  # noqa: E501 - a table

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from aftercommit.contrib.telegram.local_api import BotApiServer
    from aftercommit.outbox import Outbox
    from aftercommit.testing import AsyncWorld, PostgresServerForTests, World
    from aftercommit.testing.drain import TransportChoice

DSN = "AFTERCOMMIT_TEST_DSN"
POSTGRES = "AFTERCOMMIT_TEST_POSTGRES"

pytest.register_assert_rewrite(
    *(f"aftercommit.testing.{module}" for module in ("outbox_suite", "bulk_cases", "transport_suite"))
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the databases are made, and of what."""
    group = parser.getgroup("aftercommit", "databases for tests with aftercommit")
    group.addoption(
        "--aftercommit-dsn",
        metavar="DSN",
        help=f"make the tests' databases on this server; default: the ini value, {DSN}, or an embedded server",
    )
    group.addoption(
        "--aftercommit-postgres",
        metavar="VERSION",
        help=f"major version of the embedded server; default: the ini value, {POSTGRES}, or the newest",
    )
    parser.addini("aftercommit_dsn", "server on which the tests' databases are made")
    parser.addini("aftercommit_postgres", "major version of the embedded PostgreSQL")
    parser.addini("aftercommit_app", "your Outbox, as package.module:name")
    parser.addini("aftercommit_prepare", "what makes your tables: package.module:function(dsn), or a file of SQL")
    parser.addini("aftercommit_transport", "how drain() delivers: log (the default) or bus")


@pytest.fixture(scope="session")
def aftercommit_server(pytestconfig: pytest.Config) -> "Iterator[PostgresServerForTests]":
    """A PostgreSQL for this test process; each worker of pytest-xdist has its own, or its own databases."""
    from aftercommit.testing.plugin import server_for

    ways = {
        "--aftercommit-dsn": pytestconfig.getoption("aftercommit_dsn"),
        "aftercommit_dsn in pytest's ini file": pytestconfig.getini("aftercommit_dsn"),
        DSN: os.environ.get(DSN),
    }
    given_by, dsn = next(((way, dsn) for way, dsn in ways.items() if dsn), (None, None))
    version = pytestconfig.getoption("aftercommit_postgres") or pytestconfig.getini("aftercommit_postgres")
    with server_for(dsn, version or os.environ.get(POSTGRES) or None, given_by=given_by) as server:
        yield server


@pytest.fixture(scope="session")
def aftercommit_outbox(pytestconfig: pytest.Config) -> "Outbox":
    """Your Outbox."""
    from aftercommit.testing.plugin import load_outbox

    return load_outbox(pytestconfig.getini("aftercommit_app"))


@pytest.fixture(scope="session")
def aftercommit_prepare(pytestconfig: pytest.Config) -> Callable[[str], None] | None:
    """What makes your tables in the template; None when there are none but the outbox's."""
    from aftercommit.testing.plugin import load_prepare

    return load_prepare(pytestconfig.getini("aftercommit_prepare"), pytestconfig.rootpath)


@pytest.fixture(scope="session")
def aftercommit_transport(pytestconfig: pytest.Config) -> "TransportChoice":
    """How `drain` delivers."""
    chosen: Any = pytestconfig.getini("aftercommit_transport") or "log"
    transport: TransportChoice = chosen
    return transport


@pytest.fixture
def aftercommit_dsn(
    aftercommit_server: "PostgresServerForTests",
    aftercommit_outbox: "Outbox",
    aftercommit_prepare: Callable[[str], None] | None,
) -> Iterator[str]:
    """The URI of a migrated database of the test's own; it is gone after the test."""
    dsn = aftercommit_server.clone(aftercommit_server.template_for(aftercommit_outbox, aftercommit_prepare))
    yield dsn
    aftercommit_server.drop(dsn)


@contextmanager
def _keeping_its_plans(session: pytest.Session, world: "World | AsyncWorld") -> Iterator[None]:
    """A crash that was planned has to come before the test ends; a test that failed anyway is left with its reason."""
    failed = session.testsfailed
    yield
    if session.testsfailed == failed:
        world.points.require_reached("until the test ended: drain(), or give a service probe=world.points")


@pytest.fixture
def aftercommit_world(
    request: pytest.FixtureRequest,
    aftercommit_outbox: "Outbox",
    aftercommit_dsn: str,
    aftercommit_transport: "TransportChoice",
    aftercommit_server: "PostgresServerForTests",
) -> "Iterator[World]":
    """The test kit for ordinary tests."""
    from aftercommit.testing import World

    world = World(aftercommit_outbox, aftercommit_dsn, transport=aftercommit_transport, server=aftercommit_server)
    with _keeping_its_plans(request.session, world):
        yield world


@pytest.fixture
def aftercommit_async_world(
    request: pytest.FixtureRequest,
    aftercommit_outbox: "Outbox",
    aftercommit_dsn: str,
    aftercommit_transport: "TransportChoice",
    aftercommit_server: "PostgresServerForTests",
) -> "Iterator[AsyncWorld]":
    """The test kit for tests that run in an event loop, whichever plugin runs them."""
    from aftercommit.testing import AsyncWorld

    world = AsyncWorld(aftercommit_outbox, aftercommit_dsn, transport=aftercommit_transport, server=aftercommit_server)
    with _keeping_its_plans(request.session, world):
        yield world


@pytest.fixture
def aftercommit_bot_api() -> "Iterator[BotApiServer]":
    """A Bot API server of the test's own, in a thread, with Telegram's limits to the letter and no chats."""
    from aftercommit.contrib.telegram.local_api import BotApiServer

    with BotApiServer.in_thread() as server:
        yield server
