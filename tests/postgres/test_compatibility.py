"""Code and tables of different versions: who may work with whom, and who says so."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from aftercommit.errors import SchemaDrift, SchemaNotMigrated, SchemaTooNew
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import Shape
from aftercommit.schema import migrate
from aftercommit.schema.numbered import SqlMigration, migrations
from aftercommit.schema.requirement import require_schema
from tests.support.engine import Engine, connected, value
from tests.support.old_schema import know, migrate_up_to

NEWEST = migrations()[-1].version
ADDITIVE = SqlMigration(
    NEWEST + 1,
    "next",
    f"""-- A column that fills itself, a table, and an index.
-- needs code: {NEWEST:04d}
alter table {{schema}}.outbox add column origin text not null default 'unknown';
create table {{schema}}.novelty (id int primary key);

-- concurrently: outbox_by_origin on outbox
create index {{concurrently}} {{index}} on {{only}} {{schema}}.{{table}} (origin);
""",
)
BREAKING = SqlMigration(NEWEST + 1, "break", "alter table {schema}.outbox rename column payload to body;")


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with connected(database) as connection:
        yield connection


@pytest.fixture
def newer(connection: psycopg.Connection[Any]) -> SqlMigration:
    """A schema that code with one more migration has made; after that this process is the older code again."""
    with pytest.MonkeyPatch.context() as patch:
        know(patch, *migrations(), ADDITIVE)
        migrate.up(connection, Shape())
    return ADDITIVE


async def starts(dsn: str, shape: Shape | None = None) -> None:
    """What a relay or worker asks before it works."""
    async with await Database(dsn).connect() as connection:
        await require_schema(connection, shape or Shape())


def test_a_file_says_which_code_can_work_with_it_and_otherwise_its_own():
    first, *_ = migrations()

    assert first.needs_code == first.version
    assert ADDITIVE.needs_code == NEWEST
    assert BREAKING.needs_code == NEWEST + 1
    assert [index.name for index in ADDITIVE.indexes] == ["outbox_by_origin"]
    assert "outbox_by_origin" not in ADDITIVE.statement(Shape())


def test_every_migration_lets_the_code_before_it_go_on():
    """A release that breaks this needs two steps instead (docs/decisions/0008-upgrades.md)."""
    assert [str(migration) for migration in migrations()[1:] if migration.needs_code >= migration.version] == []


async def test_code_that_is_one_migration_behind_starts_and_works(database, connection, newer):
    await starts(database)

    engine = Engine(connection)
    assert engine.deliver(engine.publish()) == 1
    migrate.check(connection, Shape())
    found = migrate.status(connection, Shape())
    assert found.is_current
    assert found.newer == (f"{NEWEST + 1:04d}_next",)


async def test_an_up_of_the_code_before_changes_nothing(database, connection, newer):
    connection.execute("comment on view aftercommit.event_log is 'aftercommit:made by newer code'")

    assert migrate.up(connection, Shape()) == []

    query = "select obj_description('aftercommit.event_log'::regclass)"
    assert value(connection, query) == "aftercommit:made by newer code"


async def test_code_that_is_too_old_is_refused_with_the_remedy(database, connection):
    migrate.up(connection, Shape())
    connection.execute(BREAKING.statement(Shape()).encode())

    for act in (migrate.up, migrate.status, migrate.check):
        with pytest.raises(SchemaTooNew, match=rf"{NEWEST + 1:04d}_break, which needs code .*deploy the newer"):
            act(connection, Shape())
    with pytest.raises(SchemaTooNew, match=r"this code knows only up to \d+: deploy the newer aftercommit"):
        await starts(database)


async def test_a_later_additive_migration_does_not_let_in_code_that_an_earlier_one_shuts_out(database, connection):
    migrate.up(connection, Shape())
    connection.execute(
        "insert into aftercommit.migration (version, name, checksum, needs_code)"
        f" values ({NEWEST + 1}, 'break', 'x', {NEWEST + 1}), ({NEWEST + 2}, 'next', 'x', {NEWEST})"
    )

    with pytest.raises(SchemaTooNew):
        await starts(database)
    with pytest.raises(SchemaTooNew):
        migrate.check(connection, Shape())


def test_the_code_before_cannot_change_the_declaration_any_more(connection, newer):
    scoped = Shape(scope={"tenant_id": str})

    for act in (migrate.up, migrate.check):
        with pytest.raises(SchemaTooNew, match=r"column tenant_id is missing.*Migrate with the newer aftercommit"):
            act(connection, scoped)


async def test_a_scope_that_a_program_does_not_declare_is_still_drift_on_newer_tables(database, connection, newer):
    connection.execute("alter table aftercommit.outbox add column tenant_id varchar(255) not null")

    with pytest.raises(SchemaDrift, match="tenant_id"):
        await starts(database)
    with pytest.raises(SchemaTooNew, match="tenant_id"):
        migrate.check(connection, Shape())


async def test_code_that_is_ahead_of_the_tables_is_refused_until_they_are_migrated(database, connection):
    migrate_up_to(connection, Shape(), NEWEST - 1)

    with pytest.raises(SchemaNotMigrated, match=rf"is at migration {NEWEST - 1}, this code needs {NEWEST}"):
        await starts(database)
    with pytest.raises(SchemaNotMigrated):
        migrate.check(connection, Shape())

    migrate.up(connection, Shape())
    await starts(database)


async def test_tables_of_the_first_release_which_wrote_no_compatibility_down_are_migrated(database, connection):
    migrate_up_to(connection, Shape(), 1)
    connection.execute("alter table aftercommit.migration drop column needs_code")
    with pytest.raises(SchemaNotMigrated):
        await starts(database)

    assert f"applied {migrations()[1]}" in migrate.up(connection, Shape())

    rows = connection.execute("select version, needs_code from aftercommit.migration order by version").fetchall()
    assert rows[:2] == [(1, None), (2, 1)]
    await starts(database)


def test_a_script_of_the_code_before_is_refused_on_newer_tables(connection, newer):
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="newer aftercommit"):
        connection.execute("".join(migrate.script(Shape())).encode())
