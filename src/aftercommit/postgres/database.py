"""Connects our own processes to PostgreSQL, also through a pooler in transaction mode; errors name a remedy.

Only the optional LISTEN connection needs a session of its own.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, Final, NoReturn, cast
from weakref import WeakSet

import psycopg
from psycopg import conninfo
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from aftercommit.errors import DatabaseError, DatabaseRefused, DatabaseUnavailable, DeclarationError, MissingPrivilege
from aftercommit.postgres.bounded import BoundedConnection
from aftercommit.postgres.keepalive import connection_options
from aftercommit.postgres.shape import Shape
from aftercommit.text import OF_APP

_NO_DATABASE_URL = "it should look like postgresql://user:password@host:5432/name"
# Errors that waiting does not cure. libpq has no SQLSTATE for a failed connection, so we compare its message. A server
# with another language counts as unreachable, which only means that we go on trying.
_REFUSALS = re.compile(
    r'authentication failed|no password supplied|(?:role|database) "[^"]*" does not exist'
    r"|is not permitted to log in|no pg_hba\.conf entry|pg_hba\.conf rejects"
    r"|invalid (?:\S+ )?value|invalid port number|bad value for|could not match \d+"
)
_NO_RIGHT_TO_CONNECT = "permission denied for database"
_FAILED = (psycopg.OperationalError, psycopg.ProgrammingError)


# Only `execute(…, prepare=True)` prepares a statement: a plan that was made while the outbox was empty can be bad when
# it is full.
WHEN_TOLD: Final = 1 << 30
# Longer than any statement of a reader takes, and shorter than people wait.
ANSWERS_WITHIN: Final = 10.0
# libpq rounds a shorter connect_timeout up to this.
_LEAST_TO_CONNECT: Final = 2


@contextmanager
def _closed_unless_ready(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> Iterator[None]:
    """Close the connection if the block fails or is cancelled."""
    try:
        yield
    except BaseException:
        connection.pgconn.finish()
        raise


# Whether the connection is direct (a pooler gives clients a pid of its own), the schemas that are searched in order,
# and those that the search_path names.
# A direct session turns the just-in-time compiler off. Our statements are short and many; if the planner overestimates
# one, PostgreSQL would compile it every time: an append took up to two seconds on a busy machine.
_SESSION: Final = (
    "select pg_catalog.pg_backend_pid() operator(pg_catalog.=) %(pid)s, "
    "pg_catalog.current_schemas(true)::pg_catalog.text[], pg_catalog.current_schemas(false)::pg_catalog.text[], "
    "case when pg_catalog.pg_backend_pid() operator(pg_catalog.=) %(pid)s "
    "then pg_catalog.set_config('jit', 'off', false) end"
)
_BUILT_INS: Final = "pg_catalog"


def _shadowing(row: Any) -> list[str]:
    """Schemas that are searched before pg_catalog, so that their functions and operators hide the built-in ones.

    That happens only if the search_path names pg_catalog, and not first. PostgreSQL looks for no functions in temporary
    schemas.
    """
    searched = takewhile(lambda schema: schema != _BUILT_INS, row[1])
    return [schema for schema in searched if not schema.startswith("pg_temp")]


def _with_built_ins_first(dsn: str, row: Any) -> dict[str, str]:
    """Options that set the search_path without pg_catalog, which PostgreSQL then searches first. Set at the start of
    the session, so that RESET does not undo it.
    """
    named = ",".join('"' + schema.replace('"', '""') + '"' for schema in row[2] if schema != _BUILT_INS)
    escaped = re.sub(r"([\\\s])", r"\\\1", named)
    given = conninfo.conninfo_to_dict(dsn).get("options") or ""
    return {"options": f"{given} -c search_path={escaped}".strip()}


def _refuse_shadowed(schemas: list[str], dsn: str, problem: BaseException | None = None) -> NoReturn:
    raise DatabaseRefused(
        f"the search_path of {safe(dsn)} names {', '.join(schemas)} before pg_catalog, so functions there may hide "
        "built-in ones, and a pooler keeps us from changing it: remove pg_catalog from the search_path of the role or "
        "database (PostgreSQL then searches it first)"
    ) from problem


# Kept here and not on the connection, which handlers may change.
_DIRECT: Final[WeakSet[psycopg.BaseConnection[Any]]] = WeakSet()


def is_direct(connection: psycopg.BaseConnection[Any]) -> bool:
    """Whether a connection made here leads to the server itself, not to a pooler, so that its session is our own."""
    return connection in _DIRECT


def prepare_as_told(connection: psycopg.BaseConnection[Any]) -> None:
    """Prepare statements that ask for it, on direct connections; behind a pooler, prepare none."""
    connection.prepare_threshold = WHEN_TOLD if is_direct(connection) else None


def speaks_iso(connection: psycopg.BaseConnection[Any]) -> bool:
    """Whether the session sends times in ISO format; if not, execute SPEAK_ISO."""
    return (connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO")


# A session setting works behind a pooler, too: DateStyle is one of the settings that servers report and poolers keep
# for each client. A pooler may refuse `options` in a DSN.
SPEAK_ISO: Final = "set datestyle to iso"
"""Sets the date style to ISO, which psycopg needs; execute it if `speaks_iso` is false."""


# In binary, too, JSON is its text.
_BYTES: Final = cast("type[Loader]", psycopg.adapters.get_loader(psycopg.adapters.types["bytea"].oid, Format.BINARY))


class RawJson(Loader):
    """Loads JSON columns as bytes, which the codec decodes."""

    def load(self, data: Buffer) -> bytes:
        """Copy the bytes."""
        return bytes(data)


class Database:
    """A DSN, and how to connect to it. `listen_dsn` bypasses a pooler in transaction mode for LISTEN.

    `answer_timeout` is how many seconds a feed, or another bounded connection, waits for an answer before the database
    counts as hanging. Relays and consumers have no such limit.
    """

    def __init__(
        self,
        dsn: str,
        *,
        listen_dsn: str | None = None,
        application_name: str = "aftercommit",
        answer_timeout: float = ANSWERS_WITHIN,
    ) -> None:
        """Checks the DSN; connects to nothing yet."""
        if not 0 < answer_timeout < math.inf:
            raise DeclarationError(f"answer_timeout={answer_timeout} is not valid: give seconds above 0")
        self.dsn = checked(dsn)
        self.listen_dsn = checked(listen_dsn, "listen_dsn") if listen_dsn is not None else self.dsn
        self.answer_timeout = answer_timeout
        self._application_name = application_name

    def answering_within(self, seconds: float) -> "Database":
        """The same database with another `answer_timeout`."""
        return Database(
            self.dsn, listen_dsn=self.listen_dsn, application_name=self._application_name, answer_timeout=seconds
        )

    @property
    def safe_dsn(self) -> str:
        """The DSN without its password, for messages."""
        return safe(self.dsn)

    async def connect(
        self, *, autocommit: bool = True, listen: bool = False, bounded: bool = False
    ) -> psycopg.AsyncConnection[Any]:
        """A new asyncio connection; DatabaseUnavailable if waiting may help, otherwise DatabaseRefused.

        A `bounded` one is closed if a statement takes longer than `answer_timeout` or its task is cancelled.
        """
        dsn = self.listen_dsn if listen else self.dsn
        try:
            connection, session = await self._with_built_ins(dsn, bounded)
            with _closed_unless_ready(connection):
                if not speaks_iso(connection):
                    await connection.execute(SPEAK_ISO)
                if not listen and session[0]:
                    _DIRECT.add(connection)
                    prepare_as_told(connection)
                await connection.set_autocommit(autocommit)
        except _FAILED as problem:
            raise not_connected(dsn, problem) from problem
        connection.adapters.register_loader("json", RawJson)
        connection.adapters.register_loader("json", _BYTES)
        return connection

    def connect_sync(self, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        """A new blocking connection, with the same errors."""
        try:
            connection, session = self._with_built_ins_sync()
            with _closed_unless_ready(connection):
                if not speaks_iso(connection):
                    connection.execute(SPEAK_ISO)
                if session[0]:
                    _DIRECT.add(connection)
                    prepare_as_told(connection)
                connection.autocommit = autocommit
        except _FAILED as problem:
            raise not_connected(self.dsn, problem) from problem
        return connection

    async def _with_built_ins(self, dsn: str, bounded: bool) -> tuple[psycopg.AsyncConnection[Any], Any]:
        """A connection on which no schema hides built-in functions, and the row of `_SESSION`."""
        connection, session = await self._connected(dsn, bounded, {})
        if not (hidden_by := _shadowing(session)):
            return connection, session
        connection.pgconn.finish()
        try:
            connection, session = await self._connected(dsn, bounded, _with_built_ins_first(dsn, session))
        except _FAILED as problem:
            _refuse_shadowed(hidden_by, dsn, problem)
        if _shadowing(session):
            connection.pgconn.finish()
            _refuse_shadowed(hidden_by, dsn)
        return connection, session

    def _with_built_ins_sync(self) -> tuple[psycopg.Connection[Any], Any]:
        connection, session = self._connected_sync({})
        if not (hidden_by := _shadowing(session)):
            return connection, session
        connection.pgconn.finish()
        try:
            connection, session = self._connected_sync(_with_built_ins_first(self.dsn, session))
        except _FAILED as problem:
            _refuse_shadowed(hidden_by, self.dsn, problem)
        if _shadowing(session):
            connection.pgconn.finish()
            _refuse_shadowed(hidden_by, self.dsn)
        return connection, session

    async def _connected(
        self, dsn: str, bounded: bool, options: dict[str, str]
    ) -> tuple[psycopg.AsyncConnection[Any], Any]:
        if bounded:
            patience = {"connect_timeout": connect_timeout(self.answer_timeout)}
            parameters = {**self._parameters(dsn, **patience), **options}
            limited = await BoundedConnection.connect(dsn, autocommit=True, **parameters)
            limited.answer_timeout = self.answer_timeout
            connection: psycopg.AsyncConnection[Any] = limited
        else:
            parameters = {**self._parameters(dsn), **options}
            connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, **parameters)
        with _closed_unless_ready(connection):
            return connection, await _session(connection)

    def _connected_sync(self, options: dict[str, str]) -> tuple[psycopg.Connection[Any], Any]:
        parameters = {**self._parameters(self.dsn), **options}
        connection = psycopg.Connection.connect(self.dsn, autocommit=True, **parameters)
        with _closed_unless_ready(connection):
            return connection, connection.execute(_SESSION, {"pid": connection.info.backend_pid}).fetchone()

    def _parameters(self, dsn: str, **others: Any) -> dict[str, Any]:
        # Server-side prepared statements do not survive transaction pooling.
        return {"prepare_threshold": None, **connection_options(dsn, application_name=self._application_name, **others)}


async def _session(connection: psycopg.AsyncConnection[Any]) -> Any:
    return await (await connection.execute(_SESSION, {"pid": connection.info.backend_pid})).fetchone()


def connect_timeout(answer_timeout: float) -> int:
    """The libpq connect_timeout, in seconds, for an answer timeout."""
    return min(max(_LEAST_TO_CONNECT, math.ceil(answer_timeout)), int(ANSWERS_WITHIN))


def privilege(user: str, shape: Shape, problem: psycopg.Error) -> MissingPrivilege:
    """The error for a database user without a privilege."""
    return MissingPrivilege(
        f"database user {user!r} lacks a privilege in schema {shape.schema!r}: "
        f"{problem.diag.message_primary or problem}. `aftercommit migrate grants {user} {OF_APP}` prints what to grant"
    )


def read_only(problem: psycopg.errors.ReadOnlySqlTransaction) -> DatabaseRefused:
    """The error for a read-only session."""
    return DatabaseRefused(
        f"this session is read-only: {problem.diag.message_primary}. Connect to the primary "
        "(target_session_attrs=primary in DATABASE_URL), or, if default_transaction_read_only is the cause: "
        "alter role … set default_transaction_read_only = off"
    )


def safe(dsn: str) -> str:
    """A DSN without its passwords."""
    parts = conninfo.conninfo_to_dict(dsn)
    shown = {name: value for name, value in parts.items() if value is not None and "password" not in name}
    return conninfo.make_conninfo("", **shown)


def not_connected(dsn: str, problem: psycopg.Error) -> DatabaseError:
    """The error for a failed connection: DatabaseUnavailable if waiting can help, otherwise DatabaseRefused."""
    said = re.sub(r" Is the server running[^?]*\?", "", " ".join(str(problem).split()))
    if problem.sqlstate == "42501" or _NO_RIGHT_TO_CONNECT in said:
        return MissingPrivilege(
            f"cannot connect to PostgreSQL at {safe(dsn)}: {said}. Grant the user CONNECT on the database"
        )
    if _is_refusal(problem, said):
        return DatabaseRefused(
            f"PostgreSQL at {safe(dsn)} refuses the connection: {said}. Check user, password and database "
            "name in DATABASE_URL (or --dsn)"
        )
    return DatabaseUnavailable(
        f"cannot connect to PostgreSQL at {safe(dsn)}: {said}. Check DATABASE_URL (or --dsn) and that the "
        "server is running"
    )


def _is_refusal(problem: psycopg.Error, said: str) -> bool:
    if problem.sqlstate is not None:
        return problem.sqlstate.startswith("28") or problem.sqlstate == "3D000"
    return isinstance(problem, psycopg.ProgrammingError) or _REFUSALS.search(said) is not None


def checked(dsn: str, name: str = "the database URL") -> str:
    """The DSN; DatabaseRefused if it is not valid."""
    try:
        conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # Without libpq's message, which may quote the password.
        shown = f" ({dsn.rpartition('@')[2]:.60})" if "@" in dsn else ""
        driver = re.match(r"(\w+)\+\w+://", dsn)
        remedy = f"leave out the driver and begin with {driver[1]}://" if driver else _NO_DATABASE_URL
        raise DatabaseRefused(f"{name}{shown} cannot be read: {remedy}") from None
    return dsn
