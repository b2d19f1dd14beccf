"""The cases of the bench, each in a module of its own: a function from a stage and its peers to what it found."""

from collections.abc import Callable

from bench.cases import (
    bulk,
    bus,
    consumer,
    drain,
    feed_history,
    feed_polls,
    feed_streams,
    growth,
    growth_audience,
    growth_consumers,
    growth_letters,
    growth_log,
    growth_order,
    growth_scopes,
    growth_strands,
    latency,
    memory,
    publish,
    wakeup,
)
from bench.figures import Finding
from bench.peers.peer import Peers
from bench.stage import Stage

CASES: dict[str, Callable[[Stage, Peers], Finding]] = {
    case.NAME: case.run
    for case in (
        *(publish, bulk, drain, bus, consumer, latency, growth, wakeup, memory),
        *(growth_log, growth_letters, growth_consumers, growth_strands, growth_audience, growth_order, growth_scopes),
        *(feed_polls, feed_streams, feed_history),
    )
}
