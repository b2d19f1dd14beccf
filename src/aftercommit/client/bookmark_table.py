"""Bookmarks in a table of SQLite or PostgreSQL: many readers, each under its name.

The table is in the reader's own database. No migration of an outbox creates or changes it.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql

from aftercommit.errors import BookmarkError, DeclarationError
from aftercommit.postgres.keepalive import connection_options

TABLE: Final = "feed_bookmark"
Result = TypeVar("Result")

_SQLITE_MAKE: Final = "create table if not exists feed_bookmark (name text primary key, cursor text not null)"
_SQLITE_LOAD: Final = "select cursor from feed_bookmark where name = ?"
_SQLITE_SAVE: Final = (
    "insert into feed_bookmark (name, cursor) values (?, ?) on conflict (name) do update set cursor = excluded.cursor"
)

_FIND: Final = sql.SQL("select to_regclass(%s) is not null")
_MAKE: Final = sql.SQL(
    "create table if not exists {table} "
    "(name text primary key, cursor text not null, saved_at timestamptz not null default now())"
)
_LOAD: Final = sql.SQL("select cursor from {table} where name = %s")
_SAVE: Final = sql.SQL(
    "insert into {table} (name, cursor) values (%s, %s) "
    "on conflict (name) do update set cursor = excluded.cursor, saved_at = now()"
)


class SqliteBookmark:
    """Kept in the table `feed_bookmark` of an SQLite file, under a name. Creates file and table if missing."""

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        self.path = os.fspath(path)
        self.name = _checked_name(name)

    def __str__(self) -> str:
        return f"{self.name!r} in {self.path}"

    def load(self) -> str | None:
        """The saved cursor."""
        with self._connected() as connection:
            row = connection.execute(_SQLITE_LOAD, (self.name,)).fetchone()
        return None if row is None else str(row[0])

    def save(self, cursor: str) -> None:
        """Save the cursor, flushed to disk."""
        with self._connected() as connection, connection:
            connection.execute(_SQLITE_SAVE, (self.name, cursor))

    def close(self) -> None:
        """Do nothing: each call has its own connection, because an SQLite connection belongs to one thread."""

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=10)) as connection:
                connection.execute(_SQLITE_MAKE)
                yield connection
        except sqlite3.Error as problem:
            raise BookmarkError(f"the bookmark {self}: {problem}") from problem


class PostgresBookmark:
    """Kept in a PostgreSQL table, under a name, over one connection that is reopened when it breaks."""

    def __init__(self, dsn: str, name: str, *, table: str = TABLE, create: bool = True) -> None:
        """`table` may include its schema. Without `create`, the table (name text primary key, cursor text, saved_at
        timestamptz) must exist."""
        self.name = _checked_name(name)
        self.table = table
        parts = table.split(".")
        if not all(parts) or len(parts) > 2:
            raise DeclarationError(f"table={table!r} is not the name of a table: pass 'table' or 'schema.table'")
        self._dsn = dsn
        self._create = create
        self._identifier = sql.Identifier(*parts)
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{self.name!r} in table {self.table}"

    def load(self) -> str | None:
        """The saved cursor."""
        statement = _LOAD.format(table=self._identifier)
        row = self._run(lambda connection: connection.execute(statement, (self.name,)).fetchone())
        return None if row is None else str(row[0])

    def save(self, cursor: str) -> None:
        """Save the cursor, committed."""
        statement = _SAVE.format(table=self._identifier)
        self._run(lambda connection: connection.execute(statement, (self.name, cursor)))

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self._lock:
            self._drop()

    def _run(self, work: Callable[[psycopg.Connection[Any]], Result]) -> Result:
        with self._lock:
            try:
                return self._again_if_broken(work)
            except psycopg.Error as problem:
                self._drop()
                raise BookmarkError(f"the bookmark {self}: {problem}") from problem

    def _again_if_broken(self, work: Callable[[psycopg.Connection[Any]], Result]) -> Result:
        if self._connection is not None:
            try:
                return work(self._connection)
            except psycopg.OperationalError:
                # The server may have closed the idle connection long ago. All statements can be repeated.
                self._drop()
        options = connection_options(self._dsn)
        self._connection = psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None, **options)
        if self._create:
            self._make(self._connection)
        return work(self._connection)

    def _make(self, connection: psycopg.Connection[Any]) -> None:
        # Looked up first: a role that may use the table need not be allowed to create one.
        found = connection.execute(_FIND, (self._identifier.as_string(connection),)).fetchone()
        if found is not None and not found[0]:
            connection.execute(_MAKE.format(table=self._identifier))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _checked_name(name: str) -> str:
    if not name or "\0" in name:
        raise DeclarationError(f"name={name!r} is not the name of a bookmark: give each reader a name of its own")
    return name
