"""Looks at an outbox again and again: on one connection, and after an outage on a new one."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psycopg

from aftercommit.errors import DatabaseUnavailable
from aftercommit.operate.overview import Overview, overview
from aftercommit.postgres.database import Database, not_connected
from aftercommit.postgres.shape import Shape

FindShape = Callable[[psycopg.Connection[Any]], Shape]


class OverviewReader:
    """One pair of eyes on one outbox."""

    def __init__(self, database: Database, find_shape: FindShape) -> None:
        self._database = database
        self._find_shape = find_shape
        self._connection: psycopg.Connection[Any] | None = None
        self._shape: Shape | None = None

    def now(self) -> Overview:
        """How the outbox is doing; DatabaseUnavailable while the database is away."""
        try:
            if self._connection is None:
                self._connection = self._database.connect_sync()
            if self._shape is None:
                self._shape = self._find_shape(self._connection)
            return overview(self._connection, self._shape)
        except psycopg.errors.QueryCanceled as problem:
            raise DatabaseUnavailable(
                f"PostgreSQL did not let the look at the outbox finish: {problem.diag.message_primary}. Look again, "
                f"or give the user of {self._database.safe_dsn} a longer statement_timeout"
            ) from problem
        except psycopg.OperationalError as problem:
            self.close()
            raise DatabaseUnavailable(str(not_connected(self._database.dsn, problem))) from problem

    def close(self) -> None:
        """Let go of the connection; the next look makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
