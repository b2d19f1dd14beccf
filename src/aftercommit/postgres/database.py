"""How our own processes reach PostgreSQL: connections that work behind any pooler, and errors that say what to do.

No session state is used except by the optional LISTEN connection, so PgBouncer in transaction mode is fine.
"""

from typing import Any

import psycopg
from psycopg import conninfo, sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from aftercommit.errors import DatabaseUnavailable, MissingPrivilege, SchemaNotMigrated, SchemaTooNew
from aftercommit.postgres.migrate import migrations
from aftercommit.postgres.shape import Shape

_KEEPALIVE = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}


class RawJson(Loader):
    """JSON columns as the bytes they are; decoding is the codec's work."""

    def load(self, data: Buffer) -> bytes:
        """A copy of the bytes."""
        return bytes(data)


class Database:
    """A DSN and the ways we connect with it. `listen_dsn` bypasses a transaction pooler for LISTEN."""

    def __init__(self, dsn: str, *, listen_dsn: str | None = None, application_name: str = "aftercommit") -> None:
        """Check the DSN's form; nothing is connected."""
        self.dsn = _checked(dsn)
        self.listen_dsn = _checked(listen_dsn) if listen_dsn is not None else self.dsn
        self._parameters: dict[str, Any] = {
            "application_name": application_name,
            "connect_timeout": 10,
            # Server-side prepared statements do not survive transaction pooling; our statements are large and few.
            "prepare_threshold": None,
            **_KEEPALIVE,
        }

    @property
    def safe_dsn(self) -> str:
        """The DSN without its password, for messages."""
        return safe(self.dsn)

    async def connect(self, *, autocommit: bool = True, listen: bool = False) -> psycopg.AsyncConnection[Any]:
        """A new asyncio connection, or DatabaseUnavailable."""
        dsn = self.listen_dsn if listen else self.dsn
        try:
            connection = await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit, **self._parameters)
        except psycopg.OperationalError as problem:
            raise unavailable(dsn, problem) from problem
        connection.adapters.register_loader("json", RawJson)
        return connection

    def connect_sync(self, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        """A new blocking connection, or DatabaseUnavailable."""
        try:
            return psycopg.Connection.connect(self.dsn, autocommit=autocommit, **self._parameters)
        except psycopg.OperationalError as problem:
            raise unavailable(self.dsn, problem) from problem

    def pool(self, size: int) -> "AsyncConnectionPool[psycopg.AsyncConnection[Any]]":
        """A pool of asyncio connections for handlers, not opened yet."""
        return AsyncConnectionPool(
            self.dsn, min_size=1, max_size=size, open=False, kwargs={**self._parameters, "autocommit": False}, timeout=30.0
        )

    def pool_sync(self, size: int) -> "ConnectionPool[psycopg.Connection[Any]]":
        """A pool of blocking connections for sync handlers, not opened yet."""
        return ConnectionPool(
            self.dsn, min_size=1, max_size=size, open=False, kwargs={**self._parameters, "autocommit": False}, timeout=30.0
        )


async def require_schema(connection: psycopg.AsyncConnection[Any], shape: Shape) -> None:
    """Refuse to work on tables that are missing, older or newer than this code; nothing is changed."""
    newest = migrations()[-1]
    query = sql.SQL("select max(version) from {}.migration").format(sql.Identifier(shape.schema))
    try:
        row = await (await connection.execute(query)).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as problem:
        raise SchemaNotMigrated(
            f"schema {shape.schema!r} does not exist in database {connection.info.dbname!r}: run `aftercommit migrate up`"
        ) from problem
    except psycopg.errors.InsufficientPrivilege as problem:
        raise privilege(connection.info.user, shape, problem) from problem
    version = row[0] if row else None
    if version is None or version < newest.version:
        raise SchemaNotMigrated(
            f"schema {shape.schema!r} is at migration {version or 0}, this code needs {newest.version}: run `aftercommit migrate up`"
        )
    if version > newest.version:
        raise SchemaTooNew(
            f"schema {shape.schema!r} is at migration {version}, this code knows up to {newest.version}: deploy the newer aftercommit"
        )


def privilege(user: str, shape: Shape, problem: psycopg.Error) -> MissingPrivilege:
    """The error for a database user that may not do its work."""
    return MissingPrivilege(
        f"database user {user!r} lacks a privilege in schema {shape.schema!r}: {problem.diag.message_primary or problem}. "
        f"`aftercommit migrate grants {user}` prints what to grant"
    )


def safe(dsn: str) -> str:
    """A DSN without its password."""
    parts = conninfo.conninfo_to_dict(dsn)
    parts.pop("password", None)
    return conninfo.make_conninfo("", **{key: value for key, value in parts.items() if value is not None})


def unavailable(dsn: str, problem: psycopg.Error) -> DatabaseUnavailable:
    """The error for a database that does not answer."""
    return DatabaseUnavailable(
        f"cannot connect to PostgreSQL at {safe(dsn)}: {str(problem).strip()}. Check DATABASE_URL and that the server is running"
    )


def _checked(dsn: str) -> str:
    try:
        conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as problem:
        shown = dsn.partition("@")[2] or "the given value"
        raise DatabaseUnavailable(
            f"the database URL ({shown:.60}) cannot be read: {problem}; it should look like postgresql://user:password@host:5432/name"
        ) from None
    return dsn
