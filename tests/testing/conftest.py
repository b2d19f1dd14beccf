"""Fixtures of the tests of the test kit: our server under the plugin's name, and an outbox of each test's own."""

from collections.abc import Callable

import psycopg
import pytest

from aftercommit.outbox import Outbox
from aftercommit.testing import PostgresServerForTests
from tests.support.shop import shop_outbox

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session")
def aftercommit_server(postgres_server: PostgresServerForTests) -> PostgresServerForTests:
    """The server that all our tests share."""
    return postgres_server


@pytest.fixture
def aftercommit_outbox() -> Outbox:
    """Declared anew for each test, because consumers belong to the declaration."""
    return shop_outbox()


@pytest.fixture(scope="session")
def aftercommit_prepare() -> Callable[[str], None]:
    """A table that handlers write to. It has no unique constraint: a second effect would show."""

    def prepare(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table ledger (id bigint generated always as identity, order_id text, note text)")

    return prepare
