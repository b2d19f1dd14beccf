"""aftercommit as an app of a user's Django project: migrations, test databases, several databases, manage.py."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from aftercommit.postgres.shape import Shape
from aftercommit.schema import migrate
from aftercommit.schema.numbered import migrations
from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.engine import Engine, connected, migrate_up, value
from tests.support.old_schema import migrate_up_to
from tests.support.warm import Warm
from tools.schema import dump

pytestmark = pytest.mark.newest

SHOP = Shape("shop_events")
SCOPED = Shape("shop_events", {"tenant_id": str})
BILLING = Shape("billing_events")

FILES = {
    "manage.py": """
        import os, sys
        from django.core.management import execute_from_command_line
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
        execute_from_command_line(sys.argv)
    """,
    "settings.py": """
        import json, os
        SECRET_KEY = "not a secret"
        USE_TZ = True
        INSTALLED_APPS = ["aftercommit.contrib.django", "shop"]
        DATABASES = json.loads(os.environ["DATABASES"])
        AFTERCOMMIT_OUTBOXES = json.loads(os.environ.get("OUTBOXES", '["shop.events.outbox"]'))
        AFTERCOMMIT_DROP_ALL_EVENTS = bool(os.environ.get("DROP_ALL_EVENTS"))
        DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
        if os.environ.get("NO_MIGRATIONS"):
            MIGRATION_MODULES = {"aftercommit": None, "shop": None}
    """,
    "shop/__init__.py": "",
    "shop/models.py": """
        from django.db import models

        class Order(models.Model):
            note = models.TextField()
    """,
    "shop/events.py": """
        import os
        from dataclasses import dataclass
        from aftercommit import Outbox

        outbox = Outbox("shop_events", scope={"tenant_id": str} if os.environ.get("SCOPED") else None)
        billing = Outbox("billing_events")

        @outbox.event("order.placed", aggregate="order", key="order_id")
        @dataclass
        class OrderPlaced:
            order_id: str
    """,
    "shop/migrations/__init__.py": "",
    "shop/migrations/0001_orders.py": """
        from django.db import migrations, models

        class Migration(migrations.Migration):
            initial = True
            operations = [migrations.CreateModel("Order", [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("note", models.TextField()),
            ])]
    """,
    "shop/tests.py": """
        from django.core.management import call_command
        from django.db import connection, transaction
        from django.test import TestCase, TransactionTestCase
        from shop.events import OrderPlaced, outbox
        from shop.models import Order

        def published():
            with connection.cursor() as cursor:
                cursor.execute("select count(*) from shop_events.outbox")
                return cursor.fetchone()[0]

        class PlacingAnOrder(TestCase):
            def test_publishes(self):
                with transaction.atomic():
                    Order.objects.create(note="first")
                    outbox.publish(connection, OrderPlaced("o-1"))
                self.assertEqual(published(), 1)

            def test_leaves_nothing_for_the_next_test(self):
                self.assertEqual(published(), 0)

        class CommittingForReal(TransactionTestCase):
            def test_flushes_without_touching_the_outbox(self):
                with transaction.atomic():
                    outbox.publish(connection, OrderPlaced("o-1"))
                call_command("flush", interactive=False, verbosity=0)
                self.assertEqual(published(), 1)
    """,
}


# Runs a worker whose blocking handler uses the ORM, and prints how many sessions of Django's are left in the end.
ORM_WORKER = """
    import asyncio, os, sys
    import django
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    django.setup()
    import psycopg
    from django.db import connection as django_connection
    from aftercommit.consumer import LogWorker
    from aftercommit.contrib.django.dsn import dsn_of
    from aftercommit.postgres.database import Database
    from aftercommit.relay import Relay
    from aftercommit.testing.signals import Signals
    from aftercommit.relay.transports import LogTransport
    from shop.events import OrderPlaced, outbox
    from shop.models import Order

    consumer = outbox.consumer("notes")
    kept = []

    @consumer.on(OrderPlaced)
    def note(event, connection):
        Order.objects.create(note=event.payload.order_id)
        kept.append(django_connection.connection)

    SESSIONS = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'orm'"

    async def main(dsn):
        signals = Signals()
        eyes = psycopg.connect(dsn, autocommit=True)
        parts = [Relay(outbox, Database(dsn), LogTransport(), probe=signals)]
        parts.append(LogWorker(outbox, consumer, Database(dsn), probe=signals))
        for part in parts:
            await part.start()
        for number in range(12):
            with psycopg.connect(dsn) as publisher:
                outbox.publish(publisher, OrderPlaced(str(number)))
            await signals.wait_total("consumer.handled", number + 1)
        for _ in range(200):
            left = eyes.execute(SESSIONS).fetchone()[0]
            if left == 0:
                break
            await asyncio.sleep(0.01)
        print("left", left, "handled", eyes.execute("select count(*) from shop_order").fetchone()[0])
        for part in parts:
            await part.stop()

    asyncio.run(main(dsn_of(django_connection).replace("application_name=orm", "")))
"""


class Project:
    """A Django project with the app, on one or two databases and an sqlite one beside them."""

    def __init__(self, folder: Path, dsn: str, python: Warm, **others: str) -> None:
        self.folder = folder
        self.dsn = dsn
        self.python = python
        self.databases = {
            "default": django_database(dsn),
            **{alias: django_database(other) for alias, other in others.items()},
            "cache": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        }
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def manage(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run manage.py; what it prints is in the result."""
        return self.python.run("manage.py", *arguments, folder=self.folder, environment=self.environment(environment))

    def cold(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """The same in an interpreter that has imported nothing before."""
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self.folder,
            env=self.environment({}),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("AFTERCOMMIT")}
        return {**inherited, "DATABASES": json.dumps(self.databases), **more}

    def manages(self, *arguments: str, **environment: str) -> str:
        """The same where nothing may fail."""
        finished = self.manage(*arguments, **environment)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout


def django_database(dsn: str) -> dict[str, Any]:
    parts: dict[str, Any] = conninfo_to_dict(dsn)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{name: str(parts.get(key) or "") for name, key in names.items()},
    }


@pytest.fixture(scope="module")
def python() -> Iterator[Warm]:
    with Warm("django.core.management", "django.db.migrations.executor", "aftercommit.cli") as warm:
        yield warm


@pytest.fixture
def project(tmp_path: Path, database: str, python: Warm) -> Project:
    return Project(tmp_path, database, python)


@pytest.fixture
def billing(postgres_server: PostgresServerForTests, database: str) -> Iterator[str]:
    """The connection URI of a second database."""
    dsn = postgres_server.clone("empty")
    yield dsn
    postgres_server.drop(dsn)


def has_schema(dsn: str, name: str) -> bool:
    with connected(dsn) as connection:
        return bool(value(connection, "select count(*) from pg_namespace where nspname = %s", [name]))


@pytest.mark.thorough
def test_migrate_makes_what_up_makes_and_django_knows_it(project, postgres_server):
    assert "[ ] 0002_repair" in project.manages("showmigrations", "aftercommit")

    project.manages("migrate")

    by_up = postgres_server.clone("empty")
    migrate_up(by_up, SHOP)
    assert dump(project.dsn, SHOP.schema) == dump(by_up, SHOP.schema)
    assert "[X] 0002_repair" in project.manages("showmigrations", "aftercommit")
    assert "No changes detected" in project.manages("makemigrations", "--check", "--dry-run")
    assert "no issues" in project.manages("check", "--database", "default")
    assert "No migrations to apply" in project.cold("migrate").stdout


@pytest.mark.thorough
def test_orm_connections_of_blocking_handlers_are_closed_when_the_handlers_end(project):
    """Each slice has a thread of its own, and Django a connection per thread."""
    project.databases["default"]["OPTIONS"] = {"application_name": "orm"}
    project.manages("migrate")
    (project.folder / "orm_worker.py").write_text(textwrap.dedent(ORM_WORKER))
    finished = subprocess.run(
        [sys.executable, "orm_worker.py"],
        cwd=project.folder,
        env=project.environment({}),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.stdout == "left 0 handled 12\n", finished.stdout + finished.stderr


def test_there_is_one_migration_of_djangos_for_each_of_ours(project):
    shown = project.manages("showmigrations", "aftercommit")

    assert [line.split("]")[1].strip() for line in shown.splitlines()[1:]] == [str(each) for each in migrations()]


@pytest.mark.thorough
def test_sqlmigrate_prints_statements_that_make_the_same_tables(project):
    printed = [project.manages("sqlmigrate", "aftercommit", str(migration)) for migration in migrations()]

    with connected(project.dsn) as connection:
        for text in printed:
            connection.execute(text.encode())
        migrate.check(connection, SHOP)
        assert migrate.up(connection, SHOP) == []


@pytest.mark.thorough
def test_a_database_of_the_version_before_is_upgraded_with_its_events(project):
    with connected(project.dsn) as connection:
        migrate_up_to(connection, SHOP, 1)
        engine = Engine(connection, SHOP)
        engine.deliver(engine.publish())
        kept = engine.publish()

    project.manages("migrate")

    with connected(project.dsn) as connection:
        migrate.check(connection, SHOP)
        assert value(connection, "select position from shop_events.log") == 1
        assert value(connection, "select id from shop_events.outbox") == kept


@pytest.mark.thorough
def test_a_scope_that_is_declared_later_comes_with_the_next_migrate(project):
    project.manages("migrate")
    assert "scope column tenant_id is missing" in project.manage("check", "--database", "default", SCOPED="1").stderr

    assert "Brought outbox 'shop_events' up to its declaration" in project.manages("migrate", SCOPED="1")

    with connected(project.dsn) as connection:
        migrate.check(connection, SCOPED)
    assert "Brought" not in project.manages("migrate", SCOPED="1")
    refused = project.manage("migrate")
    assert refused.returncode != 0
    assert "has the column 'tenant_id'" in refused.stderr


@pytest.mark.thorough
def test_going_back_keeps_the_tables_until_dropping_all_events_is_allowed(project):
    project.manages("migrate")

    project.manages("migrate", "aftercommit", "0001")
    assert has_schema(project.dsn, "shop_events")
    with connected(project.dsn) as connection:
        assert value(connection, "select max(version) from shop_events.migration") == migrations()[-1].version
    refused = project.manage("migrate", "aftercommit", "zero")
    assert refused.returncode != 0
    assert "IrreversibleError" in refused.stderr

    project.manages("migrate", "aftercommit", "zero", DROP_ALL_EVENTS="1")
    assert not has_schema(project.dsn, "shop_events")


@pytest.mark.thorough
def test_outboxes_live_on_the_databases_that_the_settings_say(tmp_path, database, billing, python):
    project = Project(tmp_path, database, python, billing=billing)
    outboxes = json.dumps({"default": ["shop.events.outbox"], "billing": ["shop.events:billing"]})

    project.manages("migrate", OUTBOXES=outboxes)
    assert has_schema(database, "shop_events")
    assert not has_schema(billing, "billing_events")
    project.manages("migrate", "--database", "billing", OUTBOXES=outboxes)
    project.manages("migrate", "--database", "cache", OUTBOXES=outboxes)

    assert not has_schema(database, "billing_events")
    assert not has_schema(billing, "shop_events")
    shown = project.manages("aftercommit", "migrate", "status", "--database", "billing", "--json", OUTBOXES=outboxes)
    assert json.loads(shown)["outbox"] == "billing_events"
    assert json.loads(shown)["current"] is True


@pytest.mark.thorough
def test_several_outboxes_share_a_database(project):
    outboxes = json.dumps(["shop.events.outbox", "shop.events.billing"])

    project.manages("migrate", OUTBOXES=outboxes)

    with connected(project.dsn) as connection:
        migrate.check(connection, SHOP)
        migrate.check(connection, BILLING)
    refused = project.manage("aftercommit", "relay", OUTBOXES=outboxes)
    assert refused.returncode == 1
    assert "--app" in refused.stderr
    shown = project.manages("aftercommit", "migrate", "status", "--app", "shop.events:billing", OUTBOXES=outboxes)
    assert "0002_repair" in shown


@pytest.mark.parametrize(
    ("outboxes", "message"),
    [
        ('"shop.events.outbox"', "it should be a list such as"),
        ('{"nowhere": []}', "names database 'nowhere', which DATABASES does not have"),
        ('["shop.events.nothing"]', "has no attribute 'nothing'"),
        ('["shop.missing.outbox"]', "there is no module 'shop.missing'"),
        ('["outbox"]', "should look like package.module:name"),
        ('{"cache": ["shop.events.outbox"]}', "'cache' is sqlite: aftercommit needs PostgreSQL"),
    ],
)
def test_a_setting_that_cannot_work_is_named(project, outboxes, message):
    database = "cache" if "cache" in outboxes else "default"

    refused = project.manage("migrate", "--database", database, OUTBOXES=outboxes)

    assert refused.returncode != 0
    assert message in refused.stderr


def test_an_app_without_outboxes_is_noticed(project):
    checked = project.manage("check", OUTBOXES="[]")

    assert "aftercommit.W003" in checked.stderr
    assert "AFTERCOMMIT_OUTBOXES is empty" in checked.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("environment", [{}, {"NO_MIGRATIONS": "1"}], ids=["by migrations", "without migrations"])
def test_djangos_test_runner_makes_databases_with_the_outbox(project, environment):
    finished = project.manage("test", "--noinput", **environment)

    assert finished.returncode == 0, finished.stderr
    assert "Ran 3 tests" in finished.stderr


@pytest.mark.thorough
def test_manage_py_hands_over_to_the_command_line_with_djangos_database(project):
    assert "applied 0002_repair" in project.manages("aftercommit", "migrate", "up")

    status = project.manages("aftercommit", "status", "--json", "--settings", "settings")
    assert json.loads(status)["outbox"] == "shop_events"
    assert "manage.py aftercommit [OPTIONS]" in project.cold("aftercommit", "--help").stdout
    wrong = project.manage("aftercommit", "stauts")
    assert wrong.returncode == 2
    assert "No such command" in wrong.stderr
    refused = project.manage("aftercommit", "status", "--database", "elsewhere")
    assert refused.returncode == 1
    assert "DATABASES has no 'elsewhere': use one of default, cache" in refused.stderr
    assert "'cache' is sqlite" in project.manage("aftercommit", "status", "--database", "cache").stderr


@pytest.mark.thorough
def test_call_command_hands_over_too_and_a_failure_is_a_command_error(project):
    program = "from django.core.management import call_command; call_command('aftercommit', 'migrate', 'check')"

    refused = project.manage("shell", "-c", program)
    assert refused.returncode != 0
    assert "CommandError: aftercommit migrate check ended with status 3" in refused.stderr

    project.manages("migrate")
    project.manages("shell", "-c", program)


@pytest.mark.thorough
def test_the_role_that_django_assumes_is_assumed_by_the_command_line_too(project):
    role = f"owner of {project.databases['default']['NAME']}"
    with connected(project.dsn) as connection:
        connection.execute(f'create role "{role}"; grant create on database "{connection.info.dbname}" to "{role}"')
    project.databases["default"]["OPTIONS"] = {"assume_role": role, "pool": False, "application_name": "shop"}

    project.manages("aftercommit", "migrate", "up")

    with connected(project.dsn) as connection:
        query = "select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'shop_events'"
        assert value(connection, query) == role
        connection.execute(f'drop owned by "{role}" cascade; drop role "{role}"')
