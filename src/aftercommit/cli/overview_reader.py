"""Reads the state of outboxes repeatedly, on one connection; after an outage, on a new one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import psycopg

from aftercommit.errors import DatabaseUnavailable
from aftercommit.operate.overview import Overview, glance, overview
from aftercommit.postgres.database import Database, not_connected
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

_MOST_PREPARED = 1000

FindShape = Callable[[psycopg.Connection[Any]], Shape]


class OverviewReader:
    """Reads the overview of one outbox, or of several one after the other; close it after use."""

    def __init__(self, database: Database, shape: Shape | FindShape) -> None:
        """`shape` can be a function, which is called once there is a connection."""
        self._database = database
        self._shape = shape
        self._connection: psycopg.Connection[Any] | None = None

    def now(self) -> Overview:
        """The present overview; DatabaseUnavailable during an outage."""
        with self._connected() as connection:
            if not isinstance(self._shape, Shape):
                self._shape = self._shape(connection)
            return overview(connection, self._shape)

    def glance(self, statements: Statements) -> Overview:
        """What a panel shows of one of several outboxes; DatabaseUnavailable during an outage."""
        with self._connected() as connection:
            return glance(connection, statements)

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            if self._connection is None:
                self._connection = self._database.connect_sync()
                # The same statements again and again, for each outbox its own: none is planned twice.
                self._connection.prepared_max = _MOST_PREPARED
            yield self._connection
        except psycopg.errors.QueryCanceled as problem:
            raise DatabaseUnavailable(
                f"PostgreSQL cancelled a query about the outbox: {problem.diag.message_primary}. Try again, or give "
                f"the user of {self._database.safe_dsn} a longer statement_timeout"
            ) from problem
        except psycopg.OperationalError as problem:
            self.close()
            raise DatabaseUnavailable(str(not_connected(self._database.dsn, problem))) from problem

    def close(self) -> None:
        """Close the connection; the next `now` opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
