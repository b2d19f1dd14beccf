"""PostgreSQL for tests: databases cloned from a template in milliseconds, on your server or an embedded one.

    with PostgresServerForTests.from_environment() as server:
        server.template("orders", prepare=create_my_tables)
        dsn = server.clone("orders")

It changes and drops only databases that it has created.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, LiteralString, Self
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from aftercommit.embedded import EmbeddedPostgres
from aftercommit.embedded.folder_lock import FolderLock
from aftercommit.embedded.postmaster import find_postmaster, kill_postmaster
from aftercommit.embedded.server import DEFAULT_VERSION
from aftercommit.errors import DatabaseError, DatabaseUnavailable, EmbeddedPostgresError, MissingPrivilege
from aftercommit.outbox import Outbox

# Test data need not survive a crash of the machine, so nothing waits for the disk. Otherwise it is as in production:
# autovacuum is on, and synchronous_commit too, so that a crash of the server process loses no commit.
SETTINGS_FOR_TESTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fsync": "off",
        "full_page_writes": "off",
        "max_connections": "200",
        "shared_buffers": "64MB",
        # Small, because the write-ahead log may be in memory, too.
        "min_wal_size": "64MB",
        "max_wal_size": "256MB",
    }
)
_FOLDER_PREFIX: Final = "aftercommit-test-"
# Renamed before its removal, so that another run does not take it for an abandoned one.
_REMOVED_PREFIX: Final = "aftercommit-removed-"
_MEMORY: Final = Path("/dev/shm")
_ROOM_IN_MEMORY: Final = 4 << 30


class PostgresServerForTests:
    """A server for the databases of one test run.

    With `dsn` it is your server, whose user needs CREATEDB. Without, it is an embedded one in a temporary folder: in
    `TMPDIR` if that is set, in memory (`/dev/shm`) if 4 GB are free there, or where temporary files are. Each
    pytest-xdist worker can have its own: an embedded server starts in less than a second, and on a shared one database
    names include a random id of the run.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        version: int = DEFAULT_VERSION,
        settings: Mapping[str, str] = SETTINGS_FOR_TESTS,
        given_by: str = "dsn",
    ) -> None:
        """`given_by` tells error messages where the DSN comes from."""
        self._external_dsn = dsn
        self._given_by = given_by
        self._version = version
        self._settings = settings
        self._embedded: EmbeddedPostgres | None = None
        self._run_lock: FolderLock | None = None
        self._templates: dict[str, str] = {}
        self._outbox_templates: dict[tuple[str, object], str] = {}
        self._created: set[str] = set()
        self._run = secrets.token_hex(4)
        self._counter = 0

    @classmethod
    def from_environment(cls, *, version: int = DEFAULT_VERSION) -> Self:
        """The server of `DATABASE_URL` if that is set, otherwise an embedded one."""
        return cls(os.environ.get("DATABASE_URL") or None, version=version, given_by="DATABASE_URL")

    @property
    def embedded(self) -> EmbeddedPostgres | None:
        """The embedded server, for tests that restart or kill it; None if you gave a DSN."""
        return self._embedded

    @property
    def dsn(self) -> str:
        """The connection URI of the server."""
        if self._external_dsn is not None:
            return self._external_dsn
        return self._running().dsn

    def start(self) -> None:
        """Start the embedded server, or check that the user of the given one may create databases."""
        if self._external_dsn is not None:
            self._check_may_create_databases()
        elif self._embedded is None:
            _remove_abandoned_servers()
            folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=_place_of_servers()))
            # Besides the server's own lock, which is free while a test has stopped the server.
            self._run_lock = _run_lock(folder)
            self._run_lock.acquire()
            self._embedded = EmbeddedPostgres(folder, version=self._version, settings=self._settings)
            self._embedded.start()

    def stop(self) -> None:
        """Remove the databases of this run, or the embedded server with its folder."""
        if self._embedded is not None:
            self._embedded.stop("immediate")
            _remove(self._embedded.cluster.folder)
            self._embedded = None
            if self._run_lock is not None:
                self._run_lock.release()
        else:
            for database in sorted(self._created):
                self._drop_database(database)
        self._created.clear()
        self._templates.clear()
        self._outbox_templates.clear()

    def template(self, name: str, prepare: Callable[[str], None]) -> str:
        """Make a template database, once per run; `prepare` gets its connection URI. Returns the name."""
        if name in self._templates:
            return name
        database = self._create_database("create database {}")
        try:
            prepare(self._dsn_for(database))
        except BaseException:
            self._drop_database(database)
            raise
        # A session that `prepare` has left open would make every clone fail.
        self._execute("alter database {} with allow_connections false", database)
        with self._connect() as connection:
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s", [database]
            )
        self._templates[name] = database
        return name

    def template_for(self, outbox: Outbox, prepare: Callable[[str], None] | None = None) -> str:
        """Make a template with your tables and the outbox's, once for each outbox and `prepare`. Returns its name.

        `prepare` gets the connection URI of an empty database. It may migrate the outbox itself, as an Alembic or
        Django migration does; otherwise the outbox is migrated afterwards.
        """
        # A function without a closure is identified by its code: a fixture may define it again for every test.
        identity = getattr(prepare, "__code__", prepare) if getattr(prepare, "__closure__", None) is None else prepare
        key = (repr(outbox.shape), identity)
        if key not in self._outbox_templates:
            name = f"outbox {outbox.schema} {len(self._outbox_templates) + 1}"
            self._outbox_templates[key] = self.template(name, lambda dsn: _prepare_outbox(dsn, outbox, prepare))
        return self._outbox_templates[key]

    def clone(self, template: str) -> str:
        """Make a new database from a template; returns its connection URI."""
        if template not in self._templates:
            known = ", ".join(sorted(self._templates)) or "none"
            raise DatabaseError(f"there is no template {template!r} (templates: {known}): make it with template()")
        # With fsync off, the checkpoints around a copy of files cost less than writing the database to the WAL.
        # Otherwise it is the other way round.
        never_waits = self._embedded is not None and self._settings.get("fsync") == "off"
        how: LiteralString = " strategy file_copy" if never_waits else ""
        database = self._create_database("create database {} template {}" + how, self._templates[template])
        return self._dsn_for(database)

    def drop(self, dsn: str) -> None:
        """Drop a cloned database and end its sessions."""
        database = str(conninfo_to_dict(dsn).get("dbname"))
        if database not in self._created:
            raise DatabaseError(f"database {database!r} is not dropped: this test run has not created it")
        self._drop_database(database)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _name(self) -> str:
        given = "" if self._external_dsn is None else f" (given by {self._given_by})"
        return f"the server for tests{given}"

    @property
    def _remedy(self) -> str:
        if self._external_dsn is None:
            return ""
        return f": start it, or leave {self._given_by} out to use an embedded one"

    def _running(self) -> EmbeddedPostgres:
        if self._embedded is None:
            raise DatabaseError("the server for tests is not started: call start() first")
        return self._embedded

    def _dsn_for(self, database: str) -> str:
        if self._external_dsn is not None:
            return with_database(self._external_dsn, database)
        return self._running().dsn_for(database)

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        try:
            return psycopg.connect(self.dsn, autocommit=True)
        except psycopg.OperationalError as problem:
            raise DatabaseUnavailable(f"{self._name} does not answer{self._remedy} ({_one_line(problem)})") from problem

    def _execute(self, statement: LiteralString, *databases: str) -> None:
        with self._connect() as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, databases)))

    def _create_database(self, statement: LiteralString, *templates: str) -> str:
        self._counter += 1
        database = f"test_{self._run}_{self._counter}"
        self._execute(statement, database, *templates)
        self._created.add(database)
        return database

    def _drop_database(self, database: str) -> None:
        self._execute("drop database if exists {} with (force)", database)
        self._created.discard(database)

    def _check_may_create_databases(self) -> None:
        with self._connect() as connection:
            row = connection.execute(
                "select current_user, rolcreatedb or rolsuper from pg_roles where rolname = current_user"
            ).fetchone()
        if row is None or not row[1]:
            user = "the user" if row is None else f"user {row[0]!r}"
            raise MissingPrivilege(
                f"{user} of {self._name} may not create databases: ALTER ROLE … CREATEDB, or leave {self._given_by} "
                "out to use an embedded one"
            )


def _one_line(problem: psycopg.Error) -> str:
    return " ".join(str(problem).split())


def _prepare_outbox(dsn: str, outbox: Outbox, prepare: Callable[[str], None] | None) -> None:
    if prepare is not None:
        prepare(dsn)
    with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as connection:
        outbox.migrate(connection)


def with_database(dsn: str, database: str) -> str:
    """The DSN of another database on the same server, as a URI, which every driver accepts."""
    options = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    options.pop("dbname", None)
    user, password = options.pop("user", None), options.pop("password", None)
    credentials = "" if user is None else quote(user, safe="")
    if password is not None:
        credentials += f":{quote(password, safe='')}"
    at = f"{credentials}@" if credentials else ""
    query = f"?{urlencode(options, quote_via=quote, safe='/')}" if options else ""
    return f"postgresql://{at}/{quote(database, safe='')}{query}"


def _place_of_servers() -> Path:
    """In memory if possible: a database per test creates and removes hundreds of files."""
    with contextlib.suppress(OSError):
        if not os.environ.get("TMPDIR") and shutil.disk_usage(_MEMORY).free >= _ROOM_IN_MEMORY:
            return _MEMORY
    return Path(tempfile.gettempdir())


def _run_lock(folder: Path) -> FolderLock:
    """The lock that a test run holds while it uses the folder."""
    return FolderLock(folder / "run", "test run")


def _remove(folder: Path) -> None:
    removed = folder.with_name(folder.name.replace(_FOLDER_PREFIX, _REMOVED_PREFIX, 1))
    folder.rename(removed)
    shutil.rmtree(removed)


def _remove_abandoned_servers() -> None:
    """Remove the servers of test runs that were killed: nothing holds the lock of their folder."""
    places = [Path(tempfile.gettempdir()), _MEMORY]
    for folder in (each for place in places for each in place.glob(f"{_FOLDER_PREFIX}*")):
        # Folders of other users, folders that another run removes right now, and servers that do not end in time.
        with contextlib.suppress(OSError, EmbeddedPostgresError):
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    # A folder without data is being made right now: taking its locks would make that run fail.
    if not any(folder.glob("postgres-*")):
        return
    with contextlib.ExitStack() as held:
        for lock in (_run_lock(folder), FolderLock(folder / "lock", "removal")):
            if not lock.acquire():
                return
            held.callback(lock.release)
        for data_folder in folder.glob("postgres-*"):
            server = find_postmaster(data_folder)
            if server is not None:
                kill_postmaster(server.pid, timeout=10)
                shutil.rmtree(server.socket_folder)
        _remove(folder)
