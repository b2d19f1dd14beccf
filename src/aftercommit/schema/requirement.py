"""Checks that the tables of an outbox match this code."""

from typing import Any

import psycopg

from aftercommit.errors import SchemaDrift, SchemaNotMigrated, SchemaTooNew
from aftercommit.postgres.database import privilege
from aftercommit.postgres.shape import AUDIENCE, SCOPE_TYPES, Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema.catalog import Column
from aftercommit.schema.declared import OUTBOX_COLUMNS
from aftercommit.schema.numbered import migrations
from aftercommit.text import MIGRATE


async def require_schema(connection: psycopg.AsyncConnection[Any], shape: Shape) -> None:
    """Raise an error if the tables are missing, older than this code or too new for it. Changes nothing.

    Tables that newer code has migrated are accepted if the migration allows it, so that programs of the previous
    version can still be started during a deployment.
    """
    known = migrations()[-1].version
    try:
        row = await (await connection.execute(Statements(shape)["schema_version"])).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as problem:
        raise SchemaNotMigrated(
            f"schema {shape.schema!r} does not exist in database {connection.info.dbname!r}: {MIGRATE}"
        ) from problem
    except psycopg.errors.InsufficientPrivilege as problem:
        raise privilege(connection.info.user, shape, problem) from problem
    version, needed = row or (None, None)
    if version is None or needed is None or version < known:
        raise SchemaNotMigrated(
            f"schema {shape.schema!r} is at migration {version or 0}, this code needs {known}: {MIGRATE}"
        )
    if needed > known:
        raise SchemaTooNew(
            f"schema {shape.schema!r} is at migration {version}, which needs code that knows migration {needed}, but "
            f"this code knows only up to {known}: deploy the newer aftercommit"
        )
    await _require_scope(connection, shape)


async def _require_scope(connection: psycopg.AsyncConnection[Any], shape: Shape) -> None:
    parameters = {"schema": shape.schema, "tables": ["outbox"]}
    rows = await (await connection.execute(Statements(shape)["catalog_columns"], parameters)).fetchall()
    found = {name: Column(*described) for _, name, *described in rows}
    for name, python_type in shape.scope.items():
        wanted = SCOPE_TYPES[python_type].replace("varchar", "character varying")
        there = found[name].type if name in found else "missing"
        if there != wanted:
            raise SchemaDrift(f"scope {name!r} is declared as {wanted}, but is {there} in {shape.schema!r}: {MIGRATE}")
    if shape.audience and AUDIENCE not in found:
        raise SchemaDrift(f"an audience is declared, but outbox {shape.schema!r} has no column for it: {MIGRATE}")
    for name in sorted(found.keys() - OUTBOX_COLUMNS - shape.scope.keys()):
        if found[name].must_be_given:
            raise SchemaDrift(
                f"outbox {shape.schema!r} has the scope {name!r}, which this program does not declare: "
                f"declare scope={{{name!r}: …}}, or use another schema"
            )
