"""Fixtures of the tests against PostgreSQL."""

from collections.abc import Iterator

import pytest

from aftercommit.testing.postgres import PostgresServerForTests

pytest.register_assert_rewrite("aftercommit.testing.outbox_suite", "aftercommit.testing.bulk_cases")


@pytest.fixture(autouse=True)
def patient_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks right after the start is told to come again only when a busy machine has had its time too."""
    monkeypatch.setattr("aftercommit.feed.strands.hub.BEGIN_SECONDS", 60.0)
    monkeypatch.setattr("aftercommit.access.bearer.BEGIN_SECONDS", 60.0)


@pytest.fixture(scope="module")
def publish_database(postgres_server: PostgresServerForTests) -> Iterator[str]:
    """The connection URI of a database with the tables of the publish suite, shared by the tests of one file."""
    from aftercommit.testing.outbox_suite import create_suite_tables

    dsn = postgres_server.clone(postgres_server.template("publish suite", create_suite_tables))
    yield dsn
    postgres_server.drop(dsn)
