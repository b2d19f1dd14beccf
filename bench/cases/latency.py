"""From commit to handler while nothing else happens: single events, one after the other."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import psycopg

from aftercommit import Database, Engine, Event, Outbox
from aftercommit.engine import TransportName
from aftercommit.testing.signals import Signals
from bench import loops, shop
from bench.cases import latency_floor, latency_steps
from bench.figures import Delays, Finding, Group, Spread, Verdict, percentile
from bench.peers.peer import Peer, Peers
from bench.stage import ContestantFailed, Stage, say, tell

NAME = "latency"
TITLE = "Latency from commit to handler"
ABOUT = (
    "One event at a time on an idle system, published and handled by the same process on one event loop. The clock "
    "starts just before COMMIT is sent and stops when the handler is called, so it includes the commit's own wait for "
    "the disk. Two floors are written by hand: a notification wakes a process that makes the writes of this way and no "
    "others. Percentiles are taken per round; shown are their median, lowest and highest. *Where a millisecond goes* "
    "are events of their own: times count from the moment COMMIT is sent, notifications are those that a listener "
    "beside the engine hears, and a step is the difference of two medians."
)
SINGLES = 100
ROUNDS = 8
WARM_UP = 5
REST = 0.03
CONSUMER = "bench"
# Who is to be at most how much slower than whom, at p50 and at p99.
TARGETS = (
    ("aftercommit bus", "graphile-worker", 1.0),
    ("aftercommit bus", "pgqueuer", 1.0),
    ("aftercommit log consumer", "pgqueuer", 1.2),
)
OURS: dict[str, TransportName] = {"aftercommit bus": "bus", "aftercommit log consumer": "log"}
FLOORS: dict[str, latency_floor.Way] = {"raw bus": latency_floor.bus, "raw log": latency_floor.log}
# Who polls is slow whatever one does: a few singles tell that as well as many.
POLLING = ("pg-boss",)
FEW = 3
NOTES = {
    "raw bus": "by hand: the handler's transaction takes the event and writes an inbox row",
    "raw log": "by hand: one transaction moves the event to the log, the next writes an inbox row",
    "pg-boss": "polls every 0.5 s",
    "eventsourcing": "the whole of save(), which commits itself",
}
Player = Callable[[], list[float]]


def run(stage: Stage, peers: Peers) -> Finding:
    """The bus, the log with a consumer behind it, and everybody else."""
    singles = stage.sizes.count(SINGLES, least=5)
    databases = {name: _prepared(stage, transport) for name, transport in OURS.items()}
    players = {**_ours(databases, singles), **_by_hand(stage, singles), **_theirs(peers, singles)}
    ours = [Delays(name, note=NOTES.get(name, "")) for name in (*OURS, *FLOORS)]
    group = Group("commit to handler, idle", "ms", delays=ours, absent=dict(peers.absent))
    group.delays += [Delays(peer.name, peer.language, NOTES.get(peer.name, "")) for peer in peers.present]
    for number in range(max(stage.rounds, stage.sizes.count(ROUNDS))):
        for delays in list(group.delays):
            say(f"latency · round {number + 1} · {delays.name}")
            try:
                delays.rounds.append(players[delays.name]())
            except ContestantFailed as problem:
                group.delays.remove(delays)
                group.absent[delays.name] = str(problem)
    say("")
    for delays in group.delays:
        p50, p99 = delays.percentile(0.5).median, delays.percentile(0.99).median
        tell(f"  latency · {delays.name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    stations = [latency_steps.table(stage, name, OURS[name], dsn, singles) for name, dsn in databases.items()]
    verdicts = [_verdict(group, *target, share) for target in TARGETS for share in (0.5, 0.99)]
    return Finding(NAME, TITLE, ABOUT, [group, *stations], verdicts)


def _ours(databases: dict[str, str], singles: int) -> dict[str, Player]:
    def player(dsn: str, transport: TransportName) -> Player:
        return lambda: loops.run(_singles(dsn, transport, singles))

    return {name: player(databases[name], transport) for name, transport in OURS.items()}


def _by_hand(stage: Stage, singles: int) -> dict[str, Player]:
    dsn = stage.database("bench_latency_raw")
    shop.prepare(dsn, shop.RAW)

    def player(way: latency_floor.Way) -> Player:
        return lambda: loops.run(latency_floor.singles(dsn, way, singles, REST))

    return {name: player(way) for name, way in FLOORS.items()}


def _theirs(peers: Peers, singles: int) -> dict[str, Player]:
    def player(peer: Peer) -> Player:
        return lambda: peer.latency(FEW if peer.name in POLLING else singles, REST)

    return {peer.name: player(peer) for peer in peers.present}


def _verdict(group: Group, name: str, other: str, most: float, share: float) -> Verdict:
    what = f"latency, {name}: p{share * 100:.0f} over that of {other}"
    found = {delays.name: delays for delays in group.delays}
    if other not in found:
        return Verdict(what, "at most", most, None, group.absent.get(other, "nobody to compare with in this run"))
    rounds = zip(found[name].rounds, found[other].rounds, strict=True)
    ratios = Spread.of(percentile(ours, share) / percentile(theirs, share) for ours, theirs in rounds)
    return Verdict(what, "at most", most, ratios)


def _prepared(stage: Stage, name: str) -> str:
    dsn = stage.database(f"bench_latency_{name}")
    shop.prepare(dsn, shop.OURS)
    return dsn


async def _singles(dsn: str, transport: TransportName, count: int) -> list[float]:
    """So many delays in milliseconds, after a few that do not count."""
    outbox, arrived = shop.declared(), asyncio.Queue[float]()

    @outbox.on(shop.OrderPlaced, consumer=CONSUMER)
    async def take(event: Event[shop.OrderPlaced], connection: Any) -> None:
        arrived.put_nowait(time.perf_counter())

    signals = Signals()
    async with (
        Engine(outbox, Database(dsn), transport=transport, probe=signals),
        await psycopg.AsyncConnection.connect(dsn) as connection,
    ):
        await signals.wait("relay.ready")
        await signals.wait("listener.working")
        if transport == "log":
            await signals.wait("consumer.active")
        found = [await _single(outbox, connection, arrived) for _ in range(WARM_UP + count)]
    return found[WARM_UP:]


async def _single(outbox: Outbox, connection: psycopg.AsyncConnection[Any], arrived: asyncio.Queue[float]) -> float:
    # Everybody goes back to sleep first: what is measured is waking up.
    await asyncio.sleep(REST)
    await connection.execute(shop.order_statement("%s").encode(), ("customer-17", 12500))
    await outbox.publish(connection, shop.EVENTS[0], tenant_id=shop.TENANT)
    started = time.perf_counter()
    await connection.commit()
    return 1000 * (await asyncio.wait_for(arrived.get(), 30) - started)
