"""Schemas as earlier versions left them: the numbered migrations up to one, and what was declared on top then."""

from typing import Any

import psycopg
import pytest

from aftercommit.postgres.shape import Shape
from aftercommit.schema import declared, migrate, numbered
from aftercommit.schema.numbered import SqlMigration


def migrate_up_to(connection: psycopg.Connection[Any], shape: Shape, version: int) -> None:
    """Make the schema of the code whose newest migration this is."""
    with pytest.MonkeyPatch.context() as patch:
        know(patch, *(migration for migration in numbered.migrations() if migration.version <= version))
        migrate.up(connection, shape)


def know(patch: pytest.MonkeyPatch, *migrations: SqlMigration) -> None:
    """Let this process be code that knows just these migrations."""
    for room in (migrate, declared, numbered):
        patch.setattr(room, "migrations", lambda: migrations)
