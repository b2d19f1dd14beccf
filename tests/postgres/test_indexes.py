"""Indexes on large tables: built without blocking writers, by any number of programs, killed at any moment."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql

from aftercommit.errors import DatabaseUnavailable
from aftercommit.postgres.blocks import LOCK_CLASS
from aftercommit.postgres.shape import LogFacet, Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema import declared, indexes, migrate, partitions
from tests.support.engine import Engine, connected, value, wait_until, waits_for_a_lock

PLAIN = Shape()
INDEXED = Shape(indexed=("aggregate_id",))
VALID = "select indisvalid from pg_index where indexrelid = to_regclass('aftercommit.outbox_by_aggregate_id')"


@pytest.fixture
def connection(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    """On an outbox with events, where every table with a row counts as large."""
    with connected(database) as connection:
        migrate.up(connection, PLAIN)
        engine = Engine(connection)
        engine.deliver(engine.publish())
        engine.publish()
        monkeypatch.setattr(indexes, "SMALL_BYTES", 0)
        yield connection


def up(dsn: str, shape: Shape, application_name: str = "builder") -> list[str]:
    with connected(dsn, application_name=application_name, autocommit=False) as connection:
        return migrate.up(connection, shape, lock_timeout=1, max_wait_seconds=60)


def end_session(dsn: str, application_name: str) -> None:
    with connected(dsn) as operator:
        operator.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
            "where datname = current_database() and application_name = %s",
            [application_name],
        )


def sees_it_finishing(dsn: str, application_name: str) -> bool:
    """Whether a session of this name has looked at an index, and has gone back to wait or stands at it."""
    query = """
        select from pg_stat_activity where datname = current_database() and application_name = %s
        and (wait_event_type = 'Lock' or state = 'idle' and query ilike 'rollback%%')
    """
    with connected(dsn) as connection:
        return connection.execute(query, [application_name]).fetchone() is not None


def test_a_large_table_gets_its_index_while_writers_go_on(database, connection):
    with connected(database, autocommit=False) as early, ThreadPoolExecutor(1) as program:
        early.execute("delete from aftercommit.outbox where false")
        building = program.submit(up, database, INDEXED)
        wait_until(lambda: waits_for_a_lock(database, "builder"))

        # The build waits for the early writer; later ones wait for nobody.
        connection.execute("set lock_timeout = '1ms'")
        Engine(connection).publish()
        early.commit()

        assert building.result(timeout=60) == ["created index outbox_by_aggregate_id without blocking writers"]
    assert value(connection, VALID) is True
    migrate.check(connection, INDEXED)
    assert migrate.up(connection, INDEXED) == []


def test_a_small_table_gets_its_index_in_the_transaction_of_the_others(connection, monkeypatch):
    monkeypatch.setattr(indexes, "SMALL_BYTES", 1 << 20)

    assert migrate.up(connection, INDEXED) == ["created index outbox_by_aggregate_id"]


def interrupted(database: str) -> None:
    """A build that was killed while it waited for a writer."""
    with connected(database, autocommit=False) as early, ThreadPoolExecutor(1) as program:
        early.execute("delete from aftercommit.outbox where false")
        building = program.submit(up, database, INDEXED)
        wait_until(lambda: waits_for_a_lock(database, "builder"))
        end_session(database, "builder")
        with pytest.raises(DatabaseUnavailable, match="Run it again"):
            building.result(timeout=60)


def test_an_index_whose_build_was_killed_is_noticed_and_built_again(database, connection):
    interrupted(database)

    assert value(connection, VALID) is False
    assert migrate.status(connection, INDEXED).declaration == ("index outbox_by_aggregate_id is missing or differs",)
    up(database, INDEXED)

    assert value(connection, VALID) is True
    migrate.check(connection, INDEXED)


def test_a_script_also_clears_away_what_a_killed_build_has_left(database, connection, monkeypatch):
    interrupted(database)
    monkeypatch.setattr(indexes, "SMALL_BYTES", 1 << 20)

    connection.execute("".join(migrate.script(INDEXED)).encode())

    assert value(connection, VALID) is True


def test_a_build_that_somebody_else_has_under_way_is_waited_for_and_not_taken_for_a_dead_one(database, connection):
    with connected(database, autocommit=False) as early, ThreadPoolExecutor(2) as programs:
        early.execute("delete from aftercommit.outbox where false")
        first = programs.submit(up, database, INDEXED, "first")
        wait_until(lambda: waits_for_a_lock(database, "first"))
        assert value(connection, VALID) is False
        oid = value(connection, "select 'aftercommit.outbox_by_aggregate_id'::regclass::oid")
        second = programs.submit(up, database, INDEXED, "second")
        wait_until(lambda: waits_for_a_lock(database, "second"))
        early.commit()

        first.result(timeout=60)
        second.result(timeout=60)
    assert value(connection, VALID) is True
    assert value(connection, "select 'aftercommit.outbox_by_aggregate_id'::regclass::oid") == oid


def test_who_waits_for_a_builder_is_not_waited_for_by_it(database, connection):
    """A build waits for all who have looked at anything before it: it must not meet one that waits for it."""
    lock = Statements(INDEXED).render("take_migration_lock", lock_class=sql.Literal(LOCK_CLASS))
    given = {"schema": INDEXED.schema, "patience": "60s", "lock_timeout": "60s"}
    with (
        connected(database, autocommit=False) as early,
        connected(database, autocommit=False) as migrator,
        ThreadPoolExecutor(2) as programs,
    ):
        early.execute("delete from aftercommit.outbox where false")
        first = programs.submit(up, database, INDEXED, "first")
        wait_until(lambda: waits_for_a_lock(database, "first"))
        oid = value(connection, "select 'aftercommit.outbox_by_aggregate_id'::regclass::oid")
        second = programs.submit(up, database, INDEXED, "second")
        wait_until(lambda: waits_for_a_lock(database, "second"))
        # Somebody migrates something else, and the second program may have to queue for that as well.
        migrator.execute(lock.encode(), given)
        wait_until(lambda: waits_for_a_lock(database, "second"))
        early.commit()
        wait_until(lambda: first.done() or waits_for_a_lock(database, "first"))
        migrator.commit()

        first.result(timeout=60)
        second.result(timeout=60)
    assert value(connection, "select 'aftercommit.outbox_by_aggregate_id'::regclass::oid") == oid


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_an_index_whose_builder_is_about_to_commit_is_not_taken_for_a_dead_one(database, connection, ending):
    """PostgreSQL lets go of the table before the commit that makes an index valid: such an update is shown it here."""
    interrupted(database)
    oid = value(connection, "select 'aftercommit.outbox_by_aggregate_id'::regclass::oid")
    with connected(database, autocommit=False) as finishing, ThreadPoolExecutor(1) as program:
        finishing.execute("update pg_index set indisvalid = true where indexrelid = %s", [oid])
        second = program.submit(up, database, INDEXED, "second")
        wait_until(lambda: second.done() or sees_it_finishing(database, "second"))
        getattr(finishing, ending)()

        second.result(timeout=60)
    assert value(connection, VALID) is True
    assert (value(connection, "select 'aftercommit.outbox_by_aggregate_id'::regclass::oid") == oid) is (
        ending == "commit"
    )


def test_when_the_builder_dies_the_one_who_waited_builds_it(database, connection):
    with connected(database, autocommit=False) as early, ThreadPoolExecutor(2) as programs:
        early.execute("delete from aftercommit.outbox where false")
        first = programs.submit(up, database, INDEXED, "first")
        wait_until(lambda: waits_for_a_lock(database, "first"))
        second = programs.submit(up, database, INDEXED, "second")
        wait_until(lambda: waits_for_a_lock(database, "second"))
        end_session(database, "first")
        with pytest.raises(DatabaseUnavailable):
            first.result(timeout=60)
        early.commit()

        second.result(timeout=60)
    assert value(connection, VALID) is True


SCOPED = Shape(scope={"tenant_id": str})
LOG_INDEX = "select indisvalid from pg_index where indexrelid = to_regclass('aftercommit.log_scope_tenant_id')"


def add_scope(connection: psycopg.Connection[Any]) -> None:
    for table in ("outbox", "log", "dead_letter_events"):
        connection.execute(
            f"alter table aftercommit.{table} add column tenant_id varchar(255) not null default 'acme';"
            f"alter table aftercommit.{table} alter column tenant_id drop default".encode()
        )


def test_the_log_has_an_index_for_each_scope_that_is_read_by():
    """An index by each of twenty scopes would cost the relay more than all the rest of its work."""
    scope = dict.fromkeys(("tenant_id", "user_id", "project_id", "region"), str)

    def log_indexes(shape: Shape) -> list[str]:
        return [piece.index.name for piece in declared.pieces(shape) if piece.index and "scope" in piece.index.name]

    assert log_indexes(Shape()) == []
    assert log_indexes(Shape(scope=scope)) == ["log_scope_tenant_id"]
    read = Shape(scope=scope, indexed=("user_id",), facets=(LogFacet("scope", "project_id", ()),))
    assert log_indexes(read) == ["log_scope_tenant_id", "log_scope_user_id", "log_scope_project_id"]


def test_the_log_is_indexed_one_partition_at_a_time(database, connection):
    add_scope(connection)

    done = up(database, SCOPED)

    assert "created index log_scope_tenant_id without blocking writers" in done
    assert value(connection, LOG_INDEX) is True
    migrate.check(connection, SCOPED)
    connection.execute("update aftercommit.head set position = 1000000")
    assert partitions.ensure(connection, SCOPED) == ["log_000003"]
    query = "select count(*) from pg_inherits where inhparent = 'aftercommit.log_scope_tenant_id'::regclass"
    assert value(connection, query) == 4
    assert value(connection, LOG_INDEX) is True


def test_an_index_of_the_log_that_was_half_built_is_finished_and_not_begun_again(database, connection):
    attached = "select min(inhrelid) from pg_inherits where inhparent = to_regclass('aftercommit.log_scope_tenant_id')"
    add_scope(connection)
    with connected(database, autocommit=False) as early, ThreadPoolExecutor(1) as program:
        # Somebody writes into the second partition, where the build will wait.
        early.execute("delete from aftercommit.log_000001 where false")
        building = program.submit(up, database, SCOPED)
        # Elsewhere it may wait for a moment too, for the snapshot of an autovacuum for one.
        wait_until(lambda: value(connection, attached) is not None and waits_for_a_lock(database, "builder"))
        end_session(database, "builder")
        with pytest.raises(DatabaseUnavailable):
            building.result(timeout=60)
    first = value(connection, attached)
    assert value(connection, LOG_INDEX) is False

    up(database, SCOPED)

    assert value(connection, LOG_INDEX) is True
    assert first in {row[0] for row in connection.execute(attached.replace("min(inhrelid)", "inhrelid").encode())}


@pytest.mark.parametrize("shape", [INDEXED, SCOPED], ids=["outbox", "log"])
def test_a_transaction_of_somebody_elses_refuses_to_build_on_a_large_table_and_names_the_way(connection, shape):
    if shape is SCOPED:
        add_scope(connection)

    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="run `aftercommit migrate up`"):
        connection.execute("".join(migrate.script(shape)).encode())
    connection.rollback()

    migrate.up(connection, shape)
    connection.execute("".join(migrate.script(shape)).encode())
    migrate.check(connection, shape)
