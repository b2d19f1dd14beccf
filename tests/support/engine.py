"""The engine by hand, for tests of the tables: publish, deliver and fail with the statements that the relay uses."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from aftercommit.event.identity import uuid7
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema import migrate

LANES = list(range(64))
MOVED = (
    "id seq lane aggregate_type aggregate_id event_type schema_version occurred_at correlation_id "
    "causation_id "
    "payload retry_count created_at".split()
)
APPEND = sql.SQL("""
    with moved as (delete from {outbox} where id = any(%s) returning *),
    tip as (
        update {head} set position = position + (select count(*) from moved), ts = clock_timestamp()
        returning position, ts
    ),
    appended as (
        insert into {log} (position, ts, {columns})
        select tip.position - count(*) over () + row_number() over (order by seq), tip.ts, {columns}
        from moved, tip
        returning 1
    )
    select (select count(*) from appended), position from tip
""")


@contextmanager
def connected(dsn: str, *, autocommit: bool = True, **options: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection that is closed at the end, whatever state it is in."""
    with closing(psycopg.connect(dsn, autocommit=autocommit, **options)) as connection:
        yield connection


def migrate_up(dsn: str, shape: Shape | None = None) -> None:
    """Migrate on a connection of its own."""
    with connected(dsn) as connection:
        migrate.up(connection, shape or Shape())


def value(connection: psycopg.Connection[Any], query: str, parameters: Sequence[Any] | None = None) -> Any:
    """The first value of the first row."""
    row = connection.execute(query.encode(), parameters).fetchone()
    return row[0] if row else None


def wait_until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Until the condition holds, for what only a look into the database can tell."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{condition} did not come true in {timeout} s"
        time.sleep(0.01)


def waits_for_a_lock(dsn: str, application_name: str) -> bool:
    """Whether a session of this name stands in a queue for a lock."""
    with connected(dsn) as connection:
        query = (
            "select from pg_stat_activity "
            "where datname = current_database() and application_name = %s and wait_event_type = 'Lock'"
        )
        return connection.execute(query, [application_name]).fetchone() is not None


def begin_detaching(dsn: str, table: str, partition: str) -> None:
    """A detach that has begun, waits for somebody who reads the table, and is given up there."""
    begun = f"select inhdetachpending from pg_inherits where inhrelid = '{partition}'::regclass"
    detach = f"alter table {table} detach partition {partition} concurrently"
    with connected(dsn) as connection, connected(dsn) as eyes, ThreadPoolExecutor(1) as operator:
        detaching = operator.submit(connection.execute, detach.encode())
        wait_until(lambda: detaching.done() or value(eyes, begun))
        connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            detaching.result(timeout=60)


class Engine:
    """One outbox on one connection in autocommit mode, which holds all lanes."""

    def __init__(self, connection: psycopg.Connection[Any], shape: Shape | None = None) -> None:
        """Take every lane, from whoever held it."""
        self.connection = connection
        self.shape = shape or Shape()
        self.statements = Statements(self.shape)
        self.token = uuid4()
        take = sql.SQL("update {} set relay = {}, token = {}, leased_until = clock_timestamp() + interval '1 hour'")
        connection.execute(take.format(sql.Identifier(self.shape.schema, "lane"), uuid4(), self.token))

    def publish(self, event_type: str = "thing.happened", payload: str = "{}", **columns: Any) -> UUID:
        """Insert one event as publish() does; its id may be given."""
        row = {
            "id": uuid7(),
            "aggregate_type": "thing",
            "aggregate_id": "1",
            "event_type": event_type,
            "payload": payload,
            "correlation_id": "because",
            **columns,
        }
        names = sql.SQL(", ").join(map(sql.Identifier, row))
        values = sql.SQL(", ").join(map(sql.Literal, row.values()))
        statement = sql.SQL("insert into {} ({}) values ({})")
        self.connection.execute(statement.format(sql.Identifier(self.shape.schema, "outbox"), names, values))
        event_id: UUID = row["id"]
        return event_id

    def deliver(self, *ids: UUID, on: psycopg.Connection[Any] | None = None) -> int:
        """Append to the log, as the relay's statement does without its fence; returns the last position."""
        parts = {
            "columns": sql.SQL(", ").join(map(sql.Identifier, (*MOVED, *self.shape.scope))),
            "outbox": sql.Identifier(self.shape.schema, "outbox"),
            "head": sql.Identifier(self.shape.schema, "head"),
            "log": sql.Identifier(self.shape.schema, "log"),
        }
        row = (on or self.connection).execute(APPEND.format(**parts), [list(ids)]).fetchone()
        assert row is not None
        assert row[0] == len(ids)
        return int(row[1])

    def fail(self, event_id: UUID, *, delay: float | None = None, consumer: str = "@relay") -> None:
        """One failed delivery: retried after `delay` seconds, or for good."""
        failure = {
            "ids": [event_id],
            "consumers": [consumer],
            "errors": ["broken"],
            "classes": ["RuntimeError"],
            "delays": [delay],
            "counts": [1],
            "attempts": [1],
        }
        row = self.connection.execute(self.statements["settle_failures"], {**self.fence, **failure}).fetchone()
        assert row is not None
        assert row[1] == 1

    @property
    def fence(self) -> dict[str, Any]:
        """The parameters by which a statement proves that it holds its lanes."""
        return {
            "lanes": LANES,
            "lane_count": 64,
            "token": self.token,
            "channel": self.shape.log_channel,
        }
