"""The branch `aftercommit` and the operations in a user's Alembic project, driven through the alembic command."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aftercommit.contrib.alembic import versions
from aftercommit.contrib.alembic.autogenerate import asking
from aftercommit.postgres.shape import Shape
from aftercommit.schema import migrate
from aftercommit.schema.numbered import migrations
from tests.support.engine import Engine, connected, migrate_up, value
from tests.support.old_schema import migrate_up_to
from tests.support.warm import Warm
from tools.schema import dump

pytestmark = pytest.mark.newest

NEWEST = f"aftercommit_{migrations()[-1].version:04d}"
SHOP = Shape("shop_events")
SCOPED = Shape("shop_events", {"tenant_id": str})
BILLING = Shape("billing_events")

FILES = {
    "alembic.ini": """
        [alembic]
        script_location = %(here)s/migrations
        prepend_sys_path = %(here)s
        path_separator = newline
        version_locations =
            %(here)s/migrations/versions
            aftercommit.contrib.alembic:versions
        aftercommit_outboxes = {outboxes}
        aftercommit_drop_all_events = {drop_all_events}
    """,
    "migrations/env.py": """
        import os
        from alembic import context
        from sqlalchemy import create_engine, pool
        import aftercommit.contrib.alembic as outbox_tables
        from shop import metadata, outbox, billing

        url = os.environ["URL"]
        options = dict(
            target_metadata=metadata,
            include_schemas=True,
            include_object=outbox_tables.include_object(outbox, outbox_tables.include_object(billing)),
        )
        if context.is_offline_mode():
            context.configure(url=url, literal_binds=True, **options)
            with context.begin_transaction():
                context.run_migrations()
        else:
            with create_engine(url, poolclass=pool.NullPool).connect() as connection:
                context.configure(connection=connection, **options)
                with context.begin_transaction():
                    context.run_migrations()
    """,
    "migrations/script.py.mako": """
        from alembic import op
        import sqlalchemy as sa

        revision = ${repr(up_revision)}
        down_revision = ${repr(down_revision)}
        branch_labels = ${repr(branch_labels)}
        depends_on = ${repr(depends_on)}

        def upgrade():
            ${upgrades if upgrades else "pass"}

        def downgrade():
            ${downgrades if downgrades else "pass"}
    """,
    "migrations/versions/orders.py": """
        import sqlalchemy as sa
        from alembic import op

        revision = "orders"
        down_revision = None
        branch_labels = ("shop",)

        def upgrade():
            op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))

        def downgrade():
            op.drop_table("orders")
    """,
    "shop.py": """
        import os
        import sqlalchemy as sa
        from aftercommit import Outbox

        metadata = sa.MetaData()
        sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True))
        outbox = Outbox("shop_events", scope={"tenant_id": str} if os.environ.get("SCOPED") else None)
        billing = Outbox("billing_events")
    """,
}


class Project:
    """A user's Alembic project with a table of its own and our branch beside it."""

    def __init__(self, folder: Path, dsn: str, python: Warm) -> None:
        self.folder = folder
        self.dsn = dsn
        self.python = python
        for name in FILES:
            self.write(name)

    def write(self, name: str, outboxes: str = "shop:outbox", drop_all_events: str = "") -> None:
        text = textwrap.dedent(FILES[name])
        if name.endswith(".ini"):
            text = text.replace("{outboxes}", outboxes).replace("{drop_all_events}", drop_all_events)
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def alembic(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return self.python.run(
            "-m", "alembic", *arguments, folder=self.folder, environment=self.environment(environment)
        )

    def cold(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """The same in an interpreter that has imported nothing before."""
        return subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=self.folder,
            env=self.environment({}),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        url = self.dsn.replace("postgresql://", "postgresql+psycopg://", 1)
        return {**os.environ, "URL": url, **more}

    def runs(self, *arguments: str, **environment: str) -> str:
        """The command where nothing may fail."""
        finished = self.alembic(*arguments, **environment)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout

    def revision(self, name: str, body: str) -> None:
        """A revision of the project's own, after its first."""
        text = f"""
            from alembic import op
            revision = {name!r}
            down_revision = "orders"
            depends_on = {NEWEST!r}

            def upgrade():
                {body}

            def downgrade():
                pass
        """
        (self.folder / "migrations" / "versions" / f"{name}.py").write_text(textwrap.dedent(text))


@pytest.fixture(scope="module")
def python() -> Iterator[Warm]:
    with Warm(
        "alembic.config", "alembic.autogenerate", "sqlalchemy.dialects.postgresql.psycopg", "aftercommit"
    ) as warm:
        yield warm


@pytest.fixture
def project(tmp_path: Path, database: str, python: Warm) -> Project:
    return Project(tmp_path, database, python)


def test_there_is_one_revision_for_each_migration_and_they_follow_each_other():
    found = sorted(path.stem for path in Path(str(versions.__file__)).parent.glob("aftercommit_*.py"))

    assert found == [f"aftercommit_{migration}" for migration in migrations()]


@pytest.mark.thorough
def test_the_branch_makes_what_up_makes_beside_the_projects_own_heads(project, postgres_server):
    assert {line.split()[0] for line in project.runs("heads").splitlines()} == {"orders", NEWEST}

    project.runs("upgrade", "aftercommit@head")
    with connected(project.dsn) as connection:
        migrate.check(connection, SHOP)
        assert value(connection, "select to_regclass('orders')") is None
    by_up = postgres_server.clone("empty")
    migrate_up(by_up, SHOP)
    assert dump(project.dsn, SHOP.schema) == dump(by_up, SHOP.schema)

    assert project.cold("upgrade", "heads").returncode == 0
    with connected(project.dsn) as connection:
        rows = connection.execute("select version_num from alembic_version order by 1").fetchall()
        assert {row[0] for row in rows} == {"orders", NEWEST}
    assert "No new upgrade operations detected" in project.runs("check")


def test_a_database_of_the_version_before_is_upgraded_with_its_events(project):
    with connected(project.dsn) as connection:
        migrate_up_to(connection, SHOP, 1)
        engine = Engine(connection, SHOP)
        engine.deliver(engine.publish())
        kept = engine.publish()
    project.runs("stamp", "aftercommit_0001")

    project.runs("upgrade", "aftercommit@head")

    with connected(project.dsn) as connection:
        migrate.check(connection, SHOP)
        assert value(connection, "select position from shop_events.log") == 1
        assert value(connection, "select id from shop_events.outbox") == kept


def test_offline_mode_prints_the_branch_for_somebody_else_to_run(project):
    printed = project.runs("upgrade", "aftercommit@head", "--sql")

    with connected(project.dsn) as connection:
        connection.execute(printed.encode())
        migrate.check(connection, SHOP)
        assert value(connection, "select version_num from alembic_version") == NEWEST


def test_several_outboxes_go_through_the_branch_together(project):
    project.write("alembic.ini", "shop:outbox, shop.billing")

    project.runs("upgrade", "aftercommit@head")

    with connected(project.dsn) as connection:
        migrate.check(connection, SHOP)
        migrate.check(connection, BILLING)


@pytest.mark.parametrize(
    ("outboxes", "message"),
    [
        ("", "set aftercommit_outboxes = package.module:name"),
        ("shop", "'shop' should look like package.module:name"),
        ("shop:orders", "has no attribute 'orders'"),
        ("chop:outbox", "there is no module 'chop'"),
    ],
)
def test_a_configuration_that_cannot_work_is_named(project, outboxes, message):
    project.write("alembic.ini", outboxes)

    refused = project.alembic("upgrade", "aftercommit@head")

    assert refused.returncode != 0
    assert message in refused.stderr


@pytest.mark.thorough
def test_going_back_keeps_the_tables_until_dropping_all_events_is_allowed(project):
    project.runs("upgrade", "aftercommit@head")

    project.runs("downgrade", "aftercommit@aftercommit_0001")
    with connected(project.dsn) as connection:
        migrate.check(connection, SHOP)
    refused = project.alembic("downgrade", "aftercommit@base")
    assert refused.returncode != 0
    assert "schema 'shop_events' with all its events: to do that, set aftercommit_drop_all_events" in refused.stderr

    project.write("alembic.ini", drop_all_events="true")
    project.runs("downgrade", "aftercommit@base")
    with connected(project.dsn) as connection:
        assert value(connection, "select count(*) from pg_namespace where nspname = 'shop_events'") == 0
    project.runs("upgrade", "aftercommit@head")


@pytest.mark.thorough
def test_autogenerate_proposes_what_a_changed_declaration_lacks(project):
    project.runs("upgrade", "heads")
    behind = project.alembic("check", SCOPED="1")
    assert behind.returncode != 0
    assert "('migrate_outbox', 'shop:outbox')" in behind.stdout + behind.stderr

    project.runs("revision", "--autogenerate", "-m", "scope", "--head", "shop@head", "--rev-id", "scope", SCOPED="1")
    written = next((project.folder / "migrations" / "versions").glob("scope_*.py")).read_text()
    assert "op.migrate_outbox('shop:outbox')" in written
    assert "drop_table" not in written
    assert "drop_outbox" not in written

    project.runs("upgrade", "shop@head", SCOPED="1")
    with connected(project.dsn) as connection:
        migrate.check(connection, SCOPED)
    assert "No new upgrade operations detected" in project.runs("check", SCOPED="1")
    project.runs("downgrade", "shop@orders", SCOPED="1")


@pytest.mark.thorough
def test_the_first_revision_of_a_new_project_is_not_written_into_our_package(project):
    own = project.folder / "migrations" / "versions"
    for path in own.glob("*.py"):
        path.unlink()
    project.runs("upgrade", "heads")
    before = sorted(path.name for path in Path(str(versions.__file__)).parent.iterdir())

    refused = project.alembic("revision", "--autogenerate", "-m", "first")

    assert refused.returncode != 0
    assert "begin your own branch with `alembic revision --head base --version-path PATH`" in refused.stderr
    assert sorted(path.name for path in Path(str(versions.__file__)).parent.iterdir()) == before
    project.runs("revision", "--autogenerate", "--head", "base", "--version-path", str(own), "-m", "first")
    assert len(list(own.glob("*first.py"))) == 1
    project.runs("upgrade", "heads")


@pytest.mark.thorough
def test_autogenerate_proposes_an_outbox_that_is_not_there_and_its_reverse_refuses_to_drop_events(project):
    project.write("alembic.ini", "shop:outbox shop:billing")
    with connected(project.dsn) as connection:
        migrate.up(connection, SHOP)
    project.runs("stamp", NEWEST)
    project.runs("upgrade", "shop@head")

    project.runs("revision", "--autogenerate", "-m", "billing", "--head", "shop@head", "--rev-id", "billing")
    written = next((project.folder / "migrations" / "versions").glob("billing_*.py")).read_text()
    assert "op.migrate_outbox('shop:billing')" in written
    assert "op.drop_outbox('shop:billing')" in written
    assert "shop:outbox" not in written

    project.runs("upgrade", "shop@head")
    with connected(project.dsn) as connection:
        migrate.check(connection, BILLING)
    refused = project.alembic("downgrade", "shop@orders")
    assert refused.returncode != 0
    assert "schema 'billing_events' with all its events: to do that, pass drop_all_events=True" in refused.stderr


def test_a_revision_of_the_projects_own_may_build_on_the_branch(project):
    project.revision("report", "op.execute('create view report as select count(*) from shop_events.event_log')")

    project.runs("upgrade", "shop@head")

    with connected(project.dsn) as connection:
        assert value(connection, "select count from report") == 0


def test_a_revision_leaves_the_wait_for_locks_of_the_statements_after_it_alone(project):
    project.revision("waits", "op.execute(\"create table waits as select current_setting('lock_timeout') as setting\")")

    project.runs("upgrade", "shop@head")

    with connected(project.dsn) as connection:
        assert value(connection, "select setting from waits") == "0"


@pytest.mark.thorough
def test_a_revision_asks_briefly_for_a_table_that_somebody_reads(project):
    project.runs("upgrade", "heads")
    project.revision("scope", "op.migrate_outbox('shop:outbox')")
    with connected(project.dsn, autocommit=False) as reader:
        reader.execute("select count(*) from shop_events.outbox")

        refused = project.alembic("upgrade", "heads", SCOPED="1")

    assert refused.returncode != 0
    assert "canceling statement due to lock timeout" in refused.stderr
    project.runs("upgrade", "heads", SCOPED="1")
    with connected(project.dsn) as connection:
        migrate.check(connection, SCOPED)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
async def test_the_comparison_asks_by_every_driver(database, driver):
    shape = Shape("shop :events")
    url = database.replace("postgresql://", f"postgresql+{driver}://", 1)
    engine = create_async_engine(url) if driver == "asyncpg" else create_engine(url)

    async def status() -> migrate.Status:
        if isinstance(engine, AsyncEngine):
            async with engine.connect() as connection:
                return await connection.run_sync(lambda sync: migrate.status_by(asking(sync), shape))
        with engine.connect() as connection:
            return migrate.status_by(asking(connection), shape)

    assert (await status()).pending == migrations()
    migrate_up(database, shape)
    assert (await status()).is_current
    disposing = engine.dispose()
    if disposing is not None:
        await disposing


@pytest.mark.thorough
@pytest.mark.parametrize("absent", ["alembic", "sqlalchemy"])
def test_without_the_extra_the_error_names_it(absent):
    program = f"import sys; sys.modules[{absent!r}] = None; import aftercommit.contrib.alembic"

    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert "pip install -e '.[alembic]'" in finished.stderr
