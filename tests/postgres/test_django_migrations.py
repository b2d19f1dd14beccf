"""The outbox in a user's Django project: a real project in a folder, driven through its manage.py."""

import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from aftercommit.postgres.shape import Shape
from aftercommit.schema import migrate
from tests.support.engine import Engine, connected, value
from tests.support.warm import Warm
from tools.schema import dump

pytestmark = pytest.mark.newest

FIRST = Shape("shop events")
SECOND = Shape("shop events", {"tenant_id": str})

FILES = {
    "manage.py": """
        import os, sys
        from django.core.management import execute_from_command_line
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        execute_from_command_line(sys.argv)
    """,
    "settings.py": """
        import json, os
        SECRET_KEY = "not a secret"
        USE_TZ = True
        INSTALLED_APPS = ["shop.apps.ShopConfig"]
        DATABASES = json.loads(os.environ["DATABASES"])
        DATABASE_ROUTERS = ["shop.apps.Router"]
    """,
    "shop/__init__.py": "",
    "shop/apps.py": """
        from django.apps import AppConfig
        from aftercommit.contrib.django.operations import register_check

        class ShopConfig(AppConfig):
            name = "shop"

            def ready(self):
                register_check("shop.events.outbox")

        class Router:
            def allow_migrate(self, db, app_label, **hints):
                return db != "archive"
    """,
    "shop/events.py": """
        import os
        from aftercommit.outbox import Outbox
        outbox = Outbox("shop events", scope={"tenant_id": str} if os.environ.get("SCOPED") else None)
    """,
    "shop/migrations/__init__.py": "",
    "shop/migrations/0001_outbox.py": """
        from django.db import migrations
        from aftercommit.contrib.django.operations import MigrateOutbox

        class Migration(migrations.Migration):
            initial = True
            operations = [MigrateOutbox("shop.events.outbox", drop_all_events=True)]
    """,
    "shop/migrations/0002_scope.py": """
        from django.db import migrations
        from aftercommit.contrib.django.operations import MigrateOutbox

        class Migration(migrations.Migration):
            dependencies = [("shop", "0001_outbox")]
            operations = [MigrateOutbox("shop.events.outbox")]
    """,
}


class Project:
    """A Django project on one database, with sqlite databases beside it."""

    def __init__(self, folder: Path, dsn: str, python: Warm) -> None:
        self.folder = folder
        self.dsn = dsn
        self.python = python
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def manage(self, *arguments: str, scoped: bool = False) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "DATABASES": json_databases(self.dsn), "SCOPED": "1" if scoped else ""}
        return self.python.run("manage.py", *arguments, folder=self.folder, environment=environment)


def json_databases(dsn: str) -> str:
    import json

    parts: dict[str, Any] = conninfo_to_dict(dsn)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    postgresql = {name: str(parts.get(key) or "") for name, key in names.items()}
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    databases = {
        "default": {"ENGINE": "django.db.backends.postgresql", **postgresql},
        "archive": sqlite,
        "cache": sqlite,
    }
    return json.dumps(databases)


@pytest.fixture(scope="module")
def python() -> Iterator[Warm]:
    with Warm("django.core.management", "django.db.migrations.executor", "aftercommit") as warm:
        yield warm


@pytest.fixture
def project(tmp_path: Path, database: str, python: Warm) -> Project:
    return Project(tmp_path, database, python)


@pytest.mark.thorough
def test_a_django_migration_makes_what_up_makes(project, postgres_server):
    finished = project.manage("migrate", "shop", "0001")
    assert finished.returncode == 0, finished.stderr

    by_up = postgres_server.clone("empty")
    with connected(project.dsn) as connection, connected(by_up) as other:
        migrate.check(connection, FIRST)
        migrate.up(other, FIRST)
    assert dump(project.dsn, FIRST.schema) == dump(by_up, FIRST.schema)

    finished = project.manage("migrate", scoped=True)
    assert finished.returncode == 0, finished.stderr
    with connected(project.dsn) as connection:
        migrate.check(connection, SECOND)
        Engine(connection, SECOND).publish(tenant_id="acme")
    assert "No migrations to apply" in project.manage("migrate", scoped=True).stdout


@pytest.mark.thorough
def test_sqlmigrate_prints_statements_that_make_the_same_tables(project):
    printed = project.manage("sqlmigrate", "shop", "0001").stdout

    with connected(project.dsn) as connection:
        connection.execute(printed.encode())
        migrate.check(connection, FIRST)
        assert migrate.up(connection, FIRST) == []


def test_the_plan_says_in_words_what_will_be_done(project):
    assert "Bring the outbox 'shop events' up to date" in project.manage("migrate", "--plan").stdout


@pytest.mark.thorough
def test_a_migration_can_be_reversed_only_where_dropping_all_events_was_allowed(project):
    assert project.manage("migrate").returncode == 0

    refused = project.manage("migrate", "shop", "0001")
    assert refused.returncode != 0
    assert "IrreversibleError" in refused.stderr
    with connected(project.dsn) as connection:
        migrate.check(connection, FIRST)
        connection.execute("delete from django_migrations where name = '0002_scope'")

    assert project.manage("migrate", "shop", "zero").returncode == 0
    with connected(project.dsn) as connection:
        assert value(connection, "select count(*) from pg_namespace where nspname = 'shop events'") == 0


@pytest.mark.thorough
def test_the_system_check_warns_while_the_tables_are_behind(project):
    command = ["check", "--database", "default"]
    before = project.manage(*command)
    assert "aftercommit.W001" in before.stderr
    assert "outbox 'shop events' is behind: migration 0001_engine is missing" in before.stderr
    assert "run `manage.py migrate`" in before.stderr

    assert project.manage("migrate").returncode == 0
    assert "no issues" in project.manage(*command).stdout
    assert "scope column tenant_id is missing" in project.manage(*command, scoped=True).stderr
    # Without a database to look at, nothing is asked.
    assert "no issues" in project.manage("check", scoped=True).stdout


def test_the_system_check_warns_of_a_schema_from_the_future(project):
    assert project.manage("migrate").returncode == 0
    with connected(project.dsn) as connection:
        connection.execute("insert into \"shop events\".migration values (9999, 'future', 'x')")

    assert "aftercommit.W002" in project.manage("check", "--database", "default").stderr


def test_a_database_that_a_router_keeps_away_is_left_alone_and_another_that_is_not_postgresql_is_refused(project):
    assert project.manage("migrate", "--database", "archive").returncode == 0

    refused = project.manage("migrate", "--database", "cache")
    assert refused.returncode != 0
    assert "the Django database 'cache' is sqlite: aftercommit needs PostgreSQL" in refused.stderr


def test_squashed_migrations_name_the_outbox_by_its_path(project):
    finished = project.manage("squashmigrations", "shop", "0002", "--noinput")
    assert finished.returncode == 0, finished.stderr

    squashed = next((project.folder / "shop" / "migrations").glob("*squashed*")).read_text()
    assert "aftercommit.contrib.django.operations.MigrateOutbox(" in squashed
    assert "'shop.events.outbox'" in squashed
    assert project.manage("migrate").returncode == 0
    with connected(project.dsn) as connection:
        migrate.check(connection, FIRST)


def test_a_migration_whose_statement_fails_leaves_nothing(project):
    with connected(project.dsn) as connection:
        connection.execute('create schema "shop events"; create table "shop events".outbox (mine int)')

    assert 'relation "outbox" already exists' in project.manage("migrate").stderr

    with connected(project.dsn) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute('select from "shop events".head')
