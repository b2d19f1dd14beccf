"""Harnesses of the transports that need nothing but the database: the log, and the bus with real handlers."""

import json
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import psycopg

from aftercommit.consumer import Dispatcher
from aftercommit.event.envelope import Event, Record
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay
from aftercommit.relay.transport import Failure
from aftercommit.relay.transports import BusTransport, LogTransport
from aftercommit.schema import migrate
from aftercommit.testing.transport_harness import AGGREGATE_TYPE, EVENT_TYPE, Received, TransportHarness

SCHEMA = "transport_suite"


class DatabaseHarness(TransportHarness):
    """An outbox in a database of the case's own."""

    can_crash = True

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.database = Database(dsn)
        self.outbox = Outbox(SCHEMA)
        self.outbox.declare(EVENT_TYPE, aggregate=AGGREGATE_TYPE)

    async def stop(self) -> None:
        """The database is dropped by its fixture."""

    async def crash(self) -> None:
        """Everybody's sessions end in the middle of whatever they do."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()


class LogHarness(DatabaseHarness):
    """The log transport carries nothing: with the relay's append, delivery is done."""

    async def start(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            migrate.up(connection, self.outbox.shape)
        self.transport = LogTransport()
        self._relay = Relay(self.outbox, self.database, self.transport)
        self._published: set[UUID] = set()
        self._connections = [await self.database.connect()]
        await self._relay.lanes.tick(self._connections[0])

    async def stop(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """An event is published once, however often the relay has to begin again with its delivery."""
        failures = await self.transport.deliver(records)
        with psycopg.connect(self.dsn) as connection:
            for each in records:
                if each.event_id not in self._published:
                    self._publish(connection, each)
        self._published.update(each.event_id for each in records)
        await self._append()
        return failures

    async def received(self) -> Sequence[Received]:
        found = self.rows(f"select id, aggregate_id, payload from {SCHEMA}.log order by position")
        return [Received(*row) for row in found]

    def _publish(self, connection: psycopg.Connection[Any], each: Record) -> None:
        draft = self.outbox.registry.resolve(EVENT_TYPE).draft(
            json.loads(each.payload), event_id=each.event_id, aggregate_id=each.aggregate_id
        )
        self.outbox.publish(connection, draft)

    async def _append(self) -> None:
        connection = await self.database.connect()
        self._connections.append(connection)
        carrier = self._relay.carrier()
        batch = await carrier.read(connection, self._relay.lanes.held)
        while batch.events:
            await carrier.carry(connection, batch)
            batch = await carrier.read(connection, self._relay.lanes.held)


class BusHarness(DatabaseHarness):
    """The bus with a consumer that writes what it gets into a table, in the transaction of its inbox row."""

    can_refuse = True

    def __init__(self, dsn: str, *, concurrency: int = 1, blocking: bool = False) -> None:
        super().__init__(dsn)
        self._refused: frozenset[UUID] = frozenset()
        consumer = self.outbox.consumer("receiver", retry_count=0, concurrency=concurrency)
        consumer.on(EVENT_TYPE)(self._handle_blocking if blocking else self._handle)

    async def start(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            migrate.up(connection, self.outbox.shape)
            connection.execute(
                "create table received "
                "(id bigint generated always as identity, event_id uuid, aggregate_id text, payload json)"
            )
        self.transport = BusTransport(Dispatcher(self.outbox, self.database))

    async def received(self) -> Sequence[Received]:
        return [Received(*row) for row in self.rows("select event_id, aggregate_id, payload from received order by id")]

    def refuse(self, event_ids: Collection[UUID]) -> None:
        self._refused = frozenset(event_ids)

    async def _handle(self, event: Event[Any], connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(INSERT, self._row(event))

    def _handle_blocking(self, event: Event[Any], connection: psycopg.Connection[Any]) -> None:
        connection.execute(INSERT, self._row(event))

    def _row(self, event: Event[Any]) -> tuple[Any, ...]:
        if event.event_id in self._refused:
            raise RuntimeError("refused")
        return event.event_id, event.aggregate_id, json.dumps(event.payload)


INSERT = "insert into received (event_id, aggregate_id, payload) values (%s, %s, %s)"
