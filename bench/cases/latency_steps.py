"""Where a millisecond goes: the moments at which single events pass the places between COMMIT and handler."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from aftercommit import Database, Engine, Event, Outbox
from aftercommit.engine import TransportName
from aftercommit.testing.signals import Signals
from bench import loops, shop
from bench.figures import Delays, Group
from bench.stage import Stage, say

WARM_UP: Final = 5
REST: Final = 0.03
PATIENCE: Final = 30.0
HANDLER: Final = "handler called"
RETURNED: Final = "COMMIT returned"
RUNG: Final = "notification of the commit arrives"
APPENDED_RUNG: Final = "notification of the append arrives"
# Points of our services, and what has happened there.
POINTS: Final = {
    "relay.read": "relay has read the event",
    "relay.deliver": "relay hands it over",
    "relay.appended": "relay has appended it to the log",
    "consumer.read": "consumer has read it",
    "consumer.handled": "effects and checkpoint are committed",
}
Passed = dict[str, float]


class Stopwatch(Signals):
    """A probe that notes when each place was first passed since `begin`."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: Passed = {}
        self.arrived = asyncio.Event()
        self._began = time.perf_counter()

    async def __call__(self, point: str, detail: dict[str, Any]) -> None:
        if point in POINTS and detail.get("count", 1):
            self.note(POINTS[point])
        await super().__call__(point, detail)

    def begin(self) -> None:
        """COMMIT is about to be sent."""
        self.passed = {}
        self.arrived.clear()
        self._began = time.perf_counter()

    def note(self, place: str) -> None:
        """The event is here."""
        self.passed.setdefault(place, 1000 * (time.perf_counter() - self._began))


def table(stage: Stage, name: str, transport: TransportName, dsn: str, singles: int) -> Group:
    """The stations of one transport, in milliseconds from COMMIT being sent."""
    rounds: dict[str, list[list[float]]] = defaultdict(list)
    for number in range(stage.rounds):
        say(f"latency · where a millisecond goes · round {number + 1} · {name}")
        found = loops.run(_singles(dsn, transport, singles))
        for place in _always(found):
            rounds[place].append([passed[place] for passed in found])
    # Leave out probes that some rounds did not reach.
    delays = [Delays(place, rounds=each) for place, each in rounds.items() if len(each) == stage.rounds]
    return Group(f"where a millisecond goes, {name}", "ms", delays=delays, stations=True)


def _always(found: list[Passed]) -> list[str]:
    """Places that every event has passed."""
    return [place for place in found[0] if all(place in passed for passed in found)]


async def _singles(dsn: str, transport: TransportName, count: int) -> list[Passed]:
    outbox, watch = shop.declared(), Stopwatch()

    @outbox.on(shop.OrderPlaced, consumer="bench")
    async def take(event: Event[shop.OrderPlaced], connection: Any) -> None:
        watch.note(HANDLER)
        watch.arrived.set()

    channels = {outbox.shape.publish_channel: RUNG, outbox.shape.log_channel: APPENDED_RUNG}
    async with (
        Engine(outbox, Database(dsn), transport=transport, probe=watch) as engine,
        _hearing(dsn, channels, watch),
        await psycopg.AsyncConnection.connect(dsn) as connection,
    ):
        await engine.up()
        await watch.wait("listener.working")
        found = [await _single(outbox, connection, watch) for _ in range(WARM_UP + count)]
    return found[WARM_UP:]


async def _single(outbox: Outbox, connection: psycopg.AsyncConnection[Any], watch: Stopwatch) -> Passed:
    await asyncio.sleep(REST)
    await outbox.publish(connection, shop.EVENTS[0], tenant_id=shop.TENANT)
    watch.begin()
    await connection.commit()
    watch.note(RETURNED)
    await asyncio.wait_for(watch.arrived.wait(), PATIENCE)
    # What comes behind the handler comes within a moment.
    await asyncio.sleep(REST)
    return watch.passed


@asynccontextmanager
async def _hearing(dsn: str, channels: Mapping[str, str], watch: Stopwatch) -> AsyncIterator[None]:
    """A listener of our own beside that of the engine: when PostgreSQL tells it, it has told the other, too."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        for channel in channels:
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

        async def hear() -> None:
            async for notification in connection.notifies():
                watch.note(channels[notification.channel])

        hearing = asyncio.create_task(hear())
        try:
            yield
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
