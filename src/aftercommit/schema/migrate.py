"""Applies the numbered migrations, each once and in one transaction, and then what the outbox declares.

Safe when several programs migrate at once (a transaction-level advisory lock, so poolers are fine), when it is killed
(a file is applied completely or not at all; an unfinished index is built again), beside long-running readers (short
lock timeouts with retries, so that writers do not queue up for long), and beside running programs of the previous
version (docs/decisions/0008-upgrades.md).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from aftercommit.errors import (
    DatabaseError,
    DatabaseUnavailable,
    DeclarationError,
    MissingPrivilege,
    SchemaDrift,
    SchemaNotMigrated,
    SchemaTooNew,
)
from aftercommit.postgres.blocks import LOCK_CLASS, block, name_literal
from aftercommit.postgres.commits import committed
from aftercommit.postgres.database import read_only
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema import declared, partitions
from aftercommit.schema.catalog import Ask, Catalog, asking, read
from aftercommit.schema.lock_retry import LockRetrier
from aftercommit.schema.numbered import SqlMigration, migrations
from aftercommit.schema.privileges import grants
from aftercommit.text import MIGRATE, OF_APP

__all__ = [
    "SqlMigration",
    "Status",
    "check",
    "grants",
    "migrations",
    "script",
    "statements",
    "status",
    "status_by",
    "up",
]


_MIGRATION_COLUMNS = {"version": "integer", "name": "text", "checksum": "text"}


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a schema: applied and pending migrations, and differences from the declaration.

    `conflicts` are the differences that `up` does not resolve, because they need your decision. `newer` are migrations
    that newer code has applied and that this code can work with, as during a deployment.
    """

    applied: dict[int, str]
    pending: tuple[SqlMigration, ...]
    declaration: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        """Whether there is nothing left to do."""
        return not self.pending and not self.declaration


def up(
    connection: psycopg.Connection[Any], shape: Shape, *, lock_timeout: float = 1.0, max_wait_seconds: float = 30.0
) -> list[str]:
    """Apply what is missing; returns a description of each step. The connection must not be inside a transaction.

    Each attempt waits `lock_timeout` seconds for a locked table, because writers queue up behind it, and is repeated
    after a pause. After `max_wait_seconds` it fails, and the error names the sessions that hold the locks.
    """
    _refuse_transaction(connection)
    done: list[str] = []
    with _explained(connection, shape):
        found = status(connection, shape)
        _refuse_behind(found, shape)
        retrier = LockRetrier(connection, shape, lock_timeout, max_wait_seconds)
        for migration in found.pending:
            done += retrier.run(lambda migration=migration: _apply(connection, shape, migration))  # type: ignore[misc]
        if not found.is_current:
            done += declared.apply(retrier)
        done += [f"created partition {name}" for name in partitions.ensure(connection, shape)]
    return done


def status(connection: psycopg.Connection[Any], shape: Shape, *, declarations: bool = True) -> Status:
    """The state of the schema. Changes nothing and leaves no transaction open.

    Without `declarations`, compares only migrations: for callers that know the schema's name, but not its outbox.
    """
    _refuse_transaction(connection)
    with _explained(connection, shape, reading=True), connection.transaction():
        found = status_by(asking(connection), shape)
    return found if declarations else replace(found, declaration=(), conflicts=())


def status_by(ask: Ask, shape: Shape) -> Status:
    """The same, with any driver."""
    catalog = read(ask, shape)
    applied = _applied(ask, shape, catalog)
    _refuse_foreign(applied, shape)
    known = {migration.version for migration in migrations()}
    pending = tuple(migration for migration in migrations() if migration.version not in applied)
    names = {version: each.name for version, each in applied.items()}
    newer = tuple(f"{version:04d}_{name}" for version, name in names.items() if version not in known)
    if pending:
        return Status(names, pending, newer=newer)
    conflicts = tuple(declared.conflicts(shape, catalog))
    lacking = declared.absent(shape, catalog) if newer else declared.missing(shape, catalog)
    differences = [f"{piece.name} is missing or differs" for piece in lacking]
    return Status(names, pending, (*conflicts, *differences), conflicts, newer)


def check(connection: psycopg.Connection[Any], shape: Shape, *, declarations: bool = True) -> None:
    """Raise an error unless the tables match this code; without `declarations`, compares only migrations."""
    found = status(connection, shape, declarations=declarations)
    _refuse_behind(found, shape)
    if found.pending:
        raise SchemaNotMigrated(f"schema {shape.schema!r} lacks migration {found.pending[0]}: {MIGRATE}")
    if found.conflicts:
        raise SchemaDrift("; ".join(found.conflicts))
    if found.declaration:
        raise SchemaDrift(
            f"schema {shape.schema!r} does not match the declared outbox: {'; '.join(found.declaration)}: {MIGRATE}"
        )


def statements(shape: Shape, after: int = 0, to: int | None = None) -> Iterator[str]:
    """All statements, for any driver, to run in one transaction of the caller.

    They do nothing where their work is already done, so they can run on an empty database, on an older schema, and
    again. `after` leaves out the migrations up to that version, which the schema must already have. `to` stops at a
    version; unless that is the newest, the statements for the declaration are left out too.
    """
    newest = migrations()[-1].version
    last = newest if to is None else to
    if not 0 <= after <= newest or not 1 <= last <= newest:
        raise DeclarationError(f"there is no migration {after if to is None else to}: give 1 to {newest}")
    yield _preparation(shape, after)
    yield from (migration.statement(shape) for migration in migrations() if after < migration.version <= last)
    if last == newest:
        for piece in declared.pieces(shape):
            yield from piece.statements
        yield block(Statements(shape).render("call_make_partitions"))
    yield block(Statements(shape).render("finish_schema"))


def script(shape: Shape, after: int = 0) -> Iterator[str]:
    """The same statements as an SQL script with its own transaction, to run by hand or with another tool."""
    yield "begin;\nset local client_min_messages = warning;\n"
    for statement in statements(shape, after):
        yield f"\n{statement};\n"
    yield "\ncommit;\n"


def _apply(connection: psycopg.Connection[Any], shape: Shape, migration: SqlMigration) -> list[str]:
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


@dataclass(frozen=True, slots=True)
class _Applied:
    """A row of the table `migration`."""

    name: str
    checksum: str
    needs_code: int


def _applied(ask: Ask, shape: Shape, catalog: Catalog) -> dict[int, _Applied]:
    if "migration" not in catalog.kinds:
        return {}
    found = {name: column.type for (table, name), column in catalog.columns.items() if table == "migration"}
    if {name: found.get(name) for name in _MIGRATION_COLUMNS} != _MIGRATION_COLUMNS:
        raise _not_ours(shape)
    rows = ask(Statements(shape).render("applied_migrations"), {})
    applied = {version: _Applied(*remembered) for version, *remembered in rows}
    if applied and migrations()[0].version not in applied:
        raise _not_ours(shape)
    return applied


def _not_ours(shape: Shape) -> DatabaseError:
    return DatabaseError(
        f"schema {shape.schema!r} already has a table 'migration' that does not belong to aftercommit: choose another "
        "schema for the outbox"
    )


def _refuse_foreign(applied: dict[int, _Applied], shape: Shape) -> None:
    known = {migration.version: migration for migration in migrations()}
    newest = max(known)
    for version, each in applied.items():
        if version in known and each.checksum != known[version].checksum:
            raise SchemaDrift(
                f"migration {version:04d}_{each.name} was applied with checksum {each.checksum}, but the file here has "
                f"{known[version].checksum}. Released migrations do not change: install an unmodified aftercommit"
            )
        if each.needs_code > newest:
            raise SchemaTooNew(
                f"schema {shape.schema!r} has migration {version:04d}_{each.name}, which needs code that knows "
                f"migration {each.needs_code:04d}, but this code knows only up to {newest:04d}: "
                "deploy the newer aftercommit, or restore a backup from before the upgrade"
            )


def _refuse_behind(found: Status, shape: Shape) -> None:
    """Once newer code has migrated the tables, this code may use them, but not change them."""
    if found.newer and (found.pending or found.declaration):
        lacking = [f"migration {migration} is missing" for migration in found.pending]
        raise SchemaTooNew(
            f"newer code has migrated schema {shape.schema!r} ({', '.join(found.newer)}), so this code may not change "
            f"it: {'; '.join([*lacking, *found.declaration])}. Migrate with the newer aftercommit"
        )


def _refuse_transaction(connection: psycopg.Connection[Any]) -> None:
    if connection.closed:
        raise DatabaseUnavailable("the connection for the migration is closed: open a new one")
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise DatabaseError(
            "the connection for the migration is inside a transaction: commit or roll back first, or use another "
            "connection"
        )


@contextmanager
def _explained(connection: psycopg.Connection[Any], shape: Shape, *, reading: bool = False) -> Iterator[None]:
    """Turn PostgreSQL's errors into ours, with a remedy."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as problem:
        raise _missing_privilege(connection, shape, problem, reading) from problem
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject) as problem:
        raise DatabaseError(
            f"schema {shape.schema!r} already has an object that does not belong to aftercommit "
            f"({problem.diag.message_primary}): choose another schema for the outbox, or rename the object"
        ) from problem
    except psycopg.errors.DependentObjectsStillExist as problem:
        raise DatabaseError(
            f"a view of schema {shape.schema!r} must be recreated, but another object depends on it: "
            f"{problem.diag.message_detail}. Drop that object, migrate, and create it again"
        ) from problem
    except psycopg.errors.ReadOnlySqlTransaction as problem:
        raise read_only(problem) from problem
    except psycopg.OperationalError as problem:
        error = DatabaseUnavailable if connection.broken else DatabaseError
        said = problem.diag.message_primary or str(problem).strip()
        raise error(
            f"the work on schema {shape.schema!r} was interrupted: {said}. Run it again; it continues from the last "
            "completed step"
        ) from problem


def _missing_privilege(
    connection: psycopg.Connection[Any], shape: Shape, problem: psycopg.Error, reading: bool
) -> MissingPrivilege:
    with committed(connection):
        user, owner = asking(connection)(Statements(shape).render("who_am_i"), {"schema": shape.schema})[0]
    role, database = sql.Identifier(user).as_string(), sql.Identifier(connection.info.dbname).as_string()
    if reading:
        remedy = f"as the schema's owner {owner!r}, run the output of `aftercommit migrate grants {user} {OF_APP}`"
    elif owner is None:
        remedy = f"grant create on database {database} to {role}; or migrate as the database's owner"
    else:
        membership = f"grant {sql.Identifier(owner).as_string()} to {role}"
        remedy = f"migrate as the schema's owner {owner!r}; or {membership}"
    doing = "use" if reading else "migrate"
    return MissingPrivilege(
        f"user {user!r} may not {doing} schema {shape.schema!r}: {problem.diag.message_primary}. Remedy: {remedy}"
    )
