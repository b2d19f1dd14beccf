"""Numbered migrations, applied once each, in order, one transaction per file; then what the outbox declares on top.

Safe when several programs start at once (a transaction-level advisory lock, so poolers are fine), when killed half-way
(a file is applied whole or not at all, an index that was not finished is built again), beside long readers (locks are
asked for briefly and again, so that writers never queue up behind a migration), and beside running programs of the
version before (docs/decisions/0008-upgrades.md). Never runs by itself: a program or a person calls it.
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
from aftercommit.schema import declared, partitions, privileges
from aftercommit.schema.catalog import Ask, Catalog, asking, read
from aftercommit.schema.lock_retry import LockRetrier
from aftercommit.schema.numbered import SqlMigration, migrations
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
    """Where a schema stands: what was applied, what is missing, and in words how the declaration differs.

    `conflicts` are those differences that `up` refuses to settle, because they need a decision of yours. `newer` are
    migrations that newer code has applied and that this code can work with, as during a deployment.
    """

    applied: dict[int, str]
    pending: tuple[SqlMigration, ...]
    declaration: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        """Nothing left to do."""
        return not self.pending and not self.declaration


def up(
    connection: psycopg.Connection[Any], shape: Shape, *, lock_timeout: float = 1.0, max_wait_seconds: float = 30.0
) -> list[str]:
    """Apply what is missing; returns what was done, in words. The connection must not be inside a transaction.

    A table that somebody else has locked is asked for during `lock_timeout` seconds, because writers queue up behind
    the question, and then again after a pause. After `max_wait_seconds` the error names who is in the way.
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
        done += [f"made partition {name}" for name in partitions.ensure(connection, shape)]
    return done


def status(connection: psycopg.Connection[Any], shape: Shape, *, declarations: bool = True) -> Status:
    """What was applied, what is missing, and how the declaration differs. Changes nothing and leaves nothing open.

    Without `declarations` the migrations alone are looked at: for who knows the schema's name and not its outbox.
    """
    _refuse_transaction(connection)
    with _explained(connection, shape, reading=True), connection.transaction():
        found = status_by(asking(connection), shape)
    return found if declarations else replace(found, declaration=(), conflicts=())


def status_by(ask: Ask, shape: Shape) -> Status:
    """The same, by any driver that can ask a question."""
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
    """Refuse to work on tables that this code does not know; without `declarations` by the migrations alone."""
    found = status(connection, shape, declarations=declarations)
    _refuse_behind(found, shape)
    if found.pending:
        raise SchemaNotMigrated(f"schema {shape.schema!r} lacks migration {found.pending[0]}: {MIGRATE}")
    if found.conflicts:
        raise SchemaDrift("; ".join(found.conflicts))
    if found.declaration:
        raise SchemaDrift(
            f"schema {shape.schema!r} is not what the outbox declares: {'; '.join(found.declaration)}: {MIGRATE}"
        )


def statements(shape: Shape, after: int = 0, to: int | None = None) -> Iterator[str]:
    """Everything as single statements for any driver, in one transaction of the caller's.

    Each looks before it acts, so all of them can run on an empty database, on an older schema and again. `after` leaves
    out the migrations up to that version, which the schema must have had. `to` stops at a version, and then what the
    outbox declares is left out too unless it is the newest.
    """
    newest = migrations()[-1].version
    last = newest if to is None else to
    if not 0 <= after <= newest or not 1 <= last <= newest:
        raise DeclarationError(f"there is no migration {after if to is None else to}: they go from 1 to {newest}")
    yield _preparation(shape, after)
    yield from (migration.statement(shape) for migration in migrations() if after < migration.version <= last)
    if last == newest:
        for piece in declared.pieces(shape):
            yield from piece.statements
        yield block(Statements(shape).render("call_make_partitions"))
    yield block(Statements(shape).render("finish_schema"))


def script(shape: Shape, after: int = 0) -> Iterator[str]:
    """The same statements as plain SQL for a person or another tool to run, transaction included."""
    yield "begin;\nset local client_min_messages = warning;\n"
    for statement in statements(shape, after):
        yield f"\n{statement};\n"
    yield "\ncommit;\n"


def grants(shape: Shape, role: str) -> list[str]:
    """The statements that let a role publish, relay and consume, but not migrate. Run them as the schema's owner."""
    return privileges.grants(shape, role)


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
    """A migration as the schema remembers it."""

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
        f"schema {shape.schema!r} already holds a table 'migration' that is not ours: "
        "choose another schema name for the outbox"
    )


def _refuse_foreign(applied: dict[int, _Applied], shape: Shape) -> None:
    known = {migration.version: migration for migration in migrations()}
    newest = max(known)
    for version, each in applied.items():
        if version in known and each.checksum != known[version].checksum:
            raise SchemaDrift(
                f"migration {version:04d}_{each.name} was applied with checksum {each.checksum}, the file here has "
                f"{known[version].checksum}: a released migration never changes, so one of the two is not ours"
            )
        if each.needs_code > newest:
            raise SchemaTooNew(
                f"schema {shape.schema!r} has migration {version:04d}_{each.name}, which needs code that knows "
                f"migration {each.needs_code:04d}, and this code knows up to {newest:04d}: "
                "deploy the newer aftercommit, or restore a backup from before the upgrade"
            )


def _refuse_behind(found: Status, shape: Shape) -> None:
    """Newer code decides what the tables look like; this code can only use what is there."""
    if found.newer and (found.pending or found.declaration):
        lacking = [f"migration {migration} is missing" for migration in found.pending]
        raise SchemaTooNew(
            f"schema {shape.schema!r} was migrated by newer code ({', '.join(found.newer)}), and this code may not "
            f"change it any more: {'; '.join([*lacking, *found.declaration])}. Migrate with the newer aftercommit"
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
    except psycopg.errors.ReadOnlySqlTransaction as problem:
        raise read_only(problem) from problem
    except psycopg.OperationalError as problem:
        error = DatabaseUnavailable if connection.broken else DatabaseError
        said = problem.diag.message_primary or str(problem).strip()
        raise error(
            f"the work on schema {shape.schema!r} was interrupted: {said}. Nothing is half done: run it again, and it "
            "goes on from there"
        ) from problem


def _missing_privilege(
    connection: psycopg.Connection[Any], shape: Shape, problem: psycopg.Error, reading: bool
) -> MissingPrivilege:
    with committed(connection):
        user, owner = asking(connection)(Statements(shape).render("who_am_i"), {"schema": shape.schema})[0]
    role, database = sql.Identifier(user).as_string(), sql.Identifier(connection.info.dbname).as_string()
    if reading:
        remedy = f"let {owner!r}, who owns the schema, run what `aftercommit migrate grants {user} {OF_APP}` prints"
    elif owner is None:
        remedy = f"grant create on database {database} to {role}; or let the database's owner migrate"
    else:
        membership = f"grant {sql.Identifier(owner).as_string()} to {role}"
        remedy = f"let {owner!r}, who owns the schema, migrate; or {membership}"
    doing = "use" if reading else "migrate"
    return MissingPrivilege(
        f"user {user!r} may not {doing} schema {shape.schema!r}: {problem.diag.message_primary}. Remedy: {remedy}"
    )
