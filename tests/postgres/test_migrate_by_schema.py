"""`aftercommit migrate up` that is told a schema and no declaration."""

from collections.abc import Iterator

import pytest

from aftercommit.testing.postgres import PostgresServerForTests
from tests.postgres.test_cli import fails, run
from tests.support.hearing import SCHEMA, Tasks, task_outbox


@pytest.fixture
def tasks(postgres_server: PostgresServerForTests) -> Iterator[Tasks]:
    dsn = postgres_server.clone(postgres_server.template_for(task_outbox()))
    yield Tasks(dsn)
    postgres_server.drop(dsn)


def test_up_without_app_does_not_take_a_declared_audience_out_of_the_views(tasks: Tasks) -> None:
    line = fails(3, "migrate", "up", "--schema", SCHEMA, "--dsn", tasks.dsn)

    assert f"{SCHEMA}.outbox has an audience, which its views would lose" in line
    assert "give --app module:outbox" in line
    assert tasks.rows("select audience from event_log") == []
    assert tasks.rows("select audience from event_outbox") == []


def test_up_without_app_makes_and_keeps_an_outbox_that_declares_nothing(tasks: Tasks) -> None:
    other = ("migrate", "up", "--schema", "plain_events", "--dsn", tasks.dsn)

    assert run(*other).exit_code == 0
    assert run(*other).exit_code == 0
