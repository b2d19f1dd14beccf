"""Consumers in trouble: one slow aggregate among many, and a tenth of the events that fail."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

from aftercommit import Constant, Database, Engine, Event, Outbox
from bench import growing, loops, shop
from bench.cases import consumer
from bench.figures import Finding
from bench.growing import Values
from bench.peers.peer import Peers
from bench.stage import Stage

NAME = "growth-order"
TITLE = "Growth: slow aggregates and failing events"
ABOUT = (
    "A consumer with an inbox works through a log. *Slow aggregate*: concurrency 8, and the handler waits 50 ms for "
    "each event of one aggregate in five thousand; the figure is the time until the last event of the others was "
    "handled. *Failing tenth*: in relaxed order the handler refuses one event in ten, which becomes a dead letter for "
    "later; the figure is the rate of the whole log, to the checkpoint at its end. *Without connection* is a handler "
    "that takes the event alone."
)
EVENTS = 20_000
SLOW_EVENTS = 100
SLOW = "o-0"
SECONDS = 0.05
SLOWER, SHARE, WITHOUT_CONNECTION = 2.0, 0.5, 0.5
PATIENCE = 300.0
LOOK = 0.01
POSITION = "select position from bench.consumer where name = %s"
# The slow aggregate has as many events as it may have, evenly spread; the rest of its own become another's.
SPREAD = """
    update bench.log set aggregate_id = 'o-1', payload = (payload::jsonb || '{"order_id": "o-1"}')::json
    where aggregate_id = 'o-0';
    update bench.log set aggregate_id = 'o-0', payload = (payload::jsonb || '{"order_id": "o-0"}')::json
    where mod(position, %s) = 0
"""
LAST, RATE = "last event of the others", "rate"
_names = itertools.count()
Declare = Callable[[Outbox, str], None]


class Refused(Exception):
    """The handler does not take the event."""


def run(stage: Stage, peers: Peers) -> Finding:
    """With and without trouble, in turns."""
    events = stage.sizes.count(EVENTS, least=500)
    slow = max(2, SLOW_EVENTS * events // EVENTS)
    dsn = stage.database("bench_growth_order")
    consumer.prepare(stage, dsn, events)
    with stage.connect(dsn) as connection:
        for statement in SPREAD.split(";"):
            parameters = (events // slow,) if "%s" in statement else None
            connection.execute(statement.encode(), parameters)
        connection.execute("vacuum analyze bench.log")
    aggregate = growing.measure(
        stage,
        "slow aggregate",
        {LAST: "s"},
        {
            "all quick": lambda: {LAST: loops.run(_last_of_others(dsn, events - slow, 0.0))},
            f"one slow, {slow} × {SECONDS * 1000:g} ms": lambda: {
                LAST: loops.run(_last_of_others(dsn, events - slow, SECONDS))
            },
        },
    )
    failing = _rates(stage, dsn, events, "failing tenth", ("none fails", _plain), ("a tenth fails", _failing))
    bare = _rates(stage, dsn, events, "handler without connection", ("with", _plain), ("without", _without_connection))
    verdicts = [
        growing.ratio(aggregate, LAST, "at most", SLOWER),
        growing.ratio(failing, RATE, "at least", SHARE),
        growing.ratio(bare, RATE, "at least", WITHOUT_CONNECTION),
    ]
    return Finding(NAME, TITLE, ABOUT, [aggregate, failing, bare], verdicts)


def _rates(stage: Stage, dsn: str, events: int, title: str, *declared: tuple[str, Declare]) -> Any:
    def playing(declare: Declare) -> Callable[[], Values]:
        return lambda: {RATE: events / loops.run(_to_the_end(stage, dsn, events, declare))}

    return growing.measure(stage, title, {RATE: "ev/s"}, {name: playing(declare) for name, declare in declared})


def _plain(outbox: Outbox, name: str) -> None:
    @outbox.consumer(name, backoff=Constant(PATIENCE), start="earliest").on(shop.OrderPlaced)
    async def take(event: Event[shop.OrderPlaced], connection: Any) -> None:
        """Takes the event and does nothing."""


def _failing(outbox: Outbox, name: str) -> None:
    @outbox.consumer(name, backoff=Constant(PATIENCE), start="earliest").on(shop.OrderPlaced)
    async def take(event: Event[shop.OrderPlaced], connection: Any) -> None:
        if event.payload.number % 10 == 0:
            raise Refused("one in ten")


def _without_connection(outbox: Outbox, name: str) -> None:
    @outbox.consumer(name, backoff=Constant(PATIENCE), start="earliest").on(shop.OrderPlaced)
    async def take(event: Event[shop.OrderPlaced]) -> None:
        """Takes the event and does nothing."""


async def _last_of_others(dsn: str, others: int, seconds: float) -> float:
    """Seconds from the first event to the last one that is not of the slow aggregate."""
    outbox, seen, all_seen = shop.declared(), set[int](), asyncio.Event()
    moments: list[float] = []

    @outbox.consumer(f"slow-{next(_names)}", concurrency=8, start="earliest").on(shop.OrderPlaced)
    async def take(event: Event[shop.OrderPlaced], connection: Any) -> None:
        moments.append(time.perf_counter())
        if event.payload.order_id == SLOW:
            await asyncio.sleep(seconds)
            return
        seen.add(event.payload.number)
        if len(seen) == others:
            all_seen.set()

    async with Engine(outbox, Database(dsn), relay=False):
        await asyncio.wait_for(all_seen.wait(), PATIENCE)
        return moments[-1] - moments[0]


async def _to_the_end(stage: Stage, dsn: str, events: int, declare: Declare) -> float:
    """Seconds from the start of the worker until its checkpoint is at the end of the log."""
    outbox, name = shop.declared(), f"consumer-{next(_names)}"
    declare(outbox, name)
    with stage.connect(dsn) as connection:
        async with Engine(outbox, Database(dsn), relay=False) as engine:
            await engine.up()
            began = time.perf_counter()
            while True:
                row = connection.execute(POSITION, (name,)).fetchone()
                if row is not None and row[0] >= events:
                    return time.perf_counter() - began
                if time.perf_counter() - began > PATIENCE:
                    raise RuntimeError(f"{name} stands at {row} of {events}")
                await asyncio.sleep(LOOK)
