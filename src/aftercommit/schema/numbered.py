"""The numbered SQL files: the statements for a transaction, the indexes to build afterwards, and which code can work
with the tables once a file was applied.

A file begins with its purpose. `-- needs code: 0002` means that code which knows the migrations up to 0002 can also
work with the new tables; without such a line, only code that has the file itself can. A line
`-- concurrently: index on table` is followed by one CREATE INDEX, which is built without blocking writers if the table
is large (docs/decisions/0008-upgrades.md).
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files

from psycopg import sql

from aftercommit.postgres.blocks import block
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema.indexes import Index

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_NEEDS_CODE = re.compile(r"^-- needs code: (\d{4})$", re.MULTILINE)
_CONCURRENTLY = re.compile(r"^-- concurrently: (\w+) on (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SqlMigration:
    """One numbered SQL file."""

    version: int
    name: str
    text: str

    def __str__(self) -> str:
        """The name of the file, without its extension."""
        return f"{self.version:04d}_{self.name}"

    @property
    def checksum(self) -> str:
        """A hash of the file, to compare it with the one that was applied."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def needs_code(self) -> int:
        """The newest migration that code must know to work with the tables after this one."""
        said = _NEEDS_CODE.search(self.text)
        return int(said[1]) if said else self.version

    @property
    def indexes(self) -> tuple[Index, ...]:
        """The indexes that are built after the transaction if their table is large."""
        parts = _CONCURRENTLY.split(self.text)
        return tuple(
            Index(name, table, partial(_creation, template.strip().rstrip(";")))
            for name, table, template in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        )

    def statement(self, shape: Shape) -> str:
        """The file and its record as one statement, which does nothing if the schema already has it."""
        transactional = _CONCURRENTLY.split(self.text)[0]
        body = Statements(shape).render(
            "apply_migration",
            text=sql.SQL(transactional).format(schema=sql.Identifier(shape.schema)),
            version=sql.Literal(self.version),
            migration_name=sql.Literal(self.name),
            checksum=sql.Literal(self.checksum),
            needs_code=sql.Literal(self.needs_code),
        )
        return block(body)


@cache
def migrations() -> tuple[SqlMigration, ...]:
    """All numbered files, lowest first."""
    found = []
    for path in files(__package__).joinpath("migrations").iterdir():
        match = _FILE.fullmatch(path.name)
        if match:
            found.append(SqlMigration(int(match[1]), match[2], path.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.version))


def numbered(version: int) -> tuple[SqlMigration, int]:
    """The file with this number, and the number of the file before it, or 0."""
    found = next(each for each in migrations() if each.version == version)
    return found, max((each.version for each in migrations() if each.version < version), default=0)


def _creation(template: str, shape: Shape, places: Mapping[str, sql.Composable]) -> str:
    return sql.SQL(template).format(schema=sql.Identifier(shape.schema), **places).as_string()
