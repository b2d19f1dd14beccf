"""The numbered SQL files: what each one does in a transaction, which indexes it leaves for afterwards, and which code
can work with the tables once it was applied. Pure text.

A file begins with what it is for. `-- needs code: 0002` says that code which knows the migrations up to that one can
work on the new tables, too; without such a line only code that has the file itself can. Behind a line
`-- concurrently: index on table` stands one CREATE INDEX, which is built without blocking writers where the table is
large (docs/decisions/0008-upgrades.md).
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
        """As the file is called."""
        return f"{self.version:04d}_{self.name}"

    @property
    def checksum(self) -> str:
        """Tells whether the file that was applied is the file that is here."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def needs_code(self) -> int:
        """The newest migration that code has to know to work on tables that have had this one."""
        said = _NEEDS_CODE.search(self.text)
        return int(said[1]) if said else self.version

    @property
    def indexes(self) -> tuple[Index, ...]:
        """What is built after the transaction where its table is large."""
        parts = _CONCURRENTLY.split(self.text)
        return tuple(
            Index(name, table, partial(_creation, template.strip().rstrip(";")))
            for name, table, template in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        )

    def statement(self, shape: Shape) -> str:
        """The file and its record as one statement, which does nothing in a schema that has had it."""
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


def _creation(template: str, shape: Shape, places: Mapping[str, sql.Composable]) -> str:
    return sql.SQL(template).format(schema=sql.Identifier(shape.schema), **places).as_string()
