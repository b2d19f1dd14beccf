"""The bot's state in a PostgreSQL schema. An advisory lock, which ends with its connection, keeps other bots out."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql

from aftercommit.contrib.telegram.settings import STATE
from aftercommit.contrib.telegram.states.sql import LOOK, PATIENCE, Rows, Run, outstanding, statements
from aftercommit.errors import DatabaseError, DatabaseUnavailable, StateError, StateTaken, StateUnavailable
from aftercommit.postgres.commits import committed
from aftercommit.postgres.database import Database

Result = TypeVar("Result")
SCHEMA: Final = "aftercommit_bot"
_PARAMETER: Final = re.compile(r":(\w+)")


def has_state(dsn: str) -> bool:
    """Whether this database has a bot's state; False if it does not answer. Changes nothing."""
    try:
        with Database(dsn, application_name="aftercommit bot").connect_sync() as connection:
            row = connection.execute("select to_regclass(%s) is not null", [f"{SCHEMA}.applied"]).fetchone()
    except (DatabaseError, psycopg.Error):
        return False
    return row is not None and bool(row[0])


class PostgresDriver:
    """One database with one connection, which is replaced when it breaks."""

    def __init__(self, dsn: str, *, schema: str = SCHEMA, lock_wait_seconds: float = PATIENCE) -> None:
        """`lock_wait_seconds` is how long to wait for the lock of a bot that is ending."""
        self._database = Database(dsn, application_name="aftercommit bot")
        self._schema = schema
        self._lock_wait_seconds = lock_wait_seconds
        self._statements = {name: _PARAMETER.sub(r"%(\1)s", text).encode() for name, text in statements(schema).items()}
        self._connection: psycopg.Connection[Any] | None = None
        self._locked = False
        self._turn = threading.RLock()

    @property
    def where(self) -> str:
        """Schema and database, without the password."""
        return f"schema {self._schema} of {self._database.safe_dsn}"

    def work(self, function: Callable[[Run], Result]) -> Result:
        """Run in one transaction; once more on a new connection if the old one was broken."""
        with self._turn:
            if self._connection is not None:
                try:
                    return self._attempt(function)
                except psycopg.OperationalError:
                    self._drop()
                except psycopg.Error as problem:
                    raise self._unavailable(problem) from problem
            try:
                return self._attempt(function)
            except psycopg.Error as problem:
                # Also for refusals: a privilege can be granted, a standby promoted, a table restored.
                self._drop()
                raise self._unavailable(problem) from problem

    def one(self, statement: str, /, **parameters: Any) -> Rows:
        """In a transaction, so that a failed COMMIT is noticed."""
        return self.work(lambda run: run(statement, **parameters))

    def version(self) -> int:
        """The version in the table `applied`; 0 without that table."""

        def work(run: Run) -> int:
            connection = self._connected()
            there = connection.execute("select to_regclass(%s) is not null", [f"{self._schema}.applied"]).fetchone()
            return self._applied(connection) if there is not None and there[0] else 0

        return self.work(work)

    def prepare(self, versions: Mapping[int, str]) -> None:
        """Apply the missing versions."""

        def work(run: Run) -> None:
            connection = self._connected()
            name = sql.Identifier(self._schema)
            # The command line may do the same at this moment.
            connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 1))", [self._schema])
            if connection.execute("select 1 from pg_namespace where nspname = %s", [self._schema]).fetchone() is None:
                connection.execute(sql.SQL("create schema {}").format(name))
            connection.execute(
                sql.SQL("create table if not exists {}.applied (version bigint primary key)").format(name)
            )
            for number, text in outstanding(versions, self._applied(connection), self.where):
                named = text.replace("{schema}", self._schema).replace("{index}", "")
                connection.execute(named.replace("{failure}", f"{self._schema}.failure").encode())
                connection.execute(sql.SQL("insert into {}.applied values (%s)").format(name), [number])

        try:
            self.work(work)
        except StateUnavailable as problem:
            if not isinstance(problem.__cause__, psycopg.errors.InsufficientPrivilege):
                raise
            raise StateError(
                f"cannot create the bot's state in {self.where}: {problem.__cause__.diag.message_primary}. Create the "
                f"schema {self._schema} and grant the user usage and create on it"
            ) from problem

    def lock(self) -> None:
        """Take a session-level advisory lock."""
        with self._turn:
            self._locked = False
            try:
                self._take_lock(self._connected())
            except psycopg.Error as problem:
                self._drop()
                raise self._unavailable(problem) from problem
            except StateError:
                self._drop()
                raise
            self._locked = True

    def is_taken(self) -> bool:
        """Try a shared lock, which does not disturb other checks, and release it at once."""

        def work(run: Run) -> bool:
            # Transaction-level: it always ends with the transaction.
            asked = "select pg_try_advisory_xact_lock_shared(hashtextextended(%s, 2))"
            row = self._connected().execute(asked, [self._schema]).fetchone()
            return row is None or not row[0]

        return self.work(work)

    def close(self) -> None:
        """Release the lock and close the connection."""
        with self._turn:
            if self._locked and self._connection is not None:
                # Closing releases it too, but only when the server notices.
                with contextlib.suppress(psycopg.Error):
                    self._connection.execute("select pg_advisory_unlock(hashtextextended(%s, 2))", [self._schema])
            self._locked = False
            self._drop()

    def _applied(self, connection: psycopg.Connection[Any]) -> int:
        asked = sql.SQL("select max(version) from {}.applied").format(sql.Identifier(self._schema))
        row = connection.execute(asked).fetchone()
        return int((row[0] if row is not None else None) or 0)

    def _attempt(self, function: Callable[[Run], Result]) -> Result:
        connection = self._connected()
        with committed(connection):
            return function(self._run)

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            try:
                connection = self._database.connect_sync()
            except DatabaseError as problem:
                raise self._not_reached(problem) from problem
            if self._locked:
                # The lock ended with the old connection; another bot may have it now.
                try:
                    self._take_lock(connection)
                except BaseException:
                    connection.close()
                    raise
            self._connection = connection
        return self._connection

    def _take_lock(self, connection: psycopg.Connection[Any]) -> None:
        backend = connection.execute("select pg_backend_pid()").fetchone()
        if backend is None or backend[0] != connection.info.backend_pid:
            raise StateError(
                f"{self.where} is behind a connection pooler, where a lock does not hold: use a direct address"
            )
        deadline = time.monotonic() + self._lock_wait_seconds
        while not self._try_lock(connection):
            if time.monotonic() >= deadline:
                raise StateTaken(f"another bot uses the state in {self.where}: stop it, or give this bot its own state")
            time.sleep(LOOK)

    def _try_lock(self, connection: psycopg.Connection[Any]) -> bool:
        row = connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 2))", [self._schema]).fetchone()
        return row is not None and bool(row[0])

    def _run(self, statement: str, /, **parameters: Any) -> Rows:
        storable = {name: _storable(value) for name, value in parameters.items()}
        cursor = self._connected().execute(self._statements[statement], storable)
        return cursor.fetchall() if cursor.description is not None else []

    def _unavailable(self, problem: Exception) -> StateUnavailable:
        return StateUnavailable(f"the bot's state in {self.where}: {' '.join(str(problem).split())}")

    def _not_reached(self, problem: DatabaseError) -> StateError:
        """StateError at the start; StateUnavailable, which is retried, once the bot has worked here."""
        said = re.sub(r" Is the server running[^?]*\?", "", " ".join(str(problem.__cause__ or problem).split()))
        remedy = f"check {STATE} (or --state), user and password, and that the server is running"
        text = f"cannot reach the bot's state in {self.where}: {said}; {remedy}"
        passes = self._locked or isinstance(problem, DatabaseUnavailable)
        return StateUnavailable(text) if passes else StateError(text)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _storable(value: Any) -> Any:
    """Replace characters that PostgreSQL cannot store: a record that is always refused would block its chat."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
