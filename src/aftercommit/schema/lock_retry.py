"""Runs migration steps with short lock timeouts and retries: writers queue behind a session that waits for a lock."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from aftercommit.backoff import Exponential
from aftercommit.errors import DatabaseError
from aftercommit.postgres.blocks import LOCK_CLASS
from aftercommit.postgres.commits import committed
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema.catalog import asking

_BETWEEN_TRIES = Exponential(base=0.2, maximum=3.0)
_IN_THE_WAY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

Result = TypeVar("Result")


class LockRetrier:
    """Runs the steps of a migration, and repeats a step if another session holds a lock, until the time is up."""

    def __init__(
        self, connection: psycopg.Connection[Any], shape: Shape, lock_timeout: float, max_wait_seconds: float
    ) -> None:
        """`lock_timeout` is in seconds. The time of `max_wait_seconds` starts now."""
        self.connection = connection
        self.shape = shape
        self._lock_timeout = lock_timeout
        self._deadline = time.monotonic() + max_wait_seconds

    def run(self, step: Callable[[], Result], *, first: str | None = None) -> Result:
        """Run a step in its own transaction, under the lock that lets one migrator work at a time.

        `first` is a statement that takes a lock before anything else. A concurrent index build waits for every
        transaction with an older snapshot; if such a transaction waited for the build in turn, they would deadlock.
        """

        def in_transaction() -> Result:
            with committed(self.connection):
                if first is not None:
                    self.connection.execute(f"set local lock_timeout = {self._lock_timeout * 1000:.0f}".encode())
                    self.connection.execute(first.encode())
                self._take_lock()
                return step()

        return self._again_and_again(in_transaction)

    def run_outside(self, statement: str) -> None:
        """Run a statement that cannot be part of a transaction; restores the connection's autocommit mode."""
        before = self.connection.autocommit
        self.connection.autocommit = True
        try:
            self._again_and_again(lambda: self.connection.execute(statement.encode()))
        finally:
            if not self.connection.closed:
                self.connection.autocommit = before

    def _again_and_again(self, step: Callable[[], Result]) -> Result:
        attempt = 0
        while True:
            attempt += 1
            try:
                return step()
            except _IN_THE_WAY as problem:
                if time.monotonic() >= self._deadline:
                    raise _blocked(self.connection, self.shape) from problem
                time.sleep(_BETWEEN_TRIES(attempt, problem) or 0)

    def _take_lock(self) -> None:
        remaining = max(self._deadline - time.monotonic(), self._lock_timeout)
        query = Statements(self.shape).render("take_migration_lock", lock_class=sql.Literal(LOCK_CLASS))
        parameters = {
            "schema": self.shape.schema,
            "patience": f"{remaining * 1000:.0f}ms",
            "lock_timeout": f"{self._lock_timeout * 1000:.0f}ms",
        }
        asking(self.connection)(query, parameters)


def _blocked(connection: psycopg.Connection[Any], shape: Shape) -> DatabaseError:
    query = Statements(shape).render("lock_holders", lock_class=sql.Literal(LOCK_CLASS))
    with committed(connection):
        holders = asking(connection)(query, {"schema": shape.schema})
    who = "; ".join(
        f"process {pid} (user {user!r}, application {application!r}, {state}"
        + (f" for {seconds:.0f} s" if seconds is not None else "")
        + f", last statement: {' '.join(statement.split())[:120]!r})"
        for pid, user, application, state, seconds, statement in holders
    )
    return DatabaseError(
        f"schema {shape.schema!r} cannot be migrated now: {who or 'another session'} holds a lock that the migration "
        "needs. Wait until it ends, or end it with select pg_terminate_backend(pid), and migrate again"
    )
