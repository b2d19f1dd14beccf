"""Faults for tests: cut sessions, stop the server, steal leases, hold locks, let handlers time out.

The methods block, for a short time. Call them between two drains, in a handler, or at a named point:
`world.at("relay.delivered", world.faults.steal_lanes)`.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from aftercommit.embedded import EmbeddedPostgres
from aftercommit.errors import DatabaseError, DeclarationError, HandlerTimeout
from aftercommit.outbox import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.testing.drain import consumer_named
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.tables import APPLICATION, Tables
from aftercommit.testing.transports import TransportFaults

SERVICES: Final = "aftercommit"
PATIENCE: Final = 60.0


class Faults:
    """The faults of one world. `transport` has those of the transport."""

    def __init__(self, outbox: Outbox, dsn: str, server: PostgresServerForTests | None = None) -> None:
        """`server` is needed for faults that stop it."""
        self.transport = TransportFaults()
        self._late: Counter[str] = Counter()
        self._outbox = outbox
        self._dsn = dsn
        self._server = server
        self._tables = Tables(outbox, dsn)

    def terminate_connections(self, application: str | None = SERVICES) -> int:
        """End sessions in this database: of relay and consumers, of another application_name, or (None) all."""
        return len(self._tables.rows("kit_terminate_sessions", application=application))

    def crash_database(self) -> None:
        """Stop the server as in a crash (`-m immediate`), and start it again."""
        with self.database_down():
            pass

    @contextmanager
    def database_down(self) -> Iterator[None]:
        """Inside this block the server is down, stopped as in a crash (`-m immediate`)."""
        server = self._stoppable()
        server.stop("immediate")
        try:
            yield
        finally:
            server.start()

    def steal_lanes(self) -> int:
        """Let another relay take every lane, so that a running relay becomes a zombie; returns how many."""
        return len(self._tables.rows("kit_steal_lanes"))

    def steal_consumer(self, name: str) -> int:
        """Let another worker take the consumer's lease; returns 0 if no worker holds it."""
        return len(self._tables.rows("kit_steal_consumer", consumer=consumer_named(self._outbox, name).name))

    def rewind(self, consumer: str, position: int = 0) -> int:
        """Move a consumer's checkpoint back, so that events are delivered again; returns the new checkpoint."""
        name = consumer_named(self._outbox, consumer).name
        rows = self._tables.rows("kit_rewind_consumer", consumer=name, position=position)
        if not rows:
            raise DeclarationError(f"consumer {name!r} has no checkpoint yet: drain once before rewinding it")
        return int(rows[0][0])

    def slow_handler(self, consumer: str, times: int = 1) -> None:
        """Let the next calls of this consumer's handlers time out in a drain, after they have done their work.

        As with a real timeout, but without the wait: changes in the transaction are rolled back, other effects stay.
        """
        self._late[consumer_named(self._outbox, consumer).name] += times

    def take_late(self, consumer: Consumer) -> BaseException | None:
        """The error of a handler that times out; called at the end of each handler."""
        if self._late[consumer.name] <= 0:
            return None
        self._late[consumer.name] -= 1
        return HandlerTimeout(
            f"a handler of {consumer.name!r} took longer than {consumer.timeout:g} s (simulated by the test)"
        )

    @contextmanager
    def locked(self, statement: str, *parameters: Any) -> Iterator[psycopg.Connection[Any]]:
        """Inside this block, another session has run this statement (`lock table …`) and not committed."""
        with psycopg.connect(self._dsn, application_name=APPLICATION) as holder:
            holder.execute(statement.encode(), parameters or None)
            try:
                yield holder
            finally:
                holder.rollback()

    def wait_until_blocked(self, sessions: int = 1, timeout: float = PATIENCE) -> None:
        """Wait until so many sessions of this database wait for a lock."""
        deadline = time.monotonic() + timeout
        while (blocked := self._tables.rows("kit_blocked_sessions")[0][0]) < sessions:
            if time.monotonic() > deadline:
                raise AssertionError(f"{blocked} sessions wait for a lock after {timeout:g} s, not {sessions}")
            time.sleep(0.005)

    def _stoppable(self) -> EmbeddedPostgres:
        if self._server is None or self._server.embedded is None:
            raise DatabaseError(
                "a test can stop an embedded server only, and this server was given by its DSN: run this test without "
                "--aftercommit-dsn, or stop the server yourself"
            )
        return self._server.embedded
