"""`aftercommit migrate sql` for people with psql: on nothing, on an older schema, and again."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aftercommit.cli import cli
from aftercommit.embedded.cluster import binaries
from aftercommit.postgres.shape import Shape
from aftercommit.schema import migrate
from aftercommit.schema.numbered import migrations
from tests.support.engine import Engine, connected, migrate_up, value
from tests.support.old_schema import migrate_up_to
from tests.support.shop import shop_outbox
from tools.schema import VERSION, dump

APP = ("--app", "tests.support.shop_app:outbox")
SHAPE = shop_outbox().shape
EVENT = {"aggregate_type": "order", "tenant_id": "acme"}


def printed(*options: str) -> str:
    result = CliRunner().invoke(cli, ["migrate", "sql", *APP, *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def psql(dsn: str, script: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    command: list[str | Path] = [binaries(VERSION) / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", dsn]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=False, **options)


def test_psql_makes_what_up_makes_and_a_second_time_nothing(database, postgres_server):
    for _ in range(2):
        finished = psql(database, printed())
        assert (finished.returncode, finished.stderr) == (0, "")

    by_up = postgres_server.clone("empty")
    migrate_up(by_up, SHAPE)
    assert dump(database, SHAPE.schema) == dump(by_up, SHAPE.schema)
    with connected(database) as connection:
        migrate.check(connection, SHAPE)


@pytest.mark.parametrize("options", [(), ("--from", "1"), ("--after", "1")])
def test_psql_upgrades_a_database_with_events(database, options):
    with connected(database) as connection:
        migrate_up_to(connection, SHAPE, 1)
        engine = Engine(connection, SHAPE)
        engine.deliver(engine.publish(**EVENT))
        engine.publish(**EVENT)

    finished = psql(database, printed(*options))

    assert (finished.returncode, finished.stderr) == (0, "")
    with connected(database) as connection:
        migrate.check(connection, SHAPE)
        assert value(connection, "select count(*) from shop.log") == 1
        assert value(connection, "select count(*) from shop.outbox") == 1


@pytest.mark.thorough
def test_psql_asks_briefly_for_a_table_that_somebody_reads_and_leaves_nothing_half_done(database):
    with connected(database) as connection:
        migrate_up_to(connection, Shape(SHAPE.schema), 1)
    with connected(database, autocommit=False) as reader:
        reader.execute("select count(*) from shop.outbox")
        finished = psql(database, printed())

    assert finished.returncode == 3
    assert "canceling statement due to lock timeout" in finished.stderr
    with connected(database) as connection:
        assert value(connection, "select max(version) from shop.migration") == 1
    assert psql(database, printed()).returncode == 0


@pytest.mark.parametrize("version", ["99", "-1", "first"])
def test_a_version_that_there_is_not_is_refused(version):
    result = CliRunner().invoke(cli, ["migrate", "sql", *APP, "--from", version])

    assert result.exit_code in (1, 2)
    assert version in result.stderr
    assert "create table" not in result.stdout


def test_the_end_of_the_numbers_is_said(database):
    result = CliRunner().invoke(cli, ["migrate", "sql", *APP, "--from", "99"])

    assert f"there is no migration 99: give 1 to {migrations()[-1].version}" in result.stderr
