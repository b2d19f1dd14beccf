"""Reads and changes the tables of an outbox for the test kit, on short connections of its own."""

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
    """A dead letter: an event that a consumer (or, as @relay, the transport) has failed on, with its status."""

    event_id: UUID
    consumer: str
    status: str
    event_type: str
    attempts: int
    error: str
    error_class: str

    @property
    def is_open(self) -> bool:
        """Whether it waits for another attempt or for an operator."""
        return self.status in ("retrying", "waiting", "parked")


@dataclass(frozen=True, slots=True)
class TablesState:
    """The progress of relay and consumers."""

    pending: int
    retries: int
    head: int
    checkpoints: dict[str, int]
    letters: tuple[Letter, ...]


class Tables:
    """The tables of one outbox in one database."""

    def __init__(self, outbox: Outbox, dsn: str) -> None:
        self._outbox = outbox
        self._database = Database(dsn, application_name=APPLICATION)
        self._statements = Statements(outbox.shape)

    def published(self) -> list[Published]:
        """All committed events, in the order of publishing."""
        return read_published(self.rows("kit_published_events"), self._outbox)

    def state(self) -> TablesState:
        """The progress of relay and consumers."""
        pending, retries, head, checkpoints = self.rows("kit_drain_state")[0]
        return TablesState(pending, retries, head, json.loads(checkpoints), self.letters())

    def letters(self) -> tuple[Letter, ...]:
        """All dead letters."""
        return tuple(Letter(*row) for row in self.rows("kit_letters_of_all"))

    def open_writers(self) -> int:
        """How many open transactions have published."""
        table = sql.Identifier(self._outbox.schema, "outbox").as_string()
        return len(self.rows("open_writers", outbox=table)[0][0])

    def bring_forward(self) -> bool:
        """Make every retry due now; returns whether there was one."""
        return bool(self.rows("kit_bring_forward")[0][0])

    def rows_changed(self, statement: str, **parameters: Any) -> int:
        """Run a statement; returns how many rows it has changed."""
        with self._connection() as connection:
            return connection.execute(self._statements[statement], parameters).rowcount

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement; returns its rows."""
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
                "it in the test's template (outbox.migrate), or give the test kit another outbox"
            ) from problem
        finally:
            connection.close()
