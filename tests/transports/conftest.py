"""Fixtures of the tests of transports."""

from collections.abc import Iterator

import pytest

from aftercommit.outbox import Outbox
from aftercommit.testing.postgres import PostgresServerForTests
from tests.transports.databases import SCHEMA

pytest.register_assert_rewrite("aftercommit.testing.transport_suite")


@pytest.fixture
def database(postgres_server: PostgresServerForTests) -> Iterator[str]:
    """A database of the test's own, with the suite's outbox in it: a harness that migrates has nothing to do."""
    dsn = postgres_server.clone(postgres_server.template_for(Outbox(SCHEMA)))
    yield dsn
    postgres_server.drop(dsn)
