"""What goes wrong around services, on order: sessions cut, the server gone, leases stolen, locks held, handlers late.

Blocking and short. Call them between two drains, in a handler, or at a point of the work:
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
    """The faults of one world. `transport` are those of the way out."""

    def __init__(self, outbox: Outbox, dsn: str, server: PostgresServerForTests | None = None) -> None:
        """Nothing is wrong. The server is needed to stop it."""
        self.transport = TransportFaults()
        self._late: Counter[str] = Counter()
        self._outbox = outbox
        self._dsn = dsn
        self._server = server
        self._tables = Tables(outbox, dsn)

    def terminate_connections(self, application: str | None = SERVICES) -> int:
        """End sessions in this database: those of relay and consumers, of an application, or (None) everybody's."""
        return len(self._tables.rows("kit_terminate_sessions", application=application))

    def crash_database(self) -> None:
        """The server stops at once, as in a crash, and comes back after its recovery."""
        with self.database_down():
            pass

    @contextmanager
    def database_down(self) -> Iterator[None]:
        """Inside this block there is no server; it was stopped as in a crash (`-m immediate`)."""
        server = self._stoppable()
        server.stop("immediate")
        try:
            yield
        finally:
            server.start()

    def steal_lanes(self) -> int:
        """Every lane is taken by somebody else, who is gone at once: a relay at work becomes a zombie."""
        return len(self._tables.rows("kit_steal_lanes"))

    def steal_consumer(self, name: str) -> int:
        """The same for the worker of a consumer; 0 when nobody works for it."""
        return len(self._tables.rows("kit_steal_consumer", consumer=consumer_named(self._outbox, name).name))

    def rewind(self, consumer: str, position: int = 0) -> int:
        """A consumer's checkpoint goes back, so that its events are delivered once more; returns where it is."""
        name = consumer_named(self._outbox, consumer).name
        rows = self._tables.rows("kit_rewind_consumer", consumer=name, position=position)
        if not rows:
            raise DeclarationError(f"consumer {name!r} has no checkpoint yet: drain once before rewinding it")
        return int(rows[0][0])

    def slow_handler(self, consumer: str, times: int = 1) -> None:
        """The next calls of this consumer's handlers in a drain do their work and then turn out to be too late.

        It is what `timeout` does to a handler, without the waiting: what it wrote is undone, what it did elsewhere
        stays.
        """
        self._late[consumer_named(self._outbox, consumer).name] += times

    def take_late(self, consumer: Consumer) -> BaseException | None:
        """The error of a handler that is too late; asked at the end of each call."""
        if self._late[consumer.name] <= 0:
            return None
        self._late[consumer.name] -= 1
        return HandlerTimeout(
            f"a handler of {consumer.name!r} took longer than {consumer.timeout:g} s: the test's fault"
        )

    @contextmanager
    def locked(self, statement: str, *parameters: Any) -> Iterator[psycopg.Connection[Any]]:
        """Another session has run this statement (`lock table …`, `select … for update`) and has not committed."""
        with psycopg.connect(self._dsn, application_name=APPLICATION) as holder:
            holder.execute(statement.encode(), parameters or None)
            try:
                yield holder
            finally:
                holder.rollback()

    def wait_until_blocked(self, sessions: int = 1, timeout: float = PATIENCE) -> None:
        """Until so many sessions of this database wait for a lock."""
        deadline = time.monotonic() + timeout
        while (blocked := self._tables.rows("kit_blocked_sessions")[0][0]) < sessions:
            if time.monotonic() > deadline:
                raise AssertionError(f"{blocked} sessions wait for a lock after {timeout:g} s, not {sessions}")
            time.sleep(0.005)

    def _stoppable(self) -> EmbeddedPostgres:
        if self._server is None or self._server.embedded is None:
            raise DatabaseError(
                "only an embedded server can be stopped by a test, and this one was given by its address: leave out "
                "--aftercommit-dsn for this test, or stop the server yourself"
            )
        return self._server.embedded
