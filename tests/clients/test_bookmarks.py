"""Bookmarks keep a place: for many readers, through crashes, and they say what is wrong when they cannot."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from aftercommit.client import Bookmark, FileBookmark, MemoryBookmark, PostgresBookmark, SqliteBookmark
from aftercommit.errors import BookmarkError, DeclarationError

CURSOR = "2025-11-12T10:30:05.123Z#042"


@pytest.fixture(params=["memory", "file", "sqlite", "postgres"])
def bookmark(request: pytest.FixtureRequest, tmp_path: Path) -> Bookmark:
    match request.param:
        case "memory":
            return MemoryBookmark()
        case "file":
            return FileBookmark(tmp_path / "place")
        case "sqlite":
            return SqliteBookmark(tmp_path / "places.db", "reader")
        case _:
            return PostgresBookmark(request.getfixturevalue("database"), "reader")


def test_a_place_is_kept_and_replaced(bookmark: Bookmark):
    assert bookmark.load() is None
    bookmark.save(CURSOR)
    assert bookmark.load() == CURSOR
    bookmark.save("2025-11-12T10:30:06.000Z#1043")
    bookmark.close()
    assert bookmark.load() == "2025-11-12T10:30:06.000Z#1043"
    bookmark.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_many_readers_share_a_table_under_their_names(kind: str, tmp_path: Path, request: pytest.FixtureRequest):
    make: Callable[[str], Bookmark]
    if kind == "sqlite":

        def make(name: str) -> Bookmark:
            return SqliteBookmark(tmp_path / "places.db", name)
    else:
        dsn = request.getfixturevalue("database")

        def make(name: str) -> Bookmark:
            return PostgresBookmark(dsn, name)

    first, second = make("first"), make("second")
    first.save("1")
    second.save("2")
    assert (first.load(), second.load()) == ("1", "2")
    first.close()
    second.close()


def test_a_file_that_is_no_bookmark_is_not_guessed_at(tmp_path: Path):
    path = tmp_path / "place"
    for content in (b"", b"\n", b"\xff\xfe", b"two\nlines\n", b"x" * 5000):
        path.write_bytes(content)
        with pytest.raises(BookmarkError, match="remove the file to begin anew"):
            FileBookmark(path).load()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(BookmarkError, match="nowhere"):
        FileBookmark(tmp_path / "nowhere" / "place").save(CURSOR)


def test_a_failed_save_leaves_the_old_place_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bookmark = FileBookmark(tmp_path / "place")
    bookmark.save("1")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BookmarkError, match="No space left"):
        bookmark.save("2")
    assert bookmark.load() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


@pytest.mark.thorough
def test_a_file_holds_an_old_place_or_a_new_one_when_its_writer_is_killed(tmp_path: Path):
    program = textwrap.dedent("""
        import sys
        from aftercommit.client.bookmark import FileBookmark
        bookmark = FileBookmark(sys.argv[1])
        number = 0
        while True:
            number += 1
            bookmark.save(f"{number}" * 50)
            print(number, flush=True)
    """)
    path = tmp_path / "place"
    for lines in (1, 7, 20):
        writer = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(lines)][-1]
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait()
        writer.stdout.close()
        # A number whose line was cut off by the kill was written all the same.
        last = int(rest[-1]) if rest else said
        assert FileBookmark(path).load() in {f"{number}" * 50 for number in range(last, last + 2)}


def test_an_sqlite_file_that_is_none_is_named(tmp_path: Path):
    path = tmp_path / "places.db"
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 10)
    with pytest.raises(BookmarkError, match=r"places\.db: file is not a database"):
        SqliteBookmark(path, "reader").load()


def test_a_connection_that_the_server_ended_is_made_anew(database: str):
    bookmark = PostgresBookmark(database, "reader")
    bookmark.save("1")
    with psycopg.connect(database, autocommit=True) as other:
        other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    bookmark.save("2")
    assert bookmark.load() == "2"
    bookmark.close()


def test_a_table_may_be_given(database: str):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create schema mine")
        connection.execute(
            'create table mine."Places" (name text primary key, cursor text not null, saved_at timestamptz)'
        )
    bookmark = PostgresBookmark(database, "reader", table="mine.Places", create=False)
    bookmark.save(CURSOR)
    bookmark.close()
    with psycopg.connect(database) as connection:
        assert connection.execute('select name, cursor from mine."Places"').fetchall() == [("reader", CURSOR)]


def test_a_table_that_is_missing_and_must_not_be_made_is_an_error(database: str):
    bookmark = PostgresBookmark(database, "reader", create=False)
    with pytest.raises(BookmarkError, match="feed_bookmark"):
        bookmark.load()
    bookmark.close()


def test_a_database_that_is_not_there_is_an_error():
    with pytest.raises(BookmarkError, match="'reader' in table feed_bookmark"):
        PostgresBookmark("postgresql://127.0.0.1:9/none", "reader").load()


@pytest.mark.parametrize("table", ["", "a.b.c", "a."])
def test_a_name_of_no_table_is_refused(table: str):
    with pytest.raises(DeclarationError, match="is not the name of a table"):
        PostgresBookmark("postgresql://h/d", "reader", table=table)


def test_a_reader_needs_a_name():
    with pytest.raises(DeclarationError, match="is not the name of a bookmark"):
        SqliteBookmark("places.db", "")
