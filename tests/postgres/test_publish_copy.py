"""What COPY could change about a publish of many events: who may write, what triggers see, and when it is not used."""

from collections.abc import Iterator
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from psycopg import sql

from aftercommit.outbox.insert import COPY_FROM
from aftercommit.testing.outbox_suite import PublishSuite, create_suite_tables
from aftercommit.testing.publish_stage import OUTBOX, SCOPE, orders
from tests.postgres.test_publish_psycopg import Psycopg
from tests.support.engine import connected, value

MANY = orders(*(f"o-{number}" for number in range(COPY_FROM)))
STORED = "select count(*) from publish_suite.outbox"

# Which statements wrote, and how many rows each of them.
WITNESS = """
    create table public.seen (number int generated always as identity, verb text, rows int);
    create function public.see() returns trigger language plpgsql security definer as $$
    begin
        insert into public.seen (verb, rows)
        select lower(substring(regexp_replace(current_query(), '^(--[^\\n]*\\n)+', '') from '^\\w+')), count(*)
        from new_rows;
        return null;
    end $$;
    create trigger see after insert on publish_suite.outbox referencing new table as new_rows
    for each statement execute function public.see();
"""


@pytest.fixture
def watched(database: str) -> str:
    """A database with the tables of the suite, and a trigger of the application on the outbox."""
    create_suite_tables(database)
    with connected(database) as connection:
        connection.execute(WITNESS)
    return database


@pytest.fixture
def role(watched: str) -> Iterator[str]:
    """A role that may insert into the outbox, and nothing else."""
    name = f"writer_{uuid4().hex[:8]}"
    with connected(watched) as connection:
        for statement in (
            "create role {} login",
            "grant usage on schema publish_suite to {}",
            "grant insert on publish_suite.outbox to {}",
        ):
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(name)))


def seen(dsn: str) -> list[tuple[str, int]]:
    with connected(dsn) as connection:
        return [(verb, rows) for verb, rows in connection.execute("select verb, rows from seen order by number")]


BY_COPY = [("insert", 1), ("copy", COPY_FROM - 1)]
BY_INSERT = [("insert", COPY_FROM)]


def test_the_first_event_goes_by_insert_and_the_others_by_copy(watched):
    with connected(watched, autocommit=False) as connection:
        OUTBOX.publish(connection, MANY[1:], **SCOPE)
        OUTBOX.publish(connection, MANY, **SCOPE)
        connection.commit()

    assert seen(watched) == [("insert", COPY_FROM - 1), *BY_COPY]


async def test_asyncpg_uses_copy_too(watched):
    connection = await asyncpg.connect(watched)
    async with connection.transaction():
        await OUTBOX.publish(connection, MANY, **SCOPE)
    await connection.close()

    assert seen(watched) == BY_COPY


def test_a_role_that_may_insert_and_nothing_else_can_publish_many_events(watched, role):
    with connected(watched, user=role, autocommit=False) as connection:
        OUTBOX.publish(connection, MANY, **SCOPE)
        connection.commit()

    assert seen(watched) == BY_COPY


def test_a_role_that_may_not_insert_is_refused(watched, role):
    with connected(watched) as owner:
        owner.execute(sql.SQL("revoke insert on publish_suite.outbox from {}").format(sql.Identifier(role)))
    with (
        connected(watched, user=role, autocommit=False) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="outbox"),
    ):
        OUTBOX.publish(connection, MANY, **SCOPE)


def test_row_level_security_checks_every_event(watched, role):
    """COPY is refused on such a table, so the events go by INSERT."""
    with connected(watched) as owner:
        owner.execute("alter table publish_suite.outbox enable row level security")
        owner.execute("create policy own on publish_suite.outbox for insert with check (aggregate_id <> 'o-7')")
    with connected(watched, user=role, autocommit=False) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            OUTBOX.publish(connection, MANY, **SCOPE)
        connection.rollback()
        allowed = [each for each in MANY if each.order_id != "o-7"]
        OUTBOX.publish(connection, [*allowed, allowed[0]], **SCOPE)
        connection.commit()

    assert seen(watched) == [("insert", 1), ("insert", COPY_FROM - 1)]


def test_a_rule_of_the_application_sees_every_event(watched):
    """COPY would pass it by."""
    with connected(watched) as owner:
        owner.execute("create table copies (id uuid)")
        owner.execute(
            "create rule keep as on insert to publish_suite.outbox do also insert into copies values (new.id)"
        )
    with connected(watched, autocommit=False) as connection:
        OUTBOX.publish(connection, MANY, **SCOPE)
        connection.commit()
        assert value(connection, "select count(*) from copies") == COPY_FROM


def test_a_trigger_that_drops_the_first_event_does_not_stop_the_others(watched):
    with connected(watched) as owner:
        owner.execute(
            "create function drop_row() returns trigger language plpgsql as $$ begin return null; end $$;"
            "create trigger drop_first before insert on publish_suite.outbox for each row "
            "when (new.aggregate_id = 'o-0') execute function drop_row()"
        )
    with connected(watched, autocommit=False) as connection:
        OUTBOX.publish(connection, MANY, **SCOPE)
        connection.commit()
        assert value(connection, STORED) == COPY_FROM - 1


def test_a_pipeline_and_another_encoding_use_insert(watched):
    with connected(watched, autocommit=False) as connection:
        with connection.pipeline():
            OUTBOX.publish(connection, MANY, **SCOPE)
        connection.execute("set client_encoding to latin1")
        OUTBOX.publish(connection, MANY, **{**SCOPE, "tenant": "Ærø"})
        connection.commit()

    with connected(watched) as connection:
        assert value(connection, "select count(*) from publish_suite.outbox where tenant = 'Ærø'") == COPY_FROM
    assert seen(watched) == [*BY_INSERT, *BY_INSERT]


def test_a_publish_outside_a_transaction_is_one_statement(watched):
    with connected(watched) as connection:
        OUTBOX.publish(connection, MANY, outside_transaction=True, **SCOPE)

    assert seen(watched) == BY_INSERT


class _Suite(PublishSuite):
    """Not collected: two of its cases have a name here, for the planted bugs."""

    harness = Psycopg


def test_a_publish_by_copy_wakes_a_listening_relay(publish_database):
    _Suite().test_a_listening_relay_is_woken_by_the_commit_alone(publish_database)


def test_a_publish_by_copy_wakes_a_relay_that_falls_asleep_meanwhile(publish_database):
    _Suite().test_a_relay_that_falls_asleep_during_a_publish_is_woken(publish_database)
