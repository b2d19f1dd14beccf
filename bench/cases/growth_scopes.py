"""An outbox with one scope column and one with twenty: bulk publish on both drivers, and the relay's drain."""

from typing import Any

import asyncpg
import psycopg

from aftercommit import Outbox
from aftercommit.schema import migrate
from bench import engines, growing, loops, shop
from bench.cases.bulk import PER_CALL
from bench.figures import Finding, Sample
from bench.growing import Play, Values
from bench.peers.peer import Peers
from bench.stage import Stage

NAME = "growth-scopes"
TITLE = "Growth: scope columns"
ABOUT = (
    "Two outboxes, one with a single scope column and one with twenty text columns, each with values of its own. 1,000 "
    "events per call are published with psycopg and with asyncpg, and the relay moves a backlog to the log."
)
SMALL, LARGE = 1, 20
CALLS = 20
EVENTS = 50_000
LEAST_DRAIN = 0.7
UNITS = {"relay drain": "ev/s", "relay, CPU": "µs/event", "bulk, psycopg": "ev/s", "bulk, asyncpg": "ev/s"}


def run(stage: Stage, peers: Peers) -> Finding:
    """Both outboxes in turns."""
    dsn = stage.database("bench_growth_scopes")
    names = {count: f"{count} scope column{'s' if count > 1 else ''}" for count in (SMALL, LARGE)}
    sizes = {name: _playing(stage, dsn, count) for count, name in names.items()}
    group = growing.measure(stage, "scopes", UNITS, sizes)
    return Finding(NAME, TITLE, ABOUT, [group], [growing.ratio(group, "relay drain", "at least", LEAST_DRAIN)])


def declared(count: int) -> Outbox:
    """An outbox with so many scope columns."""
    outbox = Outbox(f"bench_{count}", scope={"tenant_id": str, **dict.fromkeys(_others(count), str)})
    outbox.declare("order.placed", shop.OrderPlaced, aggregate="order", key="order_id")
    return outbox


def _others(count: int) -> list[str]:
    return [f"scope_{number}" for number in range(1, count)]


def _playing(stage: Stage, dsn: str, count: int) -> Play:
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, declared(count).shape)
    events, calls = stage.sizes.count(EVENTS, least=1000), stage.sizes.count(CALLS, least=2)

    def play() -> Values:
        _empty(stage, dsn, count)
        with stage.connect(dsn) as connection:
            shop.fill(connection, f"bench_{count}", events, _others(count))
        drained = engines.relay(stage, dsn, events, declared(count))
        _empty(stage, dsn, count)
        blocking = _publish(stage, dsn, count, calls)
        _empty(stage, dsn, count)
        awaited = loops.run(_publish_async(stage, dsn, count, calls))
        cpu = 1e6 * (drained.client_cpu + drained.server_cpu) / drained.events
        return dict(zip(UNITS, (drained.rate, cpu, blocking.rate, awaited.rate), strict=True))

    return play


def _empty(stage: Stage, dsn: str, count: int) -> None:
    with stage.connect(dsn) as connection:
        connection.execute(f"truncate bench_{count}.log, bench_{count}.outbox".encode())
        connection.execute(f"update bench_{count}.head set position = 0".encode())
        connection.execute("checkpoint")


def _scope(count: int, call: int) -> dict[str, Any]:
    return {"tenant_id": shop.TENANT, **dict.fromkeys(_others(count), f"value-{call}")}


def _publish(stage: Stage, dsn: str, count: int, calls: int) -> Sample:
    outbox = declared(count)
    with psycopg.connect(dsn) as connection, stage.watch() as watch:
        for call in range(calls):
            outbox.publish(connection, shop.EVENTS[:PER_CALL], **_scope(count, call))
            connection.commit()
            watch.events += PER_CALL
    return watch.taken


async def _publish_async(stage: Stage, dsn: str, count: int, calls: int) -> Sample:
    outbox = declared(count)
    connection = await asyncpg.connect(dsn)
    with stage.watch() as watch:
        for call in range(calls):
            async with connection.transaction():
                await outbox.publish(connection, shop.EVENTS[:PER_CALL], **_scope(count, call))
            watch.events += PER_CALL
    await connection.close()
    return watch.taken
