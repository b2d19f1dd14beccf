"""The PostgreSQL that our tests and users' tests run on: templates, clones, and nothing left behind."""

import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from aftercommit.errors import DatabaseError, DatabaseUnavailable, MissingPrivilege
from aftercommit.outbox import Outbox
from aftercommit.testing import postgres
from aftercommit.testing.postgres import PostgresServerForTests, with_database

# On servers of their own, of versions of their own: nothing here asks for the one that the other tests run on.
pytestmark = pytest.mark.newest


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServerForTests]:
    """A server of this module's own, which it may give users and templates."""
    with PostgresServerForTests() as started:
        yield started


def run(dsn: str, statement: str) -> list[tuple[object, ...]]:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def databases(server: PostgresServerForTests) -> set[object]:
    return {name for (name,) in run(server.dsn, "select datname from pg_database")}


def test_each_test_gets_an_empty_database_of_its_own(database: str) -> None:
    assert run(database, "select count(*) from pg_tables where schemaname = 'public'") == [(0,)]


@pytest.mark.thorough
def test_clones_equal_their_template_and_are_apart_from_each_other(server: PostgresServerForTests) -> None:
    prepared: list[str] = []

    def prepare(dsn: str) -> None:
        prepared.append(dsn)
        run(dsn, "create table orders as select 1 as number")

    for _ in range(2):
        assert server.template("orders", prepare) == "orders"
    first, second = server.clone("orders"), server.clone("orders")
    run(first, "insert into orders values (2)")
    assert len(run(first, "table orders")) == 2
    assert len(run(second, "table orders")) == 1
    assert len(prepared) == 1


@pytest.mark.thorough
def test_a_session_left_open_in_the_template_does_not_block_clones(server: PostgresServerForTests) -> None:
    left_open: list[psycopg.Connection] = []
    server.template("busy", lambda dsn: left_open.append(psycopg.connect(dsn)))
    assert run(server.clone("busy"), "select 1") == [(1,)]
    left_open[0].close()


def test_a_template_that_fails_to_be_prepared_leaves_nothing(server: PostgresServerForTests) -> None:
    before = databases(server)

    def prepare(dsn: str) -> None:
        run(dsn, "create tables")

    with pytest.raises(psycopg.errors.SyntaxError):
        server.template("broken", prepare)
    assert databases(server) == before
    with pytest.raises(DatabaseError, match="no template 'broken'"):
        server.clone("broken")


@pytest.mark.thorough
def test_an_outbox_has_a_template_with_your_tables_and_its_own_made_once(server: PostgresServerForTests) -> None:
    prepared: list[str] = []

    def prepare(dsn: str) -> None:
        prepared.append(dsn)
        run(dsn, "create table orders ()")

    def for_outbox(**options: Any) -> str:
        return server.template_for(Outbox("shop", **options), prepare)

    first = for_outbox()
    assert for_outbox() == first, "another declaration of the same shape"
    assert len(prepared) == 1
    scoped = for_outbox(scope={"tenant_id": str})
    assert len({first, scoped, server.template_for(Outbox("shop"))}) == 3
    clone = server.clone(scoped)
    assert run(clone, "select count(tenant_id) from shop.outbox") == [(0,)]
    assert run(clone, "select count(*) from orders") == [(0,)]


@pytest.mark.thorough
def test_your_own_migrations_may_make_the_outbox_or_an_older_part_of_it(server: PostgresServerForTests) -> None:
    def prepare(dsn: str) -> None:
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            Outbox("shop").migrate(connection)

    clone = server.clone(server.template_for(Outbox("shop", scope={"tenant_id": str}), prepare))
    assert run(clone, "select count(tenant_id) from shop.outbox") == [(0,)]


def test_drop_ends_open_sessions_and_spares_what_it_did_not_create(server: PostgresServerForTests) -> None:
    dsn = server.clone(server.template("empty", lambda dsn: None))
    with closing(psycopg.connect(dsn)):
        server.drop(dsn)
    assert conninfo_to_dict(dsn)["dbname"] not in databases(server)
    with pytest.raises(DatabaseError, match="'postgres' is not dropped: this test run has not created it"):
        server.drop(server.dsn)


def test_a_given_server_needs_createdb_and_is_left_as_it_was(server: PostgresServerForTests) -> None:
    run(server.dsn, "create role tester login")
    dsn = server.dsn.replace("postgres@", "tester@")
    with pytest.raises(MissingPrivilege, match=r"'tester'.*may not create databases: ALTER ROLE"):
        PostgresServerForTests(dsn).start()
    run(server.dsn, "alter role tester createdb")
    before = databases(server)
    with PostgresServerForTests(dsn) as given, PostgresServerForTests(dsn) as beside:
        assert given.embedded is None
        for one in (given, beside):
            clone = one.clone(one.template("orders", lambda dsn: None))
            assert run(clone, "select current_user") == [("tester",)]
        assert len(databases(server) - before) == 4
    assert databases(server) == before


def test_a_server_that_does_not_answer_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"\(given by dsn\) does not answer: start it, or leave dsn out"):
        PostgresServerForTests(f"host={tmp_path}").start()


def test_what_came_from_the_environment_is_named_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"host={tmp_path}")
    with pytest.raises(DatabaseUnavailable, match="leave DATABASE_URL out to use an embedded one"):
        PostgresServerForTests.from_environment().start()


def test_the_environment_chooses_the_server(server: PostgresServerForTests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", server.dsn)
    with PostgresServerForTests.from_environment() as given:
        assert (given.dsn, given.embedded) == (server.dsn, None)


@pytest.mark.thorough
def test_the_server_of_a_killed_test_run_is_removed_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = """
        import os, signal
        from aftercommit.testing.postgres import PostgresServerForTests
        PostgresServerForTests().start()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=100)
    assert killed.returncode == -signal.SIGKILL
    (abandoned,) = tmp_path.glob("aftercommit-test-*")
    with PostgresServerForTests(), PostgresServerForTests():
        assert not abandoned.exists()
        assert len(list(tmp_path.glob("aftercommit-test-*"))) == 2, "those of living runs stay"
    assert not list(tmp_path.glob("aftercommit-test-*"))


@pytest.mark.thorough
def test_a_server_that_a_test_has_stopped_is_not_taken_for_one_of_a_killed_run() -> None:
    with PostgresServerForTests() as server:
        dsn = server.clone(server.template("kept", lambda dsn: None))
        run(dsn, "create table kept as select 1 as one")
        assert server.embedded is not None
        server.embedded.stop("immediate")
        with PostgresServerForTests():
            assert server.embedded.cluster.data.exists()
        server.embedded.start()
        assert run(dsn, "select one from kept") == [(1,)]


@pytest.mark.thorough
def test_a_folder_that_is_just_being_made_is_left_to_its_maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has opened its lock and does not hold it yet."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "aftercommit-test-new"
    folder.mkdir()
    (folder / "lock").touch()
    with PostgresServerForTests():
        assert [each.name for each in folder.iterdir()] == ["lock"]
        assert (folder / "lock").read_text() == ""


@pytest.mark.thorough
def test_a_server_lies_in_memory_where_there_is_room_unless_a_place_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory, said = tmp_path / "memory", tmp_path / "said"
    for folder in (memory, said):
        folder.mkdir()
    monkeypatch.setattr(postgres, "_MEMORY", memory)
    monkeypatch.setattr(tempfile, "tempdir", str(said))

    def place() -> Path:
        with PostgresServerForTests() as started:
            assert started.embedded is not None
            return started.embedded.cluster.folder.parent

    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(postgres, "_ROOM_IN_MEMORY", 0)
    assert place() == memory
    monkeypatch.setenv("TMPDIR", str(said))
    assert place() == said
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(postgres, "_ROOM_IN_MEMORY", 1 << 60)
    assert place() == said
    assert [*memory.iterdir(), *said.iterdir()] == []


@pytest.mark.parametrize(
    "dsn",
    [
        "host=db.example port=6432 user=me dbname=mine password='p@ss/w%rd'",
        "postgresql://me:p%40ss%2Fw%25rd@db.example:6432/mine",
        "postgresql:///mine?host=/run/my%20sockets",
        "dbname=mine",
    ],
)
def test_another_database_keeps_all_other_parts_of_the_address(dsn: str) -> None:
    changed = with_database(dsn, "another one")
    assert changed.startswith("postgresql://")
    assert conninfo_to_dict(changed) == {**conninfo_to_dict(dsn), "dbname": "another one"}
