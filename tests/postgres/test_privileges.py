"""Roles: what the exact grants allow and what they do not, and errors that name the user and the remedy."""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

import aftercommit.postgres
from aftercommit.errors import DeclarationError, MissingPrivilege
from aftercommit.postgres.shape import ENGINE_TABLES, DeclaredView, Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema import migrate, partitions
from aftercommit.schema.privileges import RUNTIME
from tests.support.engine import Engine, connected, migrate_up, value
from tests.support.old_schema import migrate_up_to
from tests.support.shop import SCHEMA, OrderPlaced, shop_outbox

VIEW = DeclaredView("inbound", {"event_id": "event_id", "event_type": "event_type", "body": "payload"}, writable=True)


@pytest.fixture
def roles(database: str) -> Iterator[list[str]]:
    """Names of roles that a test makes; the server outlives the test, so they are removed again."""
    names: list[str] = []
    yield names
    with connected(database) as connection:
        for name in names:
            connection.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(name)))


@pytest.fixture
def role(database: str, roles: list[str]) -> str:
    """A role that may connect and nothing else."""
    return make_role(database, roles)


def make_role(database: str, roles: list[str]) -> str:
    name = f'app "{uuid4().hex[:8]}"'
    with connected(database) as connection:
        connection.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
    roles.append(name)
    return name


def grant(database: str, shape: Shape, role: str) -> None:
    with connected(database) as connection:
        for statement in migrate.grants(shape, role):
            connection.execute(statement.encode())


def statement_names() -> Iterator[str]:
    """Every statement by which programs work at run time."""
    folder = files(aftercommit.postgres).joinpath("queries")
    for path in folder.iterdir():
        if path.name not in ("declare.sql", "indexes.sql", "publish.sql"):
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.startswith("-- name: "):
                    yield line.removeprefix("-- name: ")


def test_a_role_with_the_grants_can_publish(database, role):
    outbox = shop_outbox()
    migrate_up(database, outbox.shape)
    grant(database, outbox.shape, role)

    with connected(database, user=role, autocommit=False) as connection:
        outbox.publish(connection, OrderPlaced("o-1"), tenant_id="acme", idempotency_key="once")
        outbox.publish(connection, [OrderPlaced("o-1"), OrderPlaced("o-2")], tenant_id="acme")
        assert outbox.publish(connection, OrderPlaced("o-1"), tenant_id="acme", idempotency_key="once").duplicate
        connection.commit()

    with connected(database) as connection:
        assert value(connection, f"select count(*) from {SCHEMA}.outbox") == 3


def test_a_role_that_could_publish_before_the_doorbell_needs_no_new_grant(database, role):
    outbox = shop_outbox()
    with connected(database) as connection:
        migrate_up_to(connection, outbox.shape, 10)
        for granted in ("usage on schema shop", "insert on shop.outbox", "select on shop.relay"):
            connection.execute(sql.SQL("grant {} to {}").format(sql.SQL(granted), sql.Identifier(role)))
        connection.execute("insert into shop.relay (id, name, listening) values (gen_random_uuid(), 'asleep', true)")
    migrate_up(database, outbox.shape)

    with connected(database) as ears:
        ears.execute(f'listen "{outbox.shape.publish_channel}"')
        with connected(database, user=role, autocommit=False) as connection:
            outbox.publish(connection, OrderPlaced("o-1"), tenant_id="acme")
            connection.commit()
        assert len(list(ears.notifies(timeout=60, stop_after=1))) == 1


def test_a_role_with_the_grants_can_relay_and_look_after_partitions(database, role, monkeypatch):
    monkeypatch.setattr(partitions, "POSITIONS_PER_PARTITION", 10)
    migrate_up(database)
    grant(database, Shape(), role)

    with connected(database, user=role) as connection:
        migrate.check(connection, Shape())
        engine = Engine(connection)
        for _ in range(45):
            if engine.deliver(engine.publish()) % 10 == 0:
                partitions.ensure(connection, Shape())
        engine.fail(engine.publish(), delay=1)
        engine.fail(engine.publish())

        assert value(connection, "select count(*) from aftercommit.event_log") == 45
        # The partitions belong to the owner of the log, and the role has no right of its own on them.
        assert not value(connection, "select has_table_privilege('aftercommit.log_000004', 'select')")


def test_every_statement_of_the_engine_is_within_the_grants(database, role):
    """EXPLAIN asks for all privileges that a statement needs, without running it."""
    shape = Shape(scope={"tenant_id": str})
    migrate_up(database, shape)
    grant(database, shape, role)
    explained = set()

    with connected(database, user=role) as connection:
        for name in statement_names():
            try:
                text = Statements(shape)[name]
            except KeyError:
                continue  # A template or a part of other statements; those are explained.
            parameters = AnyParameter(outbox='"aftercommit"."outbox"')
            try:
                connection.execute(b"explain " + text, parameters)
            except psycopg.errors.SyntaxError:
                continue  # A part that is no statement by itself.
            explained.add(name)

    assert {"due_fresh", "settle_failures", "take_lanes", "begin_slice", "record_failures", "backlog"} <= explained
    assert len(explained) > 30


class AnyParameter(dict[str, Any]):
    """Null for every parameter that is not given."""

    def __missing__(self, name: str) -> None:
        return None


@pytest.mark.parametrize(
    "statement",
    [
        "update log set ts = now()",
        "delete from log",
        "truncate log",
        "alter table outbox add column x int",
        "drop table outbox",
        "create table mine (x int)",
        "insert into migration (version, name, checksum) values (2, 'x', 'x')",
        "insert into log_000000 select * from log",
        "drop schema aftercommit cascade",
    ],
)
@pytest.mark.thorough
def test_a_role_with_the_grants_can_neither_change_history_nor_tables(database, role, statement):
    migrate_up(database)
    grant(database, Shape(), role)

    with (
        connected(database, user=role, options="-c search_path=aftercommit") as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)


def test_a_writable_view_can_be_written_with_the_grants(database, role):
    shape = Shape(views=(VIEW,))
    migrate_up(database, shape)
    grant(database, shape, role)

    with connected(database, user=role) as connection:
        insert = "insert into aftercommit.inbound (event_id, event_type, body) values (gen_random_uuid(), 'x', '{}')"
        connection.execute(insert)
        assert value(connection, "select count(*) from aftercommit.inbound") == 1


def test_a_role_with_the_grants_finds_nothing_to_do_and_may_not_migrate(database, role):
    migrate_up(database)
    grant(database, Shape(), role)

    with connected(database, user=role) as connection:
        assert migrate.up(connection, Shape()) == []
        with pytest.raises(
            MissingPrivilege, match=r"may not migrate schema 'aftercommit': must be owner.*migrate as the sch"
        ):
            migrate.up(connection, Shape(scope={"tenant_id": str}))


def test_every_table_has_its_grants():
    assert set(RUNTIME) - {"outbox_seq_seq"} == ENGINE_TABLES


def test_a_role_name_that_cannot_be_one_is_refused():
    with pytest.raises(DeclarationError, match="role name '' is not valid"):
        migrate.grants(Shape(), "")


def test_a_role_without_create_is_told_what_to_grant(database, role):
    with connected(database, user=role) as connection:
        with pytest.raises(MissingPrivilege, match=r"may not migrate.*permission denied for database") as refused:
            migrate.up(connection, Shape())
        assert repr(role) in str(refused.value)

    remedy = str(refused.value).partition("Remedy: ")[2].partition("; or")[0]
    with connected(database) as owner:
        owner.execute(remedy.encode())
    with connected(database, user=role) as connection:
        assert "applied 0001_engine" in migrate.up(connection, Shape())


def test_the_owner_of_a_schema_needs_no_right_on_the_database(database, role):
    with connected(database) as owner:
        owner.execute(sql.SQL("create schema aftercommit authorization {}").format(sql.Identifier(role)))

    with connected(database, user=role) as connection:
        assert "applied 0001_engine" in migrate.up(connection, Shape())
        migrate.check(connection, Shape())


@pytest.mark.parametrize("act", [migrate.up, migrate.status, migrate.check])
def test_a_role_without_usage_on_the_schema_is_told_what_to_grant(database, role, act):
    migrate_up(database)

    with connected(database, user=role) as connection:
        with pytest.raises(MissingPrivilege, match=r"may not use schema 'aftercommit': permission denied") as refused:
            act(connection, Shape())
        assert f"migrate grants {role}" in str(refused.value)

    grant(database, Shape(), role)
    with connected(database, user=role) as connection:
        act(connection, Shape())


def test_a_role_that_may_not_make_partitions_is_told_what_to_grant(database, role):
    migrate_up(database)

    with connected(database, user=role) as connection, pytest.raises(MissingPrivilege, match="migrate grants"):
        partitions.ensure(connection, Shape())


def test_a_migration_works_under_a_role_that_was_assumed(database, roles):
    owner, member = make_role(database, roles), make_role(database, roles)
    with connected(database) as connection:
        grants = "grant create on database {} to {}; grant {} to {}"
        names = [connection.info.dbname, owner, owner, member]
        connection.execute(sql.SQL(grants).format(*map(sql.Identifier, names)))

    with connected(database, user=member) as connection:
        connection.execute(sql.SQL("set role {}").format(sql.Identifier(owner)))
        migrate.up(connection, Shape())
        assert value(connection, "select tableowner from pg_tables where tablename = 'outbox'") == owner


def test_retention_is_for_the_owner(database, role, monkeypatch):
    from datetime import UTC, datetime

    monkeypatch.setattr(partitions, "POSITIONS_PER_PARTITION", 1)
    migrate_up(database)
    grant(database, Shape(), role)
    with connected(database, user=role) as connection:
        engine = Engine(connection)
        engine.deliver(engine.publish())

        with pytest.raises(MissingPrivilege, match="Run retention as the owner"):
            partitions.drop_before(connection, Shape(), older_than=datetime.now(UTC))


def test_the_guide_shows_the_grants_as_they_are():
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "migrations.md").read_text(encoding="utf-8")

    assert "\n".join(f"{statement};" for statement in migrate.grants(Shape(), "shop_app")) in guide
