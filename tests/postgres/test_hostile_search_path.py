"""A search_path that hides built-in functions and operators behind others of the same name changes nothing for us."""

import re
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from aftercommit.errors import DatabaseRefused
from aftercommit.event.envelope import Event
from aftercommit.operate.overview import overview
from aftercommit.postgres.database import Database
from aftercommit.postgres.statements import _texts
from aftercommit.schema import migrate
from aftercommit.testing.signals import Signals
from tests.support.consuming import worker_on
from tests.support.pgbouncer import PgBouncer
from tests.support.relays import relay_on
from tests.support.shop import OrderPlaced, Shop

HOSTILE = """
    create schema hostile;
    create function hostile.clock_timestamp() returns timestamptz language sql return timestamptz '2001-01-01';
    create function hostile.statement_timestamp() returns timestamptz language sql return timestamptz '2001-01-01';
    create function hostile.pg_notify(text, text) returns void language plpgsql as $$ begin raise 'hidden'; end $$;
    create function hostile.hashtextextended(text, bigint) returns bigint language plpgsql as
        $$ begin raise 'hidden'; end $$;
    create function hostile.make_interval(secs double precision) returns interval language sql return interval '-1 day';
    create function hostile.pg_backend_pid() returns integer language sql return 1;
    create function hostile.differs(text, text) returns boolean language sql return false;
    create function hostile.joined(text, text) returns text language sql return 'hidden';
    create operator hostile.= (leftarg = text, rightarg = text, function = hostile.differs);
    create operator hostile.<> (leftarg = text, rightarg = text, function = hostile.differs);
    create operator hostile.|| (leftarg = text, rightarg = text, function = hostile.joined);
    create table hostile.mine (order_id text);
"""
# A name before a parenthesis, with nothing but a space or another parenthesis before it.
CALL = re.compile(r"(?<![.\w])([a-z_]+) ?\(")
PATH = "hostile, public, pg_catalog"


@pytest.fixture
def hostile(shop: Shop) -> Shop:
    """The shop, for whose database somebody has set such a search_path."""
    shop.rows(HOSTILE)
    shop.rows(f"do $$ begin execute format('alter database %I set search_path to {PATH}', current_database()); end $$")
    return shop


async def test_everything_works_and_handlers_still_find_their_tables(hostile: Shop) -> None:
    seen: list[str] = []

    @hostile.outbox.on(OrderPlaced, consumer="index")
    async def handle(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[tuple[str, ...]]) -> None:
        await connection.execute("insert into mine (order_id) values (%s)", (event.payload.order_id,))
        row = await (await connection.execute("select current_setting('search_path')")).fetchone()
        seen.extend(row or ())

    consumer = hostile.outbox.consumers["index"]
    with psycopg.connect(hostile.dsn) as connection:
        assert connection.execute("select clock_timestamp() < '2002-01-01'").fetchone() == (True,)
        hostile.outbox.publish(connection, OrderPlaced("o-1"), tenant_id="acme")
        hostile.outbox.publish(connection, [OrderPlaced("o-2"), OrderPlaced("o-3")], tenant_id="acme")
        for _ in range(2):
            hostile.outbox.publish(connection, OrderPlaced("o-4"), tenant_id="acme", idempotency_key="k")
    async with relay_on(hostile), worker_on(hostile, consumer, signals=Signals()):
        await hostile.value_becomes("select position from shop.consumer", 4)
        with psycopg.connect(hostile.dsn) as connection:
            # A relay is there to be rung for.
            hostile.outbox.publish(connection, OrderPlaced("o-5"), tenant_id="acme")
        await hostile.value_becomes("select position from shop.consumer", 5)
    assert hostile.rows("select order_id from hostile.mine order by 1") == [(f"o-{number}",) for number in range(1, 6)]
    assert set(seen) == {'"hostile","public"'}
    with hostile.database.connect_sync() as connection:
        assert overview(connection, hostile.outbox.shape).consumers[0].lag == 0
        migrate.check(connection, hostile.outbox.shape)


def test_options_of_the_dsn_are_kept(hostile: Shop) -> None:
    database = Database(make_conninfo(hostile.dsn, options="-c statement_timeout=12345"))
    with database.connect_sync() as connection:
        shown = connection.execute("select current_setting('statement_timeout'), clock_timestamp() > '2002-01-01'")
        assert shown.fetchone() == ("12345ms", True)


@pytest.mark.needs("pgbouncer")
async def test_behind_a_pooler_that_cannot_be_told_it_is_refused_with_the_remedy(hostile: Shop, tmp_path: Path) -> None:
    with PgBouncer(hostile.dsn, tmp_path) as bouncer:
        words = r"names hostile, public before pg_catalog.*remove pg_catalog from the search_path of the role"
        with pytest.raises(DatabaseRefused, match=words):
            await Database(bouncer.dsn).connect()
        with pytest.raises(DatabaseRefused, match=words):
            Database(bouncer.dsn).connect_sync()


def test_what_runs_in_sessions_of_others_calls_built_in_functions_by_their_full_name() -> None:
    """Publish is a guest in the caller's session, where nothing can be set."""
    words = "coalesce values operator and key scope outbox published_key select conflict event from returning as where"
    words += " stdin not"
    for name, text in _texts().items():
        if name.startswith("publish_") or name in ("find_key", "may_copy"):
            called = set(CALL.findall(text)) - set(words.split())
            assert called == set(), f"{name} calls {called}: write pg_catalog.… in front"
