"""The test kit's own look into the tables of an outbox, and its hand in them: short, on connections of its own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import sql

from aftercommit.errors import SchemaNotMigrated
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.postgres.statements import Statements
from aftercommit.testing.published import Published, read_published

APPLICATION: Final = "aftercommit test kit"


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: an event that a consumer (or, as @relay, the transport) has failed on, and where it stands."""

    event_id: UUID
    consumer: str
    status: str
    event_type: str
    attempts: int
    error: str
    error_class: str

    @property
    def is_open(self) -> bool:
        """Whether it still waits for an attempt or for somebody's decision."""
        return self.status in ("retrying", "waiting", "parked")


@dataclass(frozen=True, slots=True)
class TablesState:
    """How far everything has come."""

    pending: int
    retries: int
    head: int
    checkpoints: dict[str, int]
    letters: tuple[Letter, ...]


class Tables:
    """The tables of one outbox in one database."""

    def __init__(self, outbox: Outbox, dsn: str) -> None:
        """Nothing is connected."""
        self._outbox = outbox
        self._database = Database(dsn, application_name=APPLICATION)
        self._statements = Statements(outbox.shape)

    def published(self) -> list[Published]:
        """Every event that is committed, in the order of publishing."""
        return read_published(self.rows("kit_published_events"), self._outbox)

    def state(self) -> TablesState:
        """How far everything has come."""
        pending, retries, head, checkpoints = self.rows("kit_drain_state")[0]
        return TablesState(pending, retries, head, json.loads(checkpoints), self.letters())

    def letters(self) -> tuple[Letter, ...]:
        """Every dead letter."""
        return tuple(Letter(*row) for row in self.rows("kit_letters_of_all"))

    def open_writers(self) -> int:
        """How many transactions have published and have not ended."""
        table = sql.Identifier(self._outbox.schema, "outbox").as_string()
        return len(self.rows("open_writers", outbox=table)[0][0])

    def bring_forward(self) -> bool:
        """Let the time pass until every retry is due; whether there was one."""
        return bool(self.rows("kit_bring_forward")[0][0])

    def rows_changed(self, statement: str, **parameters: Any) -> int:
        """How many rows a statement has changed."""
        with self._connection() as connection:
            return connection.execute(self._statements[statement], parameters).rowcount

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        with self._connection() as connection:
            return connection.execute(self._statements[statement], parameters).fetchall()

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        connection = self._database.connect_sync()
        try:
            connection.execute(self._statements["kit_patience"])
            yield connection
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as problem:
            raise SchemaNotMigrated(
                f"there is no outbox in schema {self._outbox.schema!r} of database {connection.info.dbname!r}: migrate "
                "it in the test's template (outbox.migrate), or give the test kit the outbox that is there"
            ) from problem
        finally:
            connection.close()
