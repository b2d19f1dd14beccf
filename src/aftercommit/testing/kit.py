"""The common base of `World` and `AsyncWorld`."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import psycopg

from aftercommit.errors import DeclarationError
from aftercommit.outbox import Outbox
from aftercommit.outbox.adapters import publisher_for
from aftercommit.outbox.handlers import Consumer
from aftercommit.outbox.publisher import AsyncPublisher
from aftercommit.postgres.database import Database
from aftercommit.postgres.statements import Statements
from aftercommit.testing.deliver_twice import DeliveredTwice, Deliveries
from aftercommit.testing.drain import Drain, Drained, TransportChoice, consumer_named
from aftercommit.testing.expectations import Expected
from aftercommit.testing.faults import Faults
from aftercommit.testing.points import Action, Plan, Points
from aftercommit.testing.postgres import PostgresServerForTests, with_database
from aftercommit.testing.published import Published, read_published
from aftercommit.testing.spy import Spy
from aftercommit.testing.tables import Letter, Tables

if TYPE_CHECKING:
    from aftercommit.outbox.adapters import AsyncTarget, SyncTarget

    SyncPlace: TypeAlias = SyncTarget | str
    AnyPlace: TypeAlias = SyncTarget | AsyncTarget | str

Effects = str | Callable[[], Any]


class Kit:
    """An outbox in the test's own database.

    `transport` is how `drain` delivers: "log", "bus" or a Transport. `points` are named points in the work of services,
    `faults` the faults to simulate.
    """

    def __init__(
        self,
        outbox: Outbox,
        dsn: str,
        *,
        transport: TransportChoice = "log",
        server: PostgresServerForTests | None = None,
    ) -> None:
        """The database must have the outbox's tables. `server` is needed for faults that stop it."""
        self.outbox = outbox
        self.dsn = dsn
        self.transport = transport
        self.points = Points()
        self.faults = Faults(outbox, dsn, server)
        self._tables = Tables(outbox, dsn)

    @property
    def database(self) -> Database:
        """The database, for your own Relay, LogWorker or Engine."""
        return Database(self.dsn)

    def url(self, dialect: str = "postgresql+psycopg") -> str:
        """The URL for SQLAlchemy: `create_engine(world.url())`, or `world.url("postgresql+asyncpg")`."""
        address = with_database(self.dsn, str(psycopg.conninfo.conninfo_to_dict(self.dsn).get("dbname") or ""))
        return address.replace("postgresql:", f"{dialect}:", 1)

    def crash_at(self, point: str, *, times: int = 1, after: int = 0) -> Plan:
        """In the next drain, let services die at this point, `times` times; new ones take over."""
        return self.points.crash_at(point, times=times, after=after)

    def at(self, point: str, action: Action, *, times: int = 1, after: int = 0) -> Plan:
        """In the next drain, do this at the point: `world.at("relay.deliver", world.faults.crash_database)`."""
        return self.points.at(point, action, times=times, after=after)

    async def _drain(
        self, transport: TransportChoice | None, consumers: Sequence[str] | None, **limits: Any
    ) -> Drained:
        drain = Drain(
            self.outbox,
            self.dsn,
            transport=self.transport if transport is None else transport,
            points=self.points,
            spy=Spy(self.faults.take_late),
            faults=self.faults.transport,
            consumers=consumers,
        )
        return await drain.run(**limits)

    async def _deliver_twice(
        self, consumer: str | Consumer | Callable[..., Any], event: Any, effects: Effects, scope: Mapping[str, Any]
    ) -> Deliveries:
        found = await asyncio.to_thread(self._find, event, scope)
        delivered = DeliveredTwice(self.outbox, self.dsn, self._consumer(consumer), found, self._looking(effects))
        return await delivered.run()

    def _publish(self, events: Sequence[Any], scope: Mapping[str, Any]) -> tuple[UUID, ...]:
        with psycopg.connect(self.dsn) as connection:
            return self.outbox.publish(connection, list(events), **scope).event_ids

    def _find(self, event: Any, scope: Mapping[str, Any]) -> Published:
        """A published event, by itself or by its id, or an event to publish now."""
        if isinstance(event, Published):
            return event
        event_id = event if isinstance(event, UUID) else self._publish([event], scope)[0]
        for published in self._tables.published():
            if published.event_id == event_id:
                return published
        raise DeclarationError(f"event {event_id} is not in the outbox or the log: commit it first")

    def _consumer(self, consumer: str | Consumer | Callable[..., Any]) -> Consumer:
        """The consumer by its name, itself, or one of its handlers."""
        if isinstance(consumer, Consumer):
            return consumer
        if isinstance(consumer, str):
            return consumer_named(self.outbox, consumer)
        for declared in self.outbox.consumers.values():
            if any(handler.function == consumer for handler in declared.handlers):
                return declared
        raise DeclarationError(f"{consumer!r:.120} is not a handler of a consumer of outbox {self.outbox.schema!r}")

    def _looking(self, effects: Effects) -> Callable[[], Any]:
        async def look() -> Any:
            if isinstance(effects, str):
                return await asyncio.to_thread(self._query, effects)
            seen = effects()
            return await seen if inspect.isawaitable(seen) else seen

        return look

    def _query(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def _letters(self) -> tuple[Letter, ...]:
        return tuple(letter for letter in self._tables.letters() if letter.is_open)

    def _published(self, on: "SyncPlace | None") -> list[Published]:
        if on is None:
            return self._tables.published()
        if isinstance(on, str):
            return Tables(self.outbox, on).published()
        publisher = publisher_for(on)
        if isinstance(publisher, AsyncPublisher):
            raise DeclarationError(
                f"on={on!r:.80} is an async connection: use aftercommit_async_world and await what it returns"
            )
        return read_published(publisher.fetch(self._question, ()), self.outbox)

    async def _published_async(self, on: "AnyPlace | None") -> list[Published]:
        if on is None or isinstance(on, str):
            return await asyncio.to_thread(self._published, on)
        publisher = publisher_for(on)
        if isinstance(publisher, AsyncPublisher):
            return read_published(await publisher.fetch(self._question, ()), self.outbox)
        return read_published(publisher.fetch(self._question, ()), self.outbox)

    @property
    def _question(self) -> str:
        return Statements(self.outbox.shape)["kit_published_events"].decode()

    def _remark(self, on: "AnyPlace | None") -> str | None:
        """A possible reason for a missing event: a transaction that has not committed."""
        if on is not None or not (writers := self._tables.open_writers()):
            return None
        return (
            f"{writers} open transaction{'s have' if writers > 1 else ' has'} published events and not committed: "
            "commit first, or pass on=connection"
        )


def expectations(events: Sequence[object]) -> list[Expected]:
    """Event types and events as expectations."""
    return [event if isinstance(event, Expected) else Expected(event) for event in events]
