"""A backlog through the bus to a handler in the relay's process, inbox written, beside the drains of peers."""

from bench import engines, shop
from bench.cases import drain
from bench.figures import Finding, Sample, Verdict, against, best
from bench.peers.peer import Peers
from bench.stage import Contestant, Stage

NAME = "bus"
TITLE = "Handlers behind the bus, and drains of peers"
ABOUT = (
    "A backlog is delivered to a handler that does nothing, once per event: our relay with the bus (inbox row and log "
    "row written for every event), and peers with their own workers, from the start of the worker until the database "
    "has nothing undone. Our relay without handlers stands beside them. Slow peers get a smaller backlog."
)
EVENTS = 40_000
DRAIN_TO_PYTHON = 4.0
# Times the rate of each of them, and of the fastest in Python, should that be another.
TO_PEERS = {"pgqueuer": 3.0, "graphile-worker": 1.3, "pg-boss": 1.3}
TO_PYTHON = 3.0


def run(stage: Stage, peers: Peers) -> Finding:
    """Our relay with and without handlers, and everybody else."""
    dsn = stage.database("bench_bus")
    shop.prepare(dsn, shop.OURS)
    events = stage.sizes.count(EVENTS, least=500)
    group = stage.measure(
        "a handler per event",
        "ev/s",
        [
            Contestant("aftercommit bus", lambda: _bus(stage, dsn, events), note="inbox written, log appended"),
            Contestant("aftercommit relay", lambda: drain.ours(stage, dsn, events), note="to the log, no handler"),
            *peers.contestants(lambda peer: peer.drain(events)),
        ],
    )
    group.absent.update(peers.absent)
    bus, relay = group["aftercommit bus"], group["aftercommit relay"]
    python = best(group.peers(python=True))
    verdicts: list[Verdict] = [
        against("bus: times the best Python peer", "at least", TO_PYTHON, bus, python),
        *(against(f"bus: times {name}", "at least", least, bus, group.find(name)) for name, least in TO_PEERS.items()),
        against("relay drain to the log: times the best Python peer", "at least", DRAIN_TO_PYTHON, relay, python),
    ]
    return Finding(NAME, TITLE, ABOUT, [group], verdicts)


def _bus(stage: Stage, dsn: str, events: int) -> Sample:
    with stage.connect(dsn) as connection:
        connection.execute("truncate bench.processed_events")
    drain.refill(stage, dsn, shop.OURS, events)
    return engines.bus(stage, dsn, events)
