"""What the bot remembers, in SQLite and PostgreSQL alike: links, places, codes, what was set aside; for one bot."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from aftercommit.clock import utc_now
from aftercommit.contrib.telegram import Code, Link, Store, UndeliveredEvent, issue_code, open_store
from aftercommit.contrib.telegram.linking import hash_of
from aftercommit.contrib.telegram.state import FOR_EVER, muted_until
from aftercommit.contrib.telegram.states import exists, safe_place
from aftercommit.contrib.telegram.states.postgres import PostgresDriver
from aftercommit.contrib.telegram.states.sql import versions
from aftercommit.contrib.telegram.states.sqlite import SqliteDriver
from aftercommit.errors import StateError, StateTaken, StateUnavailable

HOLDER = """
import sys, time
from aftercommit.contrib.telegram import open_store
store = open_store(sys.argv[1])
store.lock()
print("locked", flush=True)
time.sleep(600)
"""
# Of this database alone: others may use the same server.
END_BOTS = """
    select pg_terminate_backend(pid, 10000) from pg_stat_activity
    where application_name = 'aftercommit bot' and datname = current_database()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "deep" / "bot.sqlite")
    return str(request.getfixturevalue("database"))


@pytest.fixture
def store(where: str) -> Iterator[Store]:
    made = open_store(where)
    made.prepare()
    yield made
    made.close()


LINKED_AT = utc_now()


def link(chat_id: int = 5, user_id: str = "17", place: str | None = "3", **given: object) -> Link:
    return msgspec.structs.replace(Link(chat_id, user_id, "Ada", "en", place, LINKED_AT), **given)


def failure(chat_id: int = 5, place: str = "4", kind: str = "blocked", **given: object) -> UndeliveredEvent:
    made = UndeliveredEvent(chat_id, "17", place, place, "task_created", kind, "Forbidden", utc_now())
    return msgspec.structs.replace(made, **given)


def test_a_link_is_remembered_across_lives(where: str, store: Store):
    store.put_link(link(muted_until=FOR_EVER))
    store.put_link(link(chat_id=-1001234567890, user_id="übel \" '", place=None))
    store.close()
    other = open_store(where)
    assert {each.chat_id for each in other.links()} == {5, -1001234567890}
    found = other.link(5)
    assert found is not None
    assert (found.user_id, found.place, found.muted_until) == ("17", "3", FOR_EVER)
    assert other.link(6) is None
    other.close()


def test_a_chat_that_is_linked_anew_has_one_link(store: Store):
    store.put_link(link())
    store.put_link(link(user_id="18", place="9"))
    [found] = store.links()
    assert (found.user_id, found.place) == ("18", "9")


@pytest.mark.contract("T9")
def test_a_place_moves_and_a_delivery_shows_that_the_chat_can_be_reached(store: Store):
    store.put_link(link(unreachable="blocked"))
    store.move(link(), "4")
    found = store.link(5)
    assert found is not None
    assert (found.place, found.unreachable) == ("4", "blocked")
    store.move(found, "5", delivered=True)
    found = store.link(5)
    assert found is not None
    assert (found.place, found.unreachable) == ("5", None)


def test_a_place_does_not_move_under_a_link_that_was_made_anew(store: Store):
    old = link(place="3")
    later = LINKED_AT + timedelta(seconds=1)
    for new in (link(place="90"), link(user_id="18", place="3"), link(place="3", linked_at=later)):
        store.put_link(new)
        store.move(old, "4", delivered=True)
        store.count_passed(old, "4")
        found = store.link(5)
        assert found is not None
        assert (found.place, found.passed) == (new.place, 0)


@pytest.mark.contract("T11")
def test_what_is_set_aside_is_recorded_and_passed_in_one_step(store: Store):
    store.put_link(link())
    store.set_aside(link(), failure(), "4")
    found = store.link(5)
    assert found is not None
    assert (found.place, found.unreachable) == ("4", "Forbidden")
    [kept] = store.failures(5)
    assert (kept.event_id, kept.kind, kept.reason) == ("4", "blocked", "Forbidden")
    store.set_aside(link(), failure(), "4")
    assert store.count_failures() == 1


def test_what_was_set_aside_is_shown_newest_first_by_chat_and_user_and_forgotten_when_old(store: Store):
    now = utc_now()
    for number in range(1, 8):
        store.set_aside(
            link(), failure(place=str(number), kind="refused", at=now - timedelta(days=number)), str(number)
        )
    store.set_aside(link(chat_id=6), failure(chat_id=6, user_id="18", at=now), "4")
    assert [each.place for each in store.failures(5, limit=3)] == ["1", "2", "3"]
    assert [each.chat_id for each in store.failures(user_id="18")] == [6]
    assert (store.count_failures(), store.count_failures(5), store.count_failures(5, user_id="18")) == (8, 7, 0)
    assert store.forget_failures(now - timedelta(days=4, hours=1)) == 3
    assert store.count_failures(5) == 4


def test_events_that_pass_while_a_chat_is_muted_are_counted_once(store: Store):
    store.put_link(link())
    store.mute(5, FOR_EVER)
    for place, was in (("4", "3"), ("5", "4")):
        store.count_passed(link(place=was), place)
        # As after a lost connection, when nobody knows whether it was committed.
        store.count_passed(link(place=was), place)
    found = store.link(5)
    assert found is not None
    assert (found.place, found.passed, found.is_muted(utc_now())) == ("5", 2, True)
    store.told_passed(link(passed=1))
    store.mute(5, None)
    found = store.link(5)
    assert found is not None
    assert (found.passed, found.is_muted(utc_now())) == (1, False)


def test_a_group_takes_its_place_and_its_record_to_its_new_number(store: Store):
    store.put_link(link(chat_id=-5))
    store.set_aside(link(chat_id=-5), failure(chat_id=-5, kind="refused"), "4")
    store.renumber(-5, -1001)
    store.renumber(-5, -1001)
    [found] = store.links()
    assert (found.chat_id, found.place) == (-1001, "4")
    assert store.count_failures(-1001) == 1


def test_a_group_whose_new_number_has_the_same_on_record_keeps_it_once(store: Store):
    for chat_id in (-5, -1001):
        store.put_link(link(chat_id=chat_id))
        store.set_aside(link(chat_id=chat_id), failure(chat_id=chat_id), "4")
    store.renumber(-5, -1001)
    assert [each.chat_id for each in store.links()] == [-1001]
    assert store.count_failures() == 1


def test_whoever_is_linked_again_as_the_same_user_goes_on_where_they_were(store: Store):
    store.put_link(link(muted_until=FOR_EVER, passed=2))
    store.move(link(), "45")
    store.put_link(link(place="90", linked_at=LINKED_AT + timedelta(hours=1), name="Ada L.", code_hash="new"))
    found = store.link(5)
    assert found is not None
    assert (found.place, found.linked_at, found.passed, found.muted_until) == ("45", LINKED_AT, 2, FOR_EVER)
    assert (found.name, found.code_hash) == ("Ada L.", "new")


def test_what_has_passed_and_cannot_be_told_is_recorded_in_the_same_step(store: Store):
    store.put_link(link(passed=5))
    store.told_passed(link(passed=5), failure(place="3", event_id="5 up to 3", event_type="muted"))
    found = store.link(5)
    assert found is not None
    assert (found.passed, found.place, found.unreachable) == (0, "3", "Forbidden")
    assert found.unreachable_at is not None
    assert [each.event_id for each in store.failures()] == ["5 up to 3"]


def test_what_was_missed_is_counted_from_when_a_chat_could_not_be_reached(store: Store):
    store.put_link(link())
    store.set_aside(link(), failure(place="1", kind="refused", at=utc_now() - timedelta(days=3)), "4")
    store.set_aside(link(place="4"), failure(place="5"), "5")
    store.lost(5, "again")
    found = store.link(5)
    assert found is not None
    assert store.count_failures(5, since=found.unreachable_at) == 1
    store.reached(5)
    found = store.link(5)
    assert found is not None
    assert (found.unreachable, found.unreachable_at) == (None, None)


def test_a_place_before_everything_is_kept_as_none(store: Store):
    store.put_link(link())
    store.set_aside(link(), failure(place="", kind="gap"), None)
    found = store.link(5)
    assert found is not None
    assert found.place is None


def test_a_code_whose_commit_was_lost_on_the_way_is_there_for_whoever_took_it(store: Store):
    code = issue_code(store, "17", "Ada", timedelta(minutes=10))
    taken = [
        len(store.driver.one("take_code", hash=hash_of(code), taker=taker)) for taker in ("first", "first", "second")
    ]
    assert taken == [1, 1, 0]


def test_an_address_in_words_is_one_of_postgresql_and_shows_no_password(database: str):
    words = make_conninfo(database, application_name="in words")
    assert "://" not in words
    store = open_store(words)
    store.prepare()
    assert store.links() == []
    store.close()
    assert "hush" not in safe_place("host=db password=hush dbname=bot")
    assert exists("host=db dbname=bot")


def test_an_unlinked_chat_is_gone_and_its_record_stays(store: Store):
    store.put_link(link())
    store.set_aside(link(), failure(), "4")
    assert store.unlink(5)
    assert not store.unlink(5)
    assert store.links() == []
    assert store.count_failures() == 1


def test_a_code_counts_once_and_not_for_ever(store: Store):
    code = issue_code(store, "17", "Ada", timedelta(minutes=10))
    now = utc_now()
    assert store.take_code(hash_of("wrong"), now) is None
    assert store.take_code(hash_of(code), now) == Code("17", "Ada")
    assert store.take_code(hash_of(code), now) is None
    expired = issue_code(store, "17", "Ada", timedelta(minutes=10))
    assert store.take_code(hash_of(expired), now + timedelta(minutes=11)) is None


def test_a_new_code_ends_the_one_before_it(store: Store):
    first = issue_code(store, "17", "Ada", timedelta(minutes=10))
    second = issue_code(store, "17", "Ada", timedelta(minutes=10))
    other = issue_code(store, "18", "Bob", timedelta(minutes=10))
    assert store.take_code(hash_of(first), utc_now()) is None
    assert store.take_code(hash_of(second), utc_now()) is not None
    assert store.take_code(hash_of(other), utc_now()) is not None


def test_no_code_is_kept_as_it_is(tmp_path: Path):
    store = open_store(str(tmp_path / "bot.sqlite"))
    store.prepare()
    code = issue_code(store, "17", "Ada", timedelta(minutes=10))
    store.close()
    assert code.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_the_number_of_the_next_update_is_remembered(store: Store):
    assert store.offset() == 0
    store.save_offset(10**12)
    assert store.offset() == 10**12


def test_making_the_tables_again_changes_nothing(where: str, store: Store):
    store.put_link(link())
    for _ in range(2):
        other = open_store(where)
        other.prepare()
        other.close()
    assert len(store.links()) == 1


def test_tables_of_an_older_version_are_upgraded_and_those_of_a_newer_one_refused(where: str, store: Store):
    store.put_link(link())
    later = {**versions(), 4: "create table {schema}.later (id bigint primary key)"}
    store.driver.prepare(later)
    store.driver.prepare(later)
    assert len(store.links()) == 1
    other = open_store(where)
    with pytest.raises(StateError, match="has version 4, and this code knows 3: deploy the newer"):
        other.prepare()
    other.close()


def test_a_second_bot_on_the_same_state_is_refused_and_told_why(where: str, store: Store):
    store.lock()
    driver = (
        PostgresDriver(where, lock_wait_seconds=0.0)
        if "://" in where
        else SqliteDriver(Path(where), lock_wait_seconds=0.0)
    )
    second = Store(driver)
    assert second.is_taken()
    with pytest.raises(StateTaken, match=r"another bot .*uses the state in .*: stop it, or give this bot"):
        second.lock()
    # The command line is no bot, and works beside it.
    second.put_link(link())
    assert len(store.links()) == 1
    store.close()
    assert not second.is_taken()
    second.lock()
    second.close()


@pytest.mark.thorough
def test_the_state_of_a_bot_that_was_killed_is_free_at_once(where: str):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, where], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    os.kill(holder.pid, signal.SIGKILL)
    store = open_store(where)
    store.lock()
    store.close()
    holder.wait()
    holder.stdout.close()


def test_a_connection_that_broke_is_made_anew_and_keeps_the_lock(database: str):
    store = open_store(database)
    store.lock()
    store.prepare()
    with psycopg.connect(database, autocommit=True) as other:
        other.execute(END_BOTS)
    store.put_link(link())
    with pytest.raises(StateTaken):
        Store(PostgresDriver(database, lock_wait_seconds=0.0)).lock()
    store.close()


def test_a_bot_whose_lock_another_took_meanwhile_writes_nothing(database: str):
    first, second = Store(PostgresDriver(database, lock_wait_seconds=0.0)), open_store(database)
    first.lock()
    first.prepare()
    with psycopg.connect(database, autocommit=True) as other:
        other.execute(END_BOTS)
    second.lock()
    with pytest.raises(StateTaken):
        first.put_link(link())
    assert second.links() == []
    second.close()


def test_a_database_that_is_away_is_unavailable_and_shows_no_password():
    store = open_store("postgresql://bot:hush@127.0.0.1:1/none")
    with pytest.raises(StateUnavailable) as told:
        store.links()
    assert "hush" not in str(told.value)


def test_a_file_that_is_no_database_is_told_by_its_name(tmp_path: Path):
    path = tmp_path / "bot.sqlite"
    path.write_text("this is no database, but long enough to be looked at as if it were one" * 20)
    with pytest.raises(StateUnavailable, match=r"bot\.sqlite"):
        open_store(str(path)).prepare()


def test_the_file_is_for_its_owner_alone_and_others_can_read_while_it_is_written(tmp_path: Path):
    path = tmp_path / "bot.sqlite"
    store = open_store(str(path))
    store.prepare()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    connection.close()
    assert isinstance(SqliteDriver(path).path, Path)


def test_a_mute_has_an_end_or_none():
    now = utc_now()
    assert muted_until(now, timedelta(hours=2)) == now + timedelta(hours=2)
    assert muted_until(now, None) == FOR_EVER
    assert muted_until(now, timedelta.max) == FOR_EVER
