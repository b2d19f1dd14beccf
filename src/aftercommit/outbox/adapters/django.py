"""Django: `django.db.connection` or `connections["alias"]`, inside `transaction.atomic()`."""

from collections.abc import Sequence
from typing import Any

import psycopg
from django.db import ProgrammingError

from aftercommit.errors import UnsupportedConnection
from aftercommit.outbox.adapters.psycopg import can_copy, copy_blocking
from aftercommit.outbox.insert import Copy
from aftercommit.outbox.publisher import Rows, SyncPublisher


def find(connection: Any) -> SyncPublisher | None:
    """The adapter for a Django database connection."""
    if not hasattr(connection, "in_atomic_block"):
        return None
    if connection.vendor != "postgresql":
        raise UnsupportedConnection(
            f"the Django database {connection.alias!r} is {connection.vendor}: aftercommit needs PostgreSQL, "
            "pass connections['alias'] of the PostgreSQL database"
        )
    return Django(connection)


class Django(SyncPublisher):
    """A Django connection."""

    style = style_of_one = "text"
    errors = (ProgrammingError,)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def in_transaction(self) -> bool:
        """Whether it is inside atomic(), or Django's autocommit is off."""
        return bool(self._connection.in_atomic_block or not self._connection.get_autocommit())

    def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run a statement on Django's cursor, so that its wrappers and logging see it."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters)

    execute_one = execute

    def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run a statement and return its rows."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: Rows = cursor.fetchall()
            return rows

    def can_copy(self) -> bool:
        """With psycopg 3."""
        driver = self._connection.connection
        return isinstance(driver, psycopg.Connection) and can_copy(driver)

    def copy(self, copy: Copy) -> None:
        """Run a COPY on the driver's connection, with Django's exceptions."""
        with self._connection.wrap_database_errors:
            copy_blocking(self._connection.connection, copy)
