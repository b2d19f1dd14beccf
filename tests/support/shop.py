"""The sample service that tests publish from: a shop with tenants and orders."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg

from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.testing.signals import Signals

SCHEMA = "shop"
SCOPE: dict[str, type[Any]] = {"tenant_id": str}


@dataclass(frozen=True)
class OrderPlaced:
    """An order was placed; `number` counts up within the order in tests about order."""

    order_id: str
    number: int = 0
    note: str = ""


@dataclass(frozen=True)
class OrderPaid:
    """An order was paid."""

    order_id: str
    amount: int


def shop_outbox(**options: Any) -> Outbox:
    """The shop's outbox, declared anew (consumers belong to the declaration)."""
    outbox = Outbox(SCHEMA, scope=SCOPE, **options)
    outbox.declare("order.placed", OrderPlaced, aggregate="order", key="order_id")
    outbox.declare("order.paid", OrderPaid, aggregate="order", key="order_id")
    return outbox


class Eyes:
    """A connection for all that one test looks at and writes: making one costs more than using it."""

    def __init__(self, dsn: str) -> None:
        """Nothing is connected before the first look."""
        self._dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None

    def rows(self, query: str, parameters: list[Any] | None) -> list[tuple[Any, ...]]:
        """Rows of a query; once more where the connection had been ended, as tests do to all that there are."""
        known = self._connection is not None
        try:
            return _rows(self._opened(), query, parameters)
        except psycopg.OperationalError:
            if not known or not self._opened().broken:
                raise
            self.close()
            return _rows(self._opened(), query, parameters)

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """One of its own, on a connection that was alive just now."""
        self.rows("select 1", None)
        with self._opened().transaction():
            yield self._opened()

    def close(self) -> None:
        """Until the next look."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _opened(self) -> psycopg.Connection[Any]:
        self._connection = self._connection or _open_eyes(self._dsn)
        return self._connection


_eyes: dict[str, Eyes] = {}


@contextmanager
def eyes_kept(dsn: str) -> Iterator[None]:
    """While this lasts, what looks into this database or writes to it from the main thread shares a connection."""
    _eyes[dsn] = Eyes(dsn)
    try:
        yield
    finally:
        _eyes.pop(dsn).close()


def _open_eyes(dsn: str) -> psycopg.Connection[Any]:
    # Tests change tables between looks: nothing is prepared that would remember what they were.
    connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
    connection.execute("set search_path to shop, public")
    return connection


def _rows(connection: psycopg.Connection[Any], query: str, parameters: list[Any] | None) -> list[tuple[Any, ...]]:
    cursor = connection.execute(query.encode(), parameters)
    return cursor.fetchall() if cursor.description else []


@dataclass
class Shop:
    """A migrated database of the test's own, the outbox on it, and a look into its tables."""

    dsn: str
    outbox: Outbox = field(default_factory=shop_outbox)
    signals: Signals = field(default_factory=Signals)

    @property
    def database(self) -> Database:
        """How services connect."""
        return Database(self.dsn)

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        """A connection for a writer."""
        return psycopg.connect(self.dsn, autocommit=autocommit)

    def publish(self, *events: Any, tenant_id: str = "acme") -> tuple[UUID, ...]:
        """Publish and commit in a transaction of its own."""
        kept = self._kept
        with self.connect() if kept is None else kept.transaction() as connection:
            return self.outbox.publish(connection, list(events), tenant_id=tenant_id).event_ids

    def place(self, order_id: str = "o-1", number: int = 0, **fields: Any) -> UUID:
        """Publish one placed order."""
        return self.publish(OrderPlaced(order_id, number, **fields))[0]

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query with the shop's schema on the search path."""
        given, kept = list(parameters) or None, self._kept
        if kept is not None:
            return kept.rows(query, given)
        with closing(_open_eyes(self.dsn)) as connection:
            return _rows(connection, query, given)

    @property
    def _kept(self) -> Eyes | None:
        return _eyes.get(self.dsn) if threading.current_thread() is threading.main_thread() else None

    def value(self, query: str, parameters: Iterable[Any] = ()) -> Any:
        """The first value of the first row."""
        return self.rows(query, parameters)[0][0]

    def log(self) -> list[tuple[int, str, int]]:
        """The log: position, order id and the order's own number."""
        return self.rows("select position, aggregate_id, (payload->>'number')::int from log order by position")

    async def value_becomes(self, query: str, expected: Any, timeout: float = 60.0) -> None:
        """Until a query has this value, for what no signal tells (another process's work)."""
        # One connection for all the looks: making one costs more than the rest of a test that waits for a while.
        async with asyncio.timeout(timeout), await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as eyes:
            await eyes.execute("set search_path to shop, public")
            while (await (await eyes.execute(query.encode())).fetchone() or (None,))[0] != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
