"""Publish in a transaction: a business row and an event, on eight connections, with every kind of connection."""

from bench import shop
from bench.cases.drivers import STACKS
from bench.cases.stacks import KINDS, Kind, Stack
from bench.figures import Finding, Group, Sample, Series, Spread, Verdict
from bench.peers.peer import Peer, Peers
from bench.stage import Contestant, Stage

NAME = "publish"
TITLE = "Publish in a transaction"
ABOUT = (
    "A transaction of one business row and one event, 8 connections. The floor `raw INSERT` is what a careful person "
    "writes by hand for the same driver and an identical table: a uuid, `json.dumps` of the payload, an INSERT. With "
    "`ready text` the floor has its payload dumped already. Blocking drivers run in 8 threads of one process, the "
    "others in 8 tasks of one event loop. SQLAlchemy's floor hands its INSERT straight to the driver. A peer is "
    "compared by what is left of its own transaction without an event, and with ours on the same kind of connection "
    "(those on Node with ours on asyncpg)."
)
CONNECTIONS = 8
SECONDS = 1.0
TARGET = 0.95
ON_SAME_STACK = {
    "faststream-outbox": "SQLAlchemy AsyncSession",
    "pgqueuer": "asyncpg",
    "procrastinate": "psycopg async",
    "eventsourcing": "psycopg",
    "graphile-worker": "asyncpg",
    "pg-boss": "asyncpg",
}


def run(stage: Stage, peers: Peers) -> Finding:
    """A group per kind of connection, then one per peer."""
    dsn = stage.database("bench_publish")
    shop.prepare(dsn, shop.OURS, shop.RAW)
    finding = Finding(NAME, TITLE, ABOUT)
    ours: dict[str, Group] = {}
    for stack in STACKS:
        group = ours[stack.name] = _measure(stage, dsn, stack(dsn, CONNECTIONS, shop.declared()))
        finding.groups.append(group)
        ratio = group["aftercommit"].ratio_to(group["raw INSERT"])
        finding.verdicts.append(Verdict(f"publish, {stack.name}: share of the raw INSERT", "at least", TARGET, ratio))
    for peer in peers.present:
        group = _measure_peer(stage, peer)
        finding.groups.append(group)
        finding.verdicts.append(_compared(peer.name, group, ours[ON_SAME_STACK[peer.name]]))
    for name, why in peers.absent.items():
        finding.verdicts.append(Verdict(_about(name), "at least", 1.0, None, why))
    return finding


def _measure(stage: Stage, dsn: str, stack: Stack) -> Group:
    def contestant(kind: Kind) -> Contestant:
        return Contestant(kind, lambda: _play(stage, dsn, stack, kind))

    stack.open()
    try:
        group = stage.measure(f"publish, {stack.name}", "tx/s", [contestant(kind) for kind in KINDS])
    finally:
        stack.close()
    group.baseline = "raw INSERT"
    return group


def _play(stage: Stage, dsn: str, stack: Stack, kind: Kind) -> Sample:
    with stage.connect(dsn) as connection:
        connection.execute("truncate public.orders, bench.outbox, bench_raw.outbox")
    with stage.watch() as watch:
        watch.events = stack.run(kind, stage.sizes.seconds(SECONDS))
    return watch.taken


def _measure_peer(stage: Stage, peer: Peer) -> Group:
    seconds = stage.sizes.seconds(SECONDS)
    contestants = [
        Contestant("no event", lambda: peer.publish(seconds, CONNECTIONS, event=False)),
        Contestant(peer.name, lambda: peer.publish(seconds, CONNECTIONS, event=True), peer.language, peer.settings),
    ]
    return stage.measure(f"publish, {peer.name}", "tx/s", contestants)


def _about(peer: str) -> str:
    return f"publish: share of the transaction without event, ours on {ON_SAME_STACK[peer]} over that of {peer}"


def _compared(name: str, theirs: Group, ours: Group) -> Verdict:
    what = _about(name)
    if theirs.absent:
        return Verdict(what, "at least", 1.0, None, "; ".join(theirs.absent.values()))
    own = _shares(ours["aftercommit"], ours["no event"])
    other = _shares(theirs[name], theirs["no event"])
    return Verdict(what, "at least", 1.0, Spread.of(mine / its for mine, its in zip(own, other, strict=True)))


def _shares(with_event: Series, without: Series) -> list[float]:
    return [mine.rate / bare.rate for mine, bare in zip(with_event.samples, without.samples, strict=True)]
