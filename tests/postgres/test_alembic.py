"""The outbox in a user's Alembic project: real revisions, every driver, offline mode, and autogenerate."""

import io
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from aftercommit.contrib.alembic import include_object
from aftercommit.errors import DatabaseError
from aftercommit.postgres.shape import DeclaredView, Shape
from aftercommit.schema import migrate
from tests.support.engine import Engine, connected, value
from tools.schema import dump

pytestmark = pytest.mark.newest

SYNC_ENVIRONMENT = """
    from alembic import context
    from sqlalchemy import create_engine, pool

    url = context.config.get_main_option("sqlalchemy.url")
    if context.is_offline_mode():
        context.configure(url=url, literal_binds=True)
        with context.begin_transaction():
            context.run_migrations()
    else:
        with create_engine(url, poolclass=pool.NullPool).connect() as connection:
            context.configure(connection=connection)
            with context.begin_transaction():
                context.run_migrations()
"""
ASYNC_ENVIRONMENT = """
    import asyncio
    from alembic import context
    from sqlalchemy.ext.asyncio import create_async_engine

    def run(connection):
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()

    async def main():
        engine = create_async_engine(context.config.get_main_option("sqlalchemy.url"))
        async with engine.connect() as connection:
            await connection.run_sync(run)
        await engine.dispose()

    asyncio.run(main())
"""
REVISION = """
    from alembic import op
    from aftercommit.contrib import alembic as outbox_tables
    from aftercommit.postgres.shape import DeclaredView, Shape

    revision = {revision!r}
    down_revision = {down_revision!r}
    outbox = {shape!r}

    def upgrade():
        outbox_tables.upgrade(op, outbox)

    def downgrade():
        outbox_tables.downgrade(op, outbox{allowed})
"""

FIRST = Shape("shop :events", views=(DeclaredView("sys: events", {"id": "id", "state": "status"}, {"failed": ":-("}),))
SECOND = Shape(FIRST.schema, {"tenant_id": str}, ("aggregate_id",), FIRST.views)
DRIVERS = ["psycopg", "psycopg2", "asyncpg"]


class Project:
    """A user's Alembic project with two revisions: the outbox, and later its scope."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.dsn = dsn
        (folder / "versions").mkdir()
        self.write_revision("one", None, FIRST, ", drop_all_events=True")
        self.write_revision("two", "one", SECOND, "")

    def write_revision(self, revision: str, down_revision: str | None, shape: Shape, allowed: str) -> None:
        shown = repr(shape).replace("<class 'str'>", "str")
        text = REVISION.replace("{shape!r}", shown).replace("{allowed}", allowed)
        text = text.replace("{revision!r}", repr(revision)).replace("{down_revision!r}", repr(down_revision))
        (self.folder / "versions" / f"{revision}.py").write_text(textwrap.dedent(text))

    def config(self, driver: str = "psycopg", **options: Any) -> Config:
        environment = ASYNC_ENVIRONMENT if driver == "asyncpg" else SYNC_ENVIRONMENT
        (self.folder / "env.py").write_text(textwrap.dedent(environment))
        config = Config(**options)
        config.set_main_option("script_location", str(self.folder).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.set_main_option("sqlalchemy.url", self.url(driver).replace("%", "%%"))
        return config

    def url(self, driver: str = "psycopg") -> str:
        return self.dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


@pytest.fixture
def project(tmp_path: Path, database: str) -> Iterator[Project]:
    yield Project(tmp_path, database)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.thorough
def test_a_revision_makes_what_up_makes_with_every_driver(project, postgres_server, driver):
    command.upgrade(project.config(driver), "one")
    by_up = postgres_server.clone("empty")
    with connected(project.dsn) as connection, connected(by_up) as other:
        migrate.check(connection, FIRST)
        assert migrate.up(connection, FIRST) == []
        migrate.up(other, FIRST)
    assert dump(project.dsn, FIRST.schema) == dump(by_up, FIRST.schema)

    command.upgrade(project.config(driver), "head")
    with connected(project.dsn) as connection:
        migrate.check(connection, SECOND)


def test_a_revision_on_tables_that_up_has_made_changes_nothing(project):
    with connected(project.dsn) as connection:
        migrate.up(connection, SECOND)
        Engine(connection, SECOND).publish(tenant_id="acme")
    before = dump(project.dsn, SECOND.schema)

    command.stamp(project.config(), "one")
    command.upgrade(project.config(), "head")

    assert dump(project.dsn, SECOND.schema) == before


def test_a_revision_that_fails_takes_the_tables_back_with_it(project):
    broken = project.folder / "versions" / "one.py"
    broken.write_text(
        broken.read_text().replace("outbox)\n\ndef down", "outbox)\n    raise RuntimeError('no')\n\ndef down")
    )

    with pytest.raises(RuntimeError, match="no"):
        command.upgrade(project.config(), "one")

    with connected(project.dsn) as connection:
        assert value(connection, "select count(*) from pg_namespace where nspname = %s", [FIRST.schema]) == 0


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_offline_mode_prints_the_same_tables(project, postgres_server, driver):
    printed = io.StringIO()
    command.upgrade(project.config(driver, output_buffer=printed), "head", sql=True)

    with connected(project.dsn) as connection:
        connection.execute(printed.getvalue().encode())
        migrate.check(connection, SECOND)
        assert migrate.up(connection, SECOND) == []
        assert value(connection, "select version_num from alembic_version") == "two"


def test_a_downgrade_drops_events_only_where_it_is_allowed(project):
    command.upgrade(project.config(), "head")

    with pytest.raises(
        DatabaseError, match=r"would drop schema 'shop :events' with all its events.*drop_all_events=True"
    ):
        command.downgrade(project.config(), "one")
    with connected(project.dsn) as connection:
        migrate.check(connection, SECOND)
        connection.execute("update alembic_version set version_num = 'one'")

    command.downgrade(project.config(), "base")
    with connected(project.dsn) as connection:
        assert value(connection, "select count(*) from pg_namespace where nspname = %s", [FIRST.schema]) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("schema", ["events", "public"])
def test_autogenerate_leaves_the_outbox_alone(database, schema):
    shape = Shape(schema, {"tenant_id": str}, ("tenant_id",))
    metadata = sqlalchemy.MetaData()
    sqlalchemy.Table("orders", metadata, sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True))
    with connected(database) as connection:
        migrate.up(connection, shape)
        connection.execute("create table forgotten (id int primary key)")

    def differences(**options: Any) -> list[Any]:
        url = database.replace("postgresql://", "postgresql+psycopg://", 1)
        engine = sqlalchemy.create_engine(url)
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"include_schemas": True, **options})
            found = compare_metadata(context, metadata)
        engine.dispose()
        return [(kind, thing.name) for kind, thing in found if kind.endswith("table")]

    expected = [("add_table", "orders"), ("remove_table", "forgotten")]
    assert sorted(differences(include_object=include_object(shape))) == expected
    assert len(differences()) > len(expected)

    def without_forgotten(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
        return name != "forgotten"

    assert differences(include_object=include_object(shape, without_forgotten)) == expected[:1]


def test_a_failed_statement_names_postgresqls_reason(project):
    with connected(project.dsn) as connection:
        migrate.up(connection, FIRST)
        Engine(connection, FIRST).publish()
    command.stamp(project.config(), "one")

    with pytest.raises(sqlalchemy.exc.IntegrityError, match=r"tenant_id.*contains null values") as refused:
        command.upgrade(project.config(), "head")

    assert isinstance(refused.value.orig, psycopg.errors.NotNullViolation)
