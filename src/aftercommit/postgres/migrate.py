"""Numbered migrations, applied once each, in order, one transaction per file; then what the outbox declares on top.

Safe when several programs start at once (a transaction-level advisory lock, so poolers are fine) and when killed
half-way (a file is applied whole or not at all). Never runs by itself: a program or a person calls it.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import sql

from aftercommit.errors import DatabaseError, MissingPrivilege, SchemaDrift, SchemaNotMigrated, SchemaTooNew
from aftercommit.postgres import declared
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_LOCK = 7_251_063_482_190


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered SQL file."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Tells whether the file that was applied is the file that is here."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def statement(self, shape: Shape) -> sql.Composed:
        """The file for one schema."""
        return sql.SQL(self.text).format(schema=sql.Identifier(shape.schema))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Status:
    """Where a database stands."""

    applied: dict[int, str]
    pending: tuple[Migration, ...]
    declaration: tuple[str, ...]

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
            found.append(Migration(int(match[1]), match[2], path.read_text()))
    return tuple(sorted(found, key=lambda migration: migration.version))


def up(connection: psycopg.Connection[Any], shape: Shape) -> list[str]:
    """Apply what is missing; returns what was done, in words. The connection must not be inside a transaction."""
    done: list[str] = []
    try:
        for migration in migrations():
            with connection.transaction():
                _lock(connection, shape)
                applied = _applied(connection, shape)
                _refuse_foreign(applied, shape)
                if migration.version not in applied:
                    _apply(connection, shape, migration)
                    done.append(f"applied {migration.version:04d}_{migration.name}")
        with connection.transaction():
            _lock(connection, shape)
            done.extend(declared.apply(connection, shape))
    except psycopg.errors.InsufficientPrivilege as problem:
        raise MissingPrivilege(
            f"user {connection.info.user!r} may not migrate schema {shape.schema!r}: {problem.diag.message_primary}. "
            f"Grant CREATE on database {connection.info.dbname!r}, or let its owner run `aftercommit migrate up`"
        ) from problem
    return done


def status(connection: psycopg.Connection[Any], shape: Shape) -> Status:
    """What was applied, what is missing, and how the declaration differs. Changes nothing."""
    applied = _applied(connection, shape) if _has_schema(connection, shape) else {}
    _refuse_foreign(applied, shape)
    pending = tuple(migration for migration in migrations() if migration.version not in applied)
    differences: tuple[str, ...] = ()
    if not pending:
        differences = tuple(declared.differences(connection, shape))
    return Status({version: name for version, (name, _) in applied.items()}, pending, differences)


def check(connection: psycopg.Connection[Any], shape: Shape) -> None:
    """Refuse to work on tables that this code does not know."""
    found = status(connection, shape)
    if found.pending:
        first = found.pending[0]
        raise SchemaNotMigrated(
            f"schema {shape.schema!r} lacks migration {first.version:04d}_{first.name}: run `aftercommit migrate up`"
        )
    if found.declaration:
        raise SchemaDrift(
            f"schema {shape.schema!r} is not what the outbox declares: {'; '.join(found.declaration)}. Run `aftercommit migrate up`"
        )


def script(shape: Shape, after: int = 0) -> Iterator[str]:
    """The same migrations as plain SQL for a person or another tool to run, from a version on."""
    schema = sql.Identifier(shape.schema)
    yield "begin;\n"
    yield sql.SQL("create schema if not exists {};\n").format(schema).as_string()
    yield Statements(shape).render("create_migration_table") + ";\n"
    for migration in migrations():
        if migration.version > after:
            yield f"\n-- {migration.version:04d}_{migration.name}\n"
            yield migration.statement(shape).as_string()
            yield _record(shape, migration).as_string() + ";\n"
    for line in declared.script(shape):
        yield line + ";\n"
    yield "commit;\n"


def _lock(connection: psycopg.Connection[Any], shape: Shape) -> None:
    connection.execute("select pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK % 2**31, shape.schema))
    connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(shape.schema)))
    connection.execute(Statements(shape)["create_migration_table"])


def _has_schema(connection: psycopg.Connection[Any], shape: Shape) -> bool:
    row = connection.execute(
        "select to_regclass(%s) is not null",
        (sql.Identifier(shape.schema, "migration").as_string(),),
    ).fetchone()
    return bool(row and row[0])


def _applied(connection: psycopg.Connection[Any], shape: Shape) -> dict[int, tuple[str, str]]:
    query = sql.SQL("select version, name, checksum from {}.migration order by version").format(sql.Identifier(shape.schema))
    try:
        return {version: (name, checksum) for version, name, checksum in connection.execute(query)}
    except psycopg.errors.InsufficientPrivilege as problem:
        raise MissingPrivilege(
            f"user {connection.info.user!r} may not read schema {shape.schema!r}: grant USAGE on it and SELECT, INSERT, "
            "UPDATE, DELETE on its tables"
        ) from problem


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


def _apply(connection: psycopg.Connection[Any], shape: Shape, migration: Migration) -> None:
    try:
        connection.execute(migration.statement(shape))
        connection.execute(_record(shape, migration))
    except psycopg.errors.DuplicateTable as problem:
        raise DatabaseError(
            f"schema {shape.schema!r} already holds a table that is not ours ({problem.diag.message_primary}): "
            "choose another schema name for the outbox"
        ) from problem


def _record(shape: Shape, migration: Migration) -> sql.Composed:
    return sql.SQL("insert into {}.migration (version, name, checksum) values ({}, {}, {})").format(
        sql.Identifier(shape.schema), migration.version, migration.name, migration.checksum
    )
