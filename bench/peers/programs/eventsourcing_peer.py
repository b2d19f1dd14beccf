"""eventsourcing on psycopg: blocking, so eight connections are eight threads."""

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import InfrastructureFactory, Tracking
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner
from eventsourcing.utils import Environment

from bench.peers.programs.protocol import ORDERS, Arrivals, Program, Tally, parts, serve

PLACE = "insert into orders (customer, total) values (%s, %s)"
PAGE = 500
told: Tally | Arrivals | None = None


class Order(Aggregate):
    """One aggregate per event, as an order that was placed is one."""

    @event("Placed")
    def __init__(self, order_id: str, payload: dict[str, Any]) -> None:
        self.order_id = order_id
        self.payload = payload


class Recorder(PostgresApplicationRecorder):
    """Writes the business row in the transaction of the events, at the place that is meant for such rows."""

    def _insert_events(self, curs: Any, stored_events: Any, **kwargs: Any) -> None:
        if len(stored_events) == 1:
            curs.execute(PLACE, ("customer-17", 12500), prepare=True)


class Shop(Application[Any]):
    """The application whose log is followed."""


class View(PostgresTrackingRecorder):
    """Nothing but the tracking record of each event."""


class Watching(Projection[View]):
    """Handles an event by doing nothing, and records that it has."""

    name = "watching"
    topics = ()

    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        assert told is not None
        told.one()
        self.view.insert_tracking(tracking)


def _take(domain_event: Any) -> None:
    """A handler that does nothing."""


class Eventsourcing(Program):
    """Aggregates saved by an application; a projection that tracks every event."""

    settings = (
        "psycopg, 8 threads; a tracking record per handled event, as its projections do; bulk by its database function"
    )
    tables = ("orders", "shop_events", "watching_tracking")
    undone = """
        select (select max(notification_id) from shop_events)
             > coalesce((select max(notification_id) from watching_tracking), 0)
    """

    async def open(self) -> None:
        place = parts(self.dsn)
        self._env = {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "APPLICATION_RECORDER_TOPIC": f"{Recorder.__module__}:{Recorder.__qualname__}",
            "POSTGRES_DBNAME": place["database"],
            "POSTGRES_HOST": place["host"],
            "POSTGRES_PORT": place["port"],
            "POSTGRES_USER": place["user"],
            "POSTGRES_PASSWORD": "",
            "POSTGRES_POOL_SIZE": "8",
            "POSTGRES_MAX_OVERFLOW": "8",
        }
        self._app = Shop(self._env)
        self._store = self._app.factory.datastore
        # Many events at once go through its database function; that way has no place for rows of one's own.
        self._bulk = Shop({**self._env, "POSTGRES_ENABLE_DB_FUNCTIONS": "y"})
        self._threads = ThreadPoolExecutor(8)
        # Made here so that its table is there from the beginning.
        watching = Environment(Watching.name, self._env)
        self._view: View = InfrastructureFactory.construct(watching).tracking_recorder(View)
        with self._store.transaction(commit=True) as cursor:
            cursor.execute(ORDERS)

    async def publish(self, seconds: float, connections: int, event: bool) -> int:
        until = time.perf_counter() + seconds
        loop = asyncio.get_running_loop()
        running = [loop.run_in_executor(self._threads, self._repeat, event, until) for _ in range(connections)]
        return sum(await asyncio.gather(*running))

    def _repeat(self, event: bool, until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            if event:
                self._app.save(self._order())
            else:
                with self._store.transaction(commit=True) as cursor:
                    cursor.execute(PLACE, ("customer-17", 12500), prepare=True)
            done += 1
        return done

    def _order(self) -> Order:
        return Order(order_id=str(uuid4()), payload=self.payload)

    async def bulk(self, events: int) -> None:
        await asyncio.to_thread(self._bulk.save, *[self._order() for _ in range(events)])

    @asynccontextmanager
    async def working(self, to_tell: Tally | Arrivals) -> AsyncIterator[None]:
        global told
        told = to_tell
        runner = ProjectionRunner(
            application_class=Shop, projection_class=Watching, view_class=View, env={**self._env, "CREATE_TABLE": "n"}
        )
        with runner:
            yield

    async def singles(self, arrivals: Arrivals, singles: int, rest: float) -> list[float]:
        found = []
        for _ in range(singles):
            await asyncio.sleep(rest)
            order = self._order()
            # The whole of save(): its COMMIT cannot be seen apart.
            started = time.perf_counter()
            await asyncio.to_thread(self._app.save, order)
            found.append(1000 * (await arrivals.next() - started))
        return found

    async def is_true(self, query: str) -> bool:
        with self._store.transaction() as cursor:
            cursor.execute(query)
            return any(cursor.fetchone().values())

    async def answer(self, ask: dict[str, Any]) -> dict[str, Any]:
        if ask["do"] == "follow":
            return await asyncio.to_thread(self._follow)
        return await super().answer(ask)

    def _follow(self) -> dict[str, Any]:
        """Walk the whole log by pages, with one tracking record per page: faster, and by hand."""
        cpu, started, done, last = time.process_time(), time.perf_counter(), 0, 0
        while page := self._app.recorder.select_notifications(start=last + 1, limit=PAGE):
            for notification in page:
                _take(self._app.mapper.to_domain_event(notification))
            last = page[-1].id
            done += len(page)
            self._view.insert_tracking(Tracking(self._app.name, last))
        return {
            "events": done,
            "seconds": time.perf_counter() - started,
            "client_cpu": time.process_time() - cpu,
        }

    async def close(self) -> None:
        self._threads.shutdown()
        self._bulk.close()
        self._app.close()


if __name__ == "__main__":
    serve(Eventsourcing)
