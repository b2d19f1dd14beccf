"""Migrations: once each, whole or not at all, by anybody at any time, with errors that say what to do."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from aftercommit.errors import (
    DatabaseError,
    DatabaseRefused,
    DatabaseUnavailable,
    DeclarationError,
    SchemaDrift,
    SchemaNotMigrated,
    SchemaTooNew,
)
from aftercommit.postgres.shape import ENGINE_TABLES, PARTITION_NAME, DeclaredView, Shape
from aftercommit.schema import migrate
from aftercommit.schema.declared import OUTBOX_COLUMNS
from tests.support.engine import Engine, connected, migrate_up, value, wait_until, waits_for_a_lock
from tests.support.old_schema import migrate_up_to
from tools.schema import dump

SCOPED = Shape("scoped", {"tenant_id": str, "shard": int, "project_id": UUID}, ("tenant_id", "aggregate_id"))
RICH = Shape(
    'it\'s "ours" $aftercommit$ {schema}',
    {"given": str, "known": int},
    views=(
        DeclaredView("sys_events", {"id": "id", "state": "status"}, {"pending": "Pending"}),
        DeclaredView(
            "inbound events: written",
            {"event_id": "event_id_text", "event_type": "event_type", "body": "payload", "state": "status"},
            {"pending": ":new", "published": "it's gone"},
            envelope=True,
            writable=True,
        ),
    ),
)

MIGRATE_AND_WAIT = """
    import sys
    import psycopg
    from aftercommit.schema import migrate
    from aftercommit.postgres.shape import Shape
    with psycopg.connect(sys.argv[1], application_name="victim") as connection:
        migrate.up(connection, Shape(), lock_timeout=60, max_wait_seconds=60)
"""


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with connected(database) as connection:
        yield connection


def relations(connection: psycopg.Connection[Any], schema: str, kinds: str) -> set[str]:
    query = "select relname from pg_class where relnamespace = to_regnamespace(%s) and relkind = any(%s)"
    name = sql.Identifier(schema).as_string()
    return {row[0] for row in connection.execute(query, [name, list(kinds)])}


def test_an_empty_database_gets_all_tables_and_a_second_run_does_nothing(connection):
    done = migrate.up(connection, Shape())

    assert done[0] == "applied 0001_engine"
    tables = {name for name in relations(connection, "aftercommit", "rp") if not PARTITION_NAME.fullmatch(name)}
    assert tables == ENGINE_TABLES
    assert relations(connection, "aftercommit", "v") == {"event_outbox", "event_log"}
    assert migrate.up(connection, Shape()) == []
    assert migrate.status(connection, Shape()).is_current
    migrate.check(connection, Shape())


def test_the_columns_of_a_plain_outbox_are_the_known_ones(connection):
    migrate.up(connection, Shape())

    query = "select attname from pg_attribute where attrelid = 'aftercommit.outbox'::regclass and attnum > 0"
    assert {row[0] for row in connection.execute(query)} == OUTBOX_COLUMNS


@pytest.mark.parametrize(
    "schema",
    [
        'quo"ted',
        "it's",
        "with space",
        "señal-事件",
        "x" * 63,
        "é" * 31,
        "a.b",
        "$aftercommit$",
        "{braces}",
        "Ä:b;--",
    ],
)
@pytest.mark.thorough
def test_a_schema_may_be_called_anything(connection, schema):
    shape = Shape(schema, {"tenant_id": str})

    migrate.up(connection, shape)

    migrate.check(connection, shape)
    assert migrate.up(connection, shape) == []
    engine = Engine(connection, shape)
    assert engine.deliver(engine.publish(tenant_id="acme")) == 1


@pytest.mark.parametrize(
    "schema",
    [
        *("", "100%", "x" * 64, "é" * 32, "nul\x00", "pg_own", "information_schema", None, b"bytes"),
        *("x\ndrop table public.victim; --", "x\r", "tab\t", "\x1b[2J", "line\u2028", "half\udc80"),
    ],
)
def test_a_schema_name_that_postgresql_would_not_keep_is_refused(schema):
    with pytest.raises(DeclarationError, match=r"schema .*(not valid|belongs to PostgreSQL)"):
        Shape(schema)


@pytest.mark.parametrize("name", ["Tenant", "1st", "", "x" * 54, "payload", "xmin", "outside_transaction", "ten-ant"])
def test_a_scope_name_that_cannot_be_a_column_is_refused(name):
    with pytest.raises(DeclarationError, match="scope name"):
        Shape(scope={name: str})


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (DeclaredView("outbox", {"id": "id"}), "has the name of a table"),
        (DeclaredView("log_000001", {"id": "id"}), "has the name of a table"),
        (DeclaredView("empty", {}), "has no columns"),
        (DeclaredView("wrong", {"id": "identifier"}), "not a column of an event"),
        (DeclaredView("wrong", {"id": "id"}, {"done": "Done"}), "unknown states"),
        (DeclaredView("wrong", {"id": "id"}, {"failed": "100%"}), "without NUL and %"),
        (DeclaredView("wrong", {"id": "id", "type": "event_type"}, writable=True), "cannot be writable"),
    ],
)
def test_a_view_that_could_not_work_is_refused(view, message):
    with pytest.raises(DeclarationError, match=message):
        Shape(views=(view,))


def test_two_views_of_one_name_are_refused():
    view = DeclaredView("twice", {"id": "id"})

    with pytest.raises(DeclarationError, match="declared twice"):
        Shape(views=(view, view))


def test_several_outboxes_share_a_database(connection):
    for shape in (Shape(), SCOPED, RICH):
        migrate.up(connection, shape)
    first, second = Engine(connection), Engine(connection, SCOPED)

    first.deliver(first.publish())
    second.publish(tenant_id="acme", shard=1, project_id=UUID(int=1))

    assert value(connection, "select position from aftercommit.head") == 1
    assert value(connection, "select position from scoped.head") == 0
    for shape in (Shape(), SCOPED, RICH):
        migrate.check(connection, shape)


@pytest.mark.thorough
def test_programs_that_start_at_once_migrate_once(database):
    barrier = threading.Barrier(8)

    def start(_: int) -> list[str]:
        with connected(database, autocommit=False) as connection:
            barrier.wait()
            return migrate.up(connection, SCOPED)

    with ThreadPoolExecutor(8) as programs:
        done = [line for lines in programs.map(start, range(8)) for line in lines]

    assert done.count("applied 0001_engine") == 1
    assert len(done) == len(set(done))
    with connected(database) as connection:
        migrate.check(connection, SCOPED)
        assert value(connection, "select count(*) from scoped.lane") == 64


@pytest.mark.thorough
def test_processes_that_start_at_once_migrate_once(database):
    program = textwrap.dedent(MIGRATE_AND_WAIT)
    started = [subprocess.Popen([sys.executable, "-c", program, database]) for _ in range(4)]

    assert [process.wait(timeout=100) for process in started] == [0] * 4
    with connected(database) as connection:
        assert value(connection, "select count(*) from aftercommit.migration") == len(migrate.migrations())


def hold_up_the_migration(holder: psycopg.Connection[Any]) -> None:
    """Somebody is just creating a table that the migration creates too, so the migration waits midway."""
    holder.execute("create schema aftercommit")
    holder.commit()
    holder.execute("create table aftercommit.consumer (name text)")


def test_a_migration_whose_backend_is_terminated_leaves_nothing_and_completes_later(database):
    with connected(database, autocommit=False) as holder:
        hold_up_the_migration(holder)

        def run() -> list[str]:
            with connected(database, application_name="victim") as victim:
                return migrate.up(victim, Shape(), lock_timeout=60, max_wait_seconds=60)

        with ThreadPoolExecutor(1) as program:
            migrating = program.submit(run)
            wait_until(lambda: waits_for_a_lock(database, "victim"))
            with connected(database) as operator:
                mine = "datname = current_database() and application_name = 'victim'"
                operator.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {mine}")
            with pytest.raises(DatabaseUnavailable, match="Run it again; it continues"):
                migrating.result(timeout=60)

    with connected(database) as connection:
        assert relations(connection, "aftercommit", "rpv") == set()
        assert "applied 0001_engine" in migrate.up(connection, Shape())


@pytest.mark.thorough
def test_a_migrating_process_that_is_killed_leaves_nothing_and_completes_later(database):
    with connected(database, autocommit=False) as holder:
        hold_up_the_migration(holder)
        command = [sys.executable, "-c", textwrap.dedent(MIGRATE_AND_WAIT), database]
        process = subprocess.Popen(command)
        wait_until(lambda: waits_for_a_lock(database, "victim"))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    migrate_up(database)
    with connected(database) as connection:
        migrate.check(connection, Shape())
        assert value(connection, "select count(*) from aftercommit.head") == 1


def test_a_changed_migration_is_drift(connection):
    migrate.up(connection, Shape())
    connection.execute("update aftercommit.migration set checksum = 'another'")

    for act in (migrate.up, migrate.status, migrate.check):
        with pytest.raises(SchemaDrift, match=r"0001_engine was applied with checksum another"):
            act(connection, Shape())
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="another checksum"):
        connection.execute("".join(migrate.script(Shape())).encode())


def test_a_schema_migrated_by_newer_code_is_refused(connection):
    migrate.up(connection, Shape())
    connection.execute("insert into aftercommit.migration (version, name, checksum) values (9999, 'future', 'x')")

    for act in (migrate.up, migrate.status, migrate.check):
        with pytest.raises(SchemaTooNew, match=r"9999_future.*deploy the newer aftercommit"):
            act(connection, Shape())
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="newer aftercommit"):
        connection.execute("".join(migrate.script(Shape())).encode())


def test_status_and_check_say_what_is_missing_and_change_nothing(connection):
    found = migrate.status(connection, Shape())

    assert found.pending == migrate.migrations()
    assert not found.is_current
    with pytest.raises(SchemaNotMigrated, match="lacks migration 0001_engine: run `aftercommit migrate up"):
        migrate.check(connection, Shape())
    assert relations(connection, "aftercommit", "rpv") == set()

    migrate.up(connection, Shape())
    connection.execute("drop view aftercommit.event_log")
    assert migrate.status(connection, Shape()).declaration == ("view event_log is missing or differs",)
    with pytest.raises(SchemaDrift, match="view event_log is missing"):
        migrate.check(connection, Shape())
    assert migrate.up(connection, Shape()) == ["created view event_log"]


def test_a_connection_that_is_not_in_autocommit_mode_is_left_without_a_transaction(database):
    with connected(database, autocommit=False, row_factory=dict_row) as connection:
        migrate.up(connection, SCOPED)
        migrate.check(connection, SCOPED)

        assert connection.info.transaction_status.name == "IDLE"
    with connected(database) as connection:
        migrate.check(connection, SCOPED)


@pytest.mark.parametrize("act", [migrate.up, migrate.status, migrate.check])
def test_a_connection_inside_a_transaction_is_refused(database, act):
    with connected(database, autocommit=False) as connection:
        connection.execute("select 1")

        with pytest.raises(DatabaseError, match=r"inside a transaction.*commit or roll back first"):
            act(connection, Shape())


def test_a_closed_connection_is_refused(database):
    with connected(database) as connection:
        connection.close()

        with pytest.raises(DatabaseUnavailable, match="closed: open a new one"):
            migrate.check(connection, Shape())


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [Shape(), SCOPED, RICH], ids=["plain", "scoped", "rich"])
def test_the_script_makes_what_up_makes(postgres_server, database, shape):
    migrate_up(database, shape)
    by_script = postgres_server.clone("empty")
    with connected(by_script) as connection:
        connection.execute("".join(migrate.script(shape)).encode())
        migrate.check(connection, shape)
        assert migrate.up(connection, shape) == []

    assert dump(by_script, shape.schema) == dump(database, shape.schema)


def test_the_script_can_run_again_and_from_a_version_on(database):
    with connected(database) as connection:
        first = "".join(migrate.script(SCOPED))
        connection.execute(first.encode())
        engine = Engine(connection, SCOPED)
        engine.deliver(engine.publish(tenant_id="acme", shard=1, project_id=UUID(int=1)))
        before = dump(database, "scoped")

        newest = migrate.migrations()[-1].version
        rest = "".join(migrate.script(SCOPED, after=newest))
        connection.execute(first.encode())
        connection.execute(rest.encode())

        assert "create table" in first
        assert 'scoped".outbox (\n' not in rest
        assert dump(database, "scoped") == before
        assert value(connection, "select count(*) from scoped.log") == 1


def test_a_script_that_goes_on_from_a_version_refuses_a_schema_without_it(connection):
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="go on from migration 1"):
        connection.execute("".join(migrate.script(Shape(), after=1)).encode())

    connection.rollback()
    assert relations(connection, "aftercommit", "rpv") == set()


@pytest.mark.parametrize("shape", [Shape(), SCOPED, RICH], ids=["plain", "scoped", "rich"])
def test_no_statement_holds_a_placeholder_of_any_driver(shape):
    assert [statement for statement in migrate.statements(shape) if "%" in statement] == []


@pytest.mark.parametrize("table", ["outbox", "migration", "event_log"])
def test_a_foreign_table_in_the_way_is_named_and_left_alone(connection, table):
    connection.execute(f"create schema aftercommit; create table aftercommit.{table} (mine int)")

    with pytest.raises(DatabaseError, match=f"{table}.*choose another schema"):
        migrate.up(connection, Shape())

    assert value(connection, f"select count(mine) from aftercommit.{table}") == 0


@pytest.mark.parametrize(("version", "row"), [("text", "'a'"), ("integer", "20240101"), ("bigint", "1")])
def test_a_migration_table_of_somebody_else_is_named_and_left_alone(connection, version, row):
    connection.execute("create schema aftercommit")
    connection.execute(f"create table aftercommit.migration (version {version}, name text, checksum text)")
    connection.execute(f"insert into aftercommit.migration values ({row}, 'first', 'abc')")

    with pytest.raises(DatabaseError, match=r"'migration' that does not belong to aftercommit: choose another schema"):
        migrate.up(connection, Shape())


@pytest.mark.parametrize(
    "other", ["table aftercommit.dead_letter_count (a int)", "index dead_letter_count on mine (a)"]
)
def test_a_foreign_relation_with_the_name_of_an_index_is_no_index_of_ours(connection, other):
    migrate_up_to(connection, Shape(), 1)
    connection.execute("create table aftercommit.mine (a int); set search_path to aftercommit")
    connection.execute(f"create {other}")

    with pytest.raises(SchemaDrift, match=r"dead_letter_count exists, but is not an index of dead_letter_events"):
        migrate.up(connection, Shape())

    connection.execute("alter table dead_letter_count rename to of_mine")
    migrate.up(connection, Shape())
    migrate.check(connection, Shape())
    assert value(connection, "select count(*) from pg_class where relname = 'of_mine'") == 1


def test_a_session_that_may_only_read_is_told_what_to_do(connection):
    connection.execute("set default_transaction_read_only = on")
    with pytest.raises(DatabaseRefused, match=r"this session is read-only.*Connect to the primary"):
        migrate.up(connection, Shape())


def test_a_view_that_somebody_else_made_is_not_replaced(connection):
    connection.execute("create schema aftercommit; create view aftercommit.event_outbox as select 1 as mine")

    with pytest.raises(DatabaseError, match=r"event_outbox.*already exists"):
        migrate.up(connection, Shape())

    assert value(connection, "select mine from aftercommit.event_outbox") == 1


def test_a_view_that_something_depends_on_is_not_taken_away(connection):
    migrate.up(connection, Shape())
    connection.execute("create view report as select count(*) from aftercommit.event_log")

    with pytest.raises(DatabaseError, match=r"view report depends on.*Drop that"):
        migrate.up(connection, Shape(scope={"tenant_id": str}))


@pytest.mark.thorough
def test_a_migration_asks_briefly_for_locks_and_names_who_is_in_the_way(database):
    migrate_up(database)
    with (
        connected(database, autocommit=False, application_name="report") as reader,
        connected(database) as writer,
    ):
        reader.execute("select count(*) from aftercommit.outbox")

        with ThreadPoolExecutor(1) as program, connected(database, application_name="migrator") as connection:
            shape = Shape(scope={"tenant_id": str})
            migrating = program.submit(migrate.up, connection, shape, lock_timeout=0.2, max_wait_seconds=1)
            wait_until(lambda: migrating.done() or waits_for_a_lock(database, "migrator"))
            # The writer queues up behind the migration for a moment, and then goes before it.
            writer.execute("delete from aftercommit.outbox")
            with pytest.raises(
                DatabaseError, match=rf"process {reader.info.backend_pid} .*'report', idle in tr.*pg_term"
            ):
                migrating.result(timeout=60)


def test_a_migration_goes_on_when_the_reader_in_its_way_has_ended(database):
    migrate_up(database)
    shape = Shape(scope={"tenant_id": str})
    with connected(database, autocommit=False) as reader, ThreadPoolExecutor(1) as program:
        reader.execute("select count(*) from aftercommit.outbox")
        with connected(database, application_name="migrator") as connection:
            migrating = program.submit(migrate.up, connection, shape, lock_timeout=0.2, max_wait_seconds=60)
            wait_until(lambda: waits_for_a_lock(database, "migrator"))
            reader.rollback()

            assert "created scope column tenant_id" in migrating.result(timeout=60)


def test_an_up_that_has_nothing_to_do_waits_for_nobody(database):
    migrate_up(database, SCOPED)
    with connected(database, autocommit=False) as writer, connected(database) as connection:
        writer.execute("lock table scoped.outbox, scoped.log, scoped.event_log in access exclusive mode")

        assert migrate.up(connection, SCOPED, max_wait_seconds=5) == []


@pytest.mark.thorough
def test_a_migration_that_somebody_else_runs_is_waited_for_and_named_in_the_end(database):
    with connected(database, autocommit=False, application_name="other migration") as holder:
        hold_up_the_migration(holder)
        with ThreadPoolExecutor(1) as program, connected(database, application_name="victim") as first:
            migrating = program.submit(migrate.up, first, Shape(), lock_timeout=60, max_wait_seconds=60)
            wait_until(lambda: waits_for_a_lock(database, "victim"))

            with connected(database) as second, pytest.raises(DatabaseError, match=r"process .*'victim'"):
                migrate.up(second, Shape(), max_wait_seconds=0.3)

            holder.rollback()
            assert "applied 0001_engine" in migrating.result(timeout=60)


def test_a_declared_scope_is_a_typed_column_that_refuses_null(connection):
    done = migrate.up(connection, SCOPED)

    assert [line for line in done if "scope column" in line] == [
        "created scope column tenant_id",
        "created scope column shard",
        "created scope column project_id",
    ]
    engine = Engine(connection, SCOPED)
    with pytest.raises(psycopg.errors.NotNullViolation, match="tenant_id"):
        engine.publish(shard=1, project_id=UUID(int=1))
    engine.deliver(engine.publish(tenant_id="acme", shard=1, project_id=UUID(int=1)))
    row = connection.execute("select tenant_id, shard, project_id from scoped.event_log").fetchone()
    assert row == ("acme", 1, UUID(int=1))


def test_a_scope_can_be_declared_later_while_there_are_no_events(connection):
    migrate.up(connection, Shape())

    migrate.up(connection, Shape(scope={"tenant_id": str}))

    migrate.check(connection, Shape(scope={"tenant_id": str}))
    assert value(connection, "select count(tenant_id) from aftercommit.event_outbox") == 0


@pytest.mark.parametrize("kind", [str, int, UUID])
def test_a_scope_on_existing_events_needs_a_decision_and_the_message_is_the_way(connection, kind):
    migrate.up(connection, Shape())
    engine = Engine(connection)
    engine.deliver(engine.publish())
    engine.publish()
    shape = Shape(scope={"owner_id": kind})

    with pytest.raises(SchemaDrift, match=r"cannot be added: aftercommit.outbox has events without a value") as refused:
        migrate.up(connection, shape)

    remedy = str(refused.value).partition("run:\n")[2].partition("\nThen run")[0]
    connection.execute(remedy.encode())
    migrate.up(connection, shape)
    migrate.check(connection, shape)
    assert value(connection, "select count(owner_id) from aftercommit.event_outbox") == 2
    with pytest.raises(psycopg.errors.NotNullViolation, match="owner_id"):
        engine.publish()


def test_an_event_that_commits_while_its_scope_is_being_added_is_told_of_like_the_others(database):
    migrate_up(database)
    with (
        connected(database, autocommit=False) as writer,
        connected(database, application_name="migrator") as connection,
        ThreadPoolExecutor(1) as program,
    ):
        Engine(writer).publish()
        shape = Shape(scope={"tenant_id": str})
        migrating = program.submit(migrate.up, connection, shape, lock_timeout=60, max_wait_seconds=60)
        wait_until(lambda: waits_for_a_lock(database, "migrator"))
        writer.commit()

        with pytest.raises(SchemaDrift, match=r"aftercommit.outbox has events without a value for it"):
            migrating.result(timeout=60)


def test_a_scope_of_another_type_is_drift(connection):
    migrate.up(connection, Shape(scope={"tenant_id": int}))

    for act in (migrate.up, migrate.check):
        with pytest.raises(SchemaDrift, match=r"'tenant_id' of aftercommit.outbox is bigint.*means varchar\(255\)"):
            act(connection, Shape(scope={"tenant_id": str}))


def test_a_scope_that_may_be_null_is_drift(connection):
    migrate.up(connection, SCOPED)
    connection.execute("alter table scoped.log alter column shard drop not null")

    with pytest.raises(SchemaDrift, match=r'allows null: run (alter table "scoped"."log" .* set not null)') as refused:
        migrate.check(connection, SCOPED)

    connection.execute(str(refused.value).partition("run ")[2].encode())
    migrate.check(connection, SCOPED)


def test_an_undeclared_column_is_drift(connection):
    migrate.up(connection, Shape(scope={"tenant_id": str}))

    for act in (migrate.up, migrate.check):
        with pytest.raises(
            SchemaDrift, match=r"has the column 'tenant_id' \(character varying\(255\)\), which is not decl"
        ):
            act(connection, Shape())
