"""Numbered migrations, applied once each, in order, one transaction per file; then what the outbox declares on top.

Safe when several programs start at once (a transaction-level advisory lock, so poolers are fine), when killed half-way
(a file is applied whole or not at all), and beside long readers (locks are asked for briefly and again, so that writers
never queue up behind a migration). Never runs by itself: a program or a person calls it.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from aftercommit.backoff import Exponential
from aftercommit.errors import (
    DatabaseError,
    DatabaseUnavailable,
    MissingPrivilege,
    SchemaDrift,
    SchemaNotMigrated,
    SchemaTooNew,
)
from aftercommit.postgres import declared, partitions, privileges
from aftercommit.postgres.blocks import LOCK_CLASS, block, name_literal
from aftercommit.postgres.catalog import Ask, Catalog, asking, read
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_BETWEEN_TRIES = Exponential(base=0.2, maximum=3.0)


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered SQL file."""

    version: int
    name: str
    text: str

    def __str__(self) -> str:
        """As the file is called."""
        return f"{self.version:04d}_{self.name}"

    @property
    def checksum(self) -> str:
        """Tells whether the file that was applied is the file that is here."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def statement(self, shape: Shape) -> str:
        """The file and its record as one statement, which does nothing in a schema that has had it."""
        statements = Statements(shape)
        text = sql.SQL(self.text).format(schema=sql.Identifier(shape.schema))
        body = statements.render(
            "apply_migration",
            text=text,
            version=sql.Literal(self.version),
            migration_name=sql.Literal(self.name),
            checksum=sql.Literal(self.checksum),
        )
        return block(body)


@dataclass(frozen=True, slots=True)
class Status:
    """Where a schema stands: what was applied, what is missing, and in words how the declaration differs.

    `conflicts` are those differences that `up` refuses to settle, because they need a decision of yours.
    """

    applied: dict[int, str]
    pending: tuple[Migration, ...]
    declaration: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        """Nothing left to do."""
        return not self.pending and not self.declaration


@cache
def migrations() -> tuple[Migration, ...]:
    """All numbered files, lowest first."""
    found = []
    for path in files(__package__).joinpath("migrations").iterdir():
        match = _FILE.fullmatch(path.name)
        if match:
            found.append(Migration(int(match[1]), match[2], path.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.version))


def up(
    connection: psycopg.Connection[Any], shape: Shape, *, lock_timeout: float = 1.0, patience: float = 30.0
) -> list[str]:
    """Apply what is missing; returns what was done, in words. The connection must not be inside a transaction.

    A table that somebody else has locked is asked for during `lock_timeout` seconds, because writers queue up behind
    the question, and then again after a pause. After `patience` seconds the error names who is in the way.
    """
    _refuse_transaction(connection)
    done: list[str] = []
    with _explained(connection, shape):
        found = status(connection, shape)
        patient = _Patient(connection, shape, lock_timeout, time.monotonic() + patience)
        for migration in found.pending:
            done += patient.run(lambda migration=migration: _apply(connection, shape, migration))  # type: ignore[misc]
        if not found.is_current:
            done += patient.run(lambda: declared.apply(connection, shape))
        done += [f"made partition {name}" for name in partitions.ensure(connection, shape)]
    return done


def status(connection: psycopg.Connection[Any], shape: Shape) -> Status:
    """What was applied, what is missing, and how the declaration differs. Changes nothing and leaves nothing open."""
    _refuse_transaction(connection)
    with _explained(connection, shape, reading=True), connection.transaction():
        return status_by(asking(connection), shape)


def status_by(ask: Ask, shape: Shape) -> Status:
    """The same, by any driver that can ask a question."""
    catalog = read(ask, shape)
    applied = _applied(ask, shape, catalog)
    _refuse_foreign(applied, shape)
    pending = tuple(migration for migration in migrations() if migration.version not in applied)
    names = {version: name for version, (name, _) in applied.items()}
    if pending:
        return Status(names, pending)
    conflicts = tuple(declared.conflicts(shape, catalog))
    lacking = [f"{piece.name} is missing or differs" for piece in declared.missing(shape, catalog)]
    return Status(names, pending, (*conflicts, *lacking), conflicts)


def check(connection: psycopg.Connection[Any], shape: Shape) -> None:
    """Refuse to work on tables that this code does not know."""
    found = status(connection, shape)
    if found.pending:
        raise SchemaNotMigrated(
            f"schema {shape.schema!r} lacks migration {found.pending[0]}: run `aftercommit migrate up`"
        )
    if found.conflicts:
        raise SchemaDrift("; ".join(found.conflicts))
    if found.declaration:
        raise SchemaDrift(
            f"schema {shape.schema!r} is not what the outbox declares: {'; '.join(found.declaration)}. "
            "Run `aftercommit migrate up`"
        )


def statements(shape: Shape, after: int = 0) -> Iterator[str]:
    """Everything as single statements for any driver, in one transaction of the caller's.

    Each looks before it acts, so all of them can run on an empty database, on an older schema and again. `after` leaves
    out the migrations up to that version, which the schema must have had.
    """
    yield _preparation(shape, after)
    yield from (migration.statement(shape) for migration in migrations() if migration.version > after)
    for piece in declared.pieces(shape):
        yield from piece.statements
    yield block(Statements(shape).render("call_make_partitions"))


def script(shape: Shape, after: int = 0) -> Iterator[str]:
    """The same statements as plain SQL for a person or another tool to run, transaction included."""
    yield "begin;\n"
    for statement in statements(shape, after):
        yield f"\n{statement};\n"
    yield "\ncommit;\n"


def grants(shape: Shape, role: str) -> list[str]:
    """The statements that let a role publish, relay and consume, but not migrate. Run them as the schema's owner."""
    return privileges.grants(shape, role)


class _Patient:
    """Runs steps, each in a transaction of its own under the migration lock, and again when a table was locked."""

    def __init__(self, connection: psycopg.Connection[Any], shape: Shape, lock_timeout: float, deadline: float) -> None:
        self._connection = connection
        self._shape = shape
        self._lock_timeout = lock_timeout
        self._deadline = deadline

    def run(self, step: Callable[[], list[str]]) -> list[str]:
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._connection.transaction():
                    self._take_lock()
                    return step()
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as problem:
                if time.monotonic() >= self._deadline:
                    raise _blocked(self._connection, self._shape) from problem
                time.sleep(_BETWEEN_TRIES(attempt, problem) or 0)

    def _take_lock(self) -> None:
        remaining = max(self._deadline - time.monotonic(), self._lock_timeout)
        query = Statements(self._shape).render("take_migration_lock", lock_class=sql.Literal(LOCK_CLASS))
        parameters = {
            "schema": self._shape.schema,
            "patience": f"{remaining * 1000:.0f}ms",
            "lock_timeout": f"{self._lock_timeout * 1000:.0f}ms",
        }
        asking(self._connection)(query, parameters)


def _apply(connection: psycopg.Connection[Any], shape: Shape, migration: Migration) -> list[str]:
    connection.execute(_preparation(shape, 0).encode())
    ask = asking(connection)
    applied = _applied(ask, shape, read(ask, shape))
    _refuse_foreign(applied, shape)
    if migration.version in applied:
        return []
    connection.execute(migration.statement(shape).encode())
    return [f"applied {migration}"]


def _preparation(shape: Shape, after: int) -> str:
    body = Statements(shape).render(
        "prepare_schema",
        lock_class=sql.Literal(LOCK_CLASS),
        schema_name=sql.Literal(shape.schema),
        migration_table=name_literal(shape.schema, "migration"),
        newest=sql.Literal(migrations()[-1].version),
        after=sql.Literal(after),
    )
    return block(body)


def _applied(ask: Ask, shape: Shape, catalog: Catalog) -> dict[int, tuple[str, str]]:
    if "migration" not in catalog.kinds:
        return {}
    if not {("migration", name) for name in ("version", "name", "checksum")} <= catalog.columns.keys():
        raise DatabaseError(
            f"schema {shape.schema!r} already holds a table 'migration' that is not ours: "
            "choose another schema name for the outbox"
        )
    rows = ask(Statements(shape).render("applied_migrations"), {})
    return {version: (name, checksum) for version, name, checksum in rows}


def _refuse_foreign(applied: dict[int, tuple[str, str]], shape: Shape) -> None:
    known = {migration.version: migration for migration in migrations()}
    for version, (name, checksum) in applied.items():
        if version not in known:
            raise SchemaTooNew(
                f"schema {shape.schema!r} has migration {version:04d}_{name}, which this code does not have: "
                "deploy the newer aftercommit, or restore a backup from before the upgrade"
            )
        if checksum != known[version].checksum:
            raise SchemaDrift(
                f"migration {version:04d}_{name} was applied with checksum {checksum}, the file here has "
                f"{known[version].checksum}: a released migration never changes, so one of the two is not ours"
            )


def _refuse_transaction(connection: psycopg.Connection[Any]) -> None:
    if connection.closed:
        raise DatabaseUnavailable("the connection for migrating is closed: open a new one")
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise DatabaseError(
            "the connection for migrating is inside a transaction, which would be held open or committed with it: "
            "commit or roll back first, or give it a connection of its own"
        )


@contextmanager
def _explained(connection: psycopg.Connection[Any], shape: Shape, *, reading: bool = False) -> Iterator[None]:
    """Errors of PostgreSQL as ours, with what to do about them."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as problem:
        raise _missing_privilege(connection, shape, problem, reading) from problem
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject) as problem:
        raise DatabaseError(
            f"schema {shape.schema!r} already holds something that is not ours ({problem.diag.message_primary}): "
            "choose another schema name for the outbox, or rename what is there"
        ) from problem
    except psycopg.errors.DependentObjectsStillExist as problem:
        raise DatabaseError(
            f"a view of schema {shape.schema!r} has to be made anew, but something depends on it: "
            f"{problem.diag.message_detail}. Drop that, migrate, and create it again"
        ) from problem
    except psycopg.OperationalError as problem:
        error = DatabaseUnavailable if connection.broken else DatabaseError
        raise error(
            f"the work on schema {shape.schema!r} was interrupted: {str(problem).strip()}. The step that was running "
            "left nothing behind: run it again"
        ) from problem


def _missing_privilege(
    connection: psycopg.Connection[Any], shape: Shape, problem: psycopg.Error, reading: bool
) -> MissingPrivilege:
    with connection.transaction():
        user, owner = asking(connection)(Statements(shape).render("who_am_i"), {"schema": shape.schema})[0]
    role, database = sql.Identifier(user).as_string(), sql.Identifier(connection.info.dbname).as_string()
    if reading:
        remedy = f"let {owner!r}, who owns the schema, run what `aftercommit migrate grants {user}` prints"
    elif owner is None:
        remedy = f"grant create on database {database} to {role}; or let the database's owner migrate"
    else:
        membership = f"grant {sql.Identifier(owner).as_string()} to {role}"
        remedy = f"let {owner!r}, who owns the schema, migrate; or {membership}"
    doing = "use" if reading else "migrate"
    return MissingPrivilege(
        f"user {user!r} may not {doing} schema {shape.schema!r}: {problem.diag.message_primary}. Remedy: {remedy}"
    )


def _blocked(connection: psycopg.Connection[Any], shape: Shape) -> DatabaseError:
    query = Statements(shape).render("lock_holders", lock_class=sql.Literal(LOCK_CLASS))
    with connection.transaction():
        holders = asking(connection)(query, {"schema": shape.schema})
    who = "; ".join(
        f"process {pid} (user {user!r}, application {application!r}, {state}"
        + (f" for {seconds:.0f} s" if seconds is not None else "")
        + f", last statement: {' '.join(statement.split())[:120]!r})"
        for pid, user, application, state, seconds, statement in holders
    )
    return DatabaseError(
        f"schema {shape.schema!r} cannot be migrated now: {who or 'another session'} holds a lock that is needed. "
        "Wait for it to end, or end it with select pg_terminate_backend(pid), and run it again"
    )
