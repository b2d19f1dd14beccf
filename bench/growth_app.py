"""Applications with many consumers or many outboxes, for `aftercommit up`: what is measured is what users run.

Beside them runs a service that publishes single events when a line on standard input asks for it, and says how long
each took to its first and to its last handler.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from aftercommit import Application, Database, Event, Outbox, Service
from bench import shop

CONSUMERS, OUTBOXES = "BENCH_CONSUMERS", "BENCH_OUTBOXES"
PATIENCE = 60.0
REST = 0.2


class Arrivals:
    """The handlers that an event has reached."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.all_there = asyncio.Event()
        self.wanted = 0

    def note(self) -> None:
        """One more."""
        self.moments.append(time.perf_counter())
        if len(self.moments) >= self.wanted:
            self.all_there.set()

    def begin(self, wanted: int) -> None:
        """The next event, which so many handlers get."""
        self.moments, self.wanted = [], wanted
        self.all_there.clear()


class Told(Service):
    """Does what standard input says: `singles 10` publishes ten events, each in all outboxes, one after the other."""

    name = "told"

    def __init__(self, database: Database, arrivals: Arrivals, outboxes: Sequence[Outbox], handlers: int) -> None:
        super().__init__()
        self._database, self._arrivals, self._outboxes, self._handlers = database, arrivals, outboxes, handlers

    async def run(self) -> None:
        """Until standard input is closed."""
        told = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
        async with await psycopg.AsyncConnection.connect(self._database.dsn) as connection:
            while line := await told.readline():
                # What precedes the events is not theirs.
                found = [await self._single(connection) for _ in range(int(line.split()[1]))]
                print(json.dumps(found), flush=True)

    async def _single(self, connection: psycopg.AsyncConnection[Any]) -> tuple[float, float]:
        await asyncio.sleep(REST)
        self._arrivals.begin(self._handlers)
        for outbox in self._outboxes:
            await outbox.publish(connection, shop.EVENTS[0], tenant_id=shop.TENANT)
        began = time.perf_counter()
        await connection.commit()
        await asyncio.wait_for(self._arrivals.all_there.wait(), PATIENCE)
        moments = self._arrivals.moments
        return 1000 * (moments[0] - began), 1000 * (moments[-1] - began)


def declared(arrivals: Arrivals, outboxes: int, consumers: int) -> list[Outbox]:
    """So many outboxes, with so many consumers each."""
    found = []
    for number in range(outboxes):
        outbox = shop.declared(f"bench_{number}")
        for name in range(consumers):

            @outbox.on(shop.OrderPlaced, consumer=f"consumer-{number}-{name}")
            async def take(event: Event[shop.OrderPlaced], connection: Any) -> None:
                arrivals.note()

        found.append(outbox)
    return found


def made(outboxes: int, consumers: int) -> Application:
    """An application of so many."""
    arrivals = Arrivals()
    all_of_them = declared(arrivals, outboxes, consumers)
    return Application(
        about=f"{outboxes} outboxes with {consumers} consumers each",
        outboxes=tuple(all_of_them),
        traffic=lambda database, rate: [Told(database, arrivals, all_of_them, outboxes * consumers)],
    )


application = made(int(os.environ.get(OUTBOXES, "1")), int(os.environ.get(CONSUMERS, "1")))
