"""A state that refuses is waited for, in SQLite and PostgreSQL alike: nothing is sent again meanwhile, nothing lost."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from aftercommit.clock import utc_now
from aftercommit.contrib.telegram import Link, Store, UndeliveredEvent, open_store
from aftercommit.contrib.telegram.states.postgres import SCHEMA
from aftercommit.errors import StateError, StateUnavailable
from tests.telegram.bots import said, stage

# Refuses the first change of a place with the state that a test says. Sequences count also what was rolled back.
REFUSAL = """
create sequence refusals;
create function refuse() returns trigger language plpgsql as $$
begin
    if nextval('refusals') = 1 then
        raise exception 'told %' using errcode = '%';
    end if;
    return new;
end $$;
create trigger refuse before update on aftercommit_bot.link for each row execute function refuse();
"""


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "bot.sqlite") if request.param == "sqlite" else str(request.getfixturevalue("database"))


@pytest.fixture
def store(where: str) -> Iterator[Store]:
    made = open_store(where)
    made.prepare()
    yield made
    made.close()


def link(chat_id: int, user_id: str = "17") -> Link:
    return Link(chat_id, user_id, "Ada", "en", "3", utc_now())


def failure(chat_id: int, place: str) -> UndeliveredEvent:
    return UndeliveredEvent(chat_id, "17", place, place, "task_created", "refused", "Bad Request", utc_now())


def beside(where: str, statement: str) -> None:
    """Something that an operator does, with a connection of their own."""
    if "://" in where:
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute(statement.encode())
        return
    other = sqlite3.connect(where)
    other.execute(statement.replace(f"{SCHEMA}.", ""))
    other.commit()
    other.close()


def test_a_table_that_is_away_is_waited_for_until_it_is_back(where: str, store: Store):
    store.put_link(link(5))
    beside(where, f"alter table {SCHEMA}.link rename to elsewhere")
    for _ in range(2):
        with pytest.raises(StateUnavailable, match="link"):
            store.move(link(5), "4")
    beside(where, f"alter table {SCHEMA}.elsewhere rename to link")
    assert [each.place for each in store.links()] == ["3"]


def test_a_database_that_may_only_be_read_is_unavailable_for_writing(database: str):
    store = open_store(database)
    store.prepare()
    store.close()
    beside(database, "do $$ begin execute format('alter database %I set default_transaction_read_only = on', "
           "current_database()); end $$")  # fmt: skip
    with pytest.raises(StateUnavailable, match="read-only transaction"):
        store.put_link(link(5))
    assert store.links() == []
    store.close()


@pytest.fixture
def role(database: str) -> Iterator[str]:
    """A user of the server who can be refused."""
    name = f"bot_{uuid4().hex[:12]}"
    beside(database, f"create role {name} login superuser")
    yield name
    beside(database, f"drop role {name}")


def test_a_refused_user_ends_who_comes_and_is_waited_for_by_the_bot_that_works(database: str, role: str):
    prepared = open_store(database)
    prepared.prepare()
    prepared.close()
    where = make_conninfo(database, user=role)
    working, newcomer = open_store(where), open_store(where)
    working.lock()
    beside(database, f"alter role {role} nologin")
    beside(database, f"select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = '{role}'")
    remedy = r"check AFTERCOMMIT_BOT_STATE \(or --state\)"
    with pytest.raises(StateUnavailable, match=remedy):
        working.links()
    with pytest.raises(StateError, match=remedy) as told:
        newcomer.links()
    assert not isinstance(told.value, StateUnavailable)
    beside(database, f"alter role {role} login")
    assert working.links() == newcomer.links() == []
    working.close()
    newcomer.close()


@pytest.mark.thorough
@pytest.mark.contract("T11")
@pytest.mark.parametrize("code", ["25006", "42501"], ids=["read-only", "no privilege"])
async def test_a_message_whose_place_cannot_be_kept_at_first_is_not_sent_again(
    code: str, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path, state=database) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        beside(database, REFUSAL.replace("%", code))
        scene.backend.publish(17, count=2)
        async with scene.bot():
            await scene.points.wait("bot.saved", 2)
        assert [text.splitlines()[0] for text in scene.texts(ada)] == ["🆕 task 1", "🆕 task 2"]
        assert scene.place(ada) == "2"
        assert said(caplog) == ["bot_state_unavailable"]


def test_a_group_whose_new_number_has_the_same_records_keeps_one_of_each(store: Store):
    old, new = -5, -1001
    for chat_id, places in ((old, ("4", "5")), (new, ("5", "6"))):
        store.put_link(link(chat_id))
        for place in places:
            store.set_aside(link(chat_id), failure(chat_id, place), place)
    for _ in range(2):
        store.renumber(old, new)
        assert [each.chat_id for each in store.links()] == [new]
        assert sorted(each.place for each in store.failures(new)) == ["4", "5", "6"]
        assert store.count_failures(old) == 0
