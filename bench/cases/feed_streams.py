"""Streams of a feed: one log to a thousand readers, ten at once, and what five thousand idle ones hold in memory."""

import time
from collections.abc import Callable

from bench import feed_logs
from bench.feed_readers import Readers
from bench.feed_server import Nchan, Process, Server, cpu, resident, running, why_no_nchan
from bench.figures import Delays, Finding, Group, Sample, Series, Spread, Verdict, against
from bench.peers.peer import Peers
from bench.stage import Contestant, ContestantFailed, Stage, say, tell

NAME = "feed-streams"
TITLE = "Streams of a feed"
ABOUT = (
    "Readers hold open streams of one investigation, and one log is handed to the server where it has been read from "
    "the database; when the last reader has it, the next one follows. So no two can travel together. Then ten at "
    "once, as when logs come faster than readers wake. *uvicorn by hand* is one waiter per connection and an ASGI "
    "send, without cursors, filters, limits or an eye on slow readers; the *raw asyncio writer* is a loop over "
    "transports and no HTTP server at all; nchan is a module of nginx, in C. A delay is the time from the log to a "
    "reader, over all readers. CPU is that of the readers and of the server, per delivery. Memory is what the "
    "process of the server grew by while so many readers connected and were told nothing."
)
READERS = 1000
LOGS, TOGETHER, TIMES_TOGETHER = 60, 10, 20
IDLE = 5000
MOST_KB = 12
TIMES_NCHAN, SHARE_OF_RAW = 1.1, 0.8
OURS, BY_HAND, RAW, NCHAN = "aftercommit", "uvicorn by hand", "raw asyncio writer", "nchan"


def run(stage: Stage, peers: Peers) -> Finding:
    """Fan-out one by one and together, and the idle."""
    dsn = stage.database("bench_feed_streams")
    with stage.connect(dsn) as connection:
        feed_logs.prepare(connection, 0)
    single, together, delays = _fan_out(stage, dsn)
    idle, memory = _idle(stage, dsn)
    ours = single[OURS]
    verdicts = [
        against("fan-out, log by log: share of uvicorn by hand", "at least", 0.9, ours, single.find(BY_HAND)),
        against("fan-out, log by log: times nchan", "at least", TIMES_NCHAN, ours, single.find(NCHAN)),
        against("fan-out, ten at once: times nchan", "at least", 1.3, together[OURS], together.find(NCHAN)),
        against(
            f"fan-out, ten at once: share of the {RAW}", "at least", SHARE_OF_RAW, together[OURS], together.find(RAW)
        ),
        Verdict(f"memory: KB per idle stream of {_readers(stage, IDLE):,}", "at most", MOST_KB, memory),
    ]
    return Finding(NAME, TITLE, ABOUT, [single, delays, together, idle], verdicts)


def _fan_out(stage: Stage, dsn: str) -> tuple[Group, Group, Group]:
    count = _readers(stage, READERS)
    servers: dict[str, Server] = {BY_HAND: Process("fan-out"), RAW: Process("raw writer"), OURS: Process("ours", dsn)}
    absent = why_no_nchan()
    if absent is None:
        try:
            servers[NCHAN] = Nchan()
        except ContestantFailed as problem:
            absent = str(problem)
    with running(*servers.values()):
        say(f"streams · opening {count:,} streams to each server")
        readers = {name: Readers(server, count) for name, server in servers.items()}
        delays = {name: Delays(name, _peer(name)) for name in servers}
        logs, times = stage.sizes.count(LOGS, least=2), stage.sizes.count(TIMES_TOGETHER, least=2)

        def contestants(turns: int, at_once: int, told: bool) -> list[Contestant]:
            def playing(name: str) -> Callable[[], Sample]:
                noted = delays[name] if told else None
                return lambda: _play(servers[name], readers[name], turns, at_once, noted)

            return [Contestant(name, playing(name), _peer(name)) for name in servers]

        single = stage.measure(f"log by log to {count:,} readers", "deliveries/s", contestants(logs, 1, True))
        together = stage.measure(
            f"ten logs at once to {count:,} readers", "deliveries/s", contestants(times, TOGETHER, False)
        )
        for each in readers.values():
            each.close()
    if absent is not None:
        single.absent[NCHAN] = together.absent[NCHAN] = absent
    # A round before those that count was to warm up.
    measured = [Delays(each.name, each.peer, rounds=each.rounds[-stage.rounds :]) for each in delays.values()]
    for delay in measured:
        p50, p99 = delay.percentile(0.5).median, delay.percentile(0.99).median
        tell(f"  streams · {delay.name}: a log is with its reader after {p50:.2f} ms (p50), {p99:.2f} ms (p99)")
    return single, together, Group(f"delay of one log to {count:,} readers", "ms", delays=measured)


def _play(server: Server, readers: Readers, turns: int, together: int, delays: Delays | None = None) -> Sample:
    found: list[float] | None = [] if delays is not None else None
    used, mine, began = cpu(server), time.process_time(), time.perf_counter()
    for _ in range(turns):
        since = time.perf_counter()
        server.emit(together)
        readers.until(together * readers.count, since, found)
    seconds, mine = time.perf_counter() - began, time.process_time() - mine
    if delays is not None and found is not None:
        delays.rounds.append(found)
    return Sample(turns * together * readers.count, seconds, mine, cpu(server) - used)


def _idle(stage: Stage, dsn: str) -> tuple[Group, Spread]:
    """Once each: what is there of the first streams would hide what the next ones need."""
    count = _readers(stage, IDLE)
    group = Group("idle streams", "opened/s")
    kilobytes: dict[str, float] = {}
    for name, role, arguments in ((BY_HAND, "fan-out", ()), (OURS, "ours", (dsn,))):
        say(f"streams · opening {count:,} idle streams · {name}")
        server = Process(role, *arguments)
        with running(server):
            # What the first ones make the server import and load is not theirs.
            first = Readers(server, 20)
            before, used, mine, began = resident(server), cpu(server), time.process_time(), time.perf_counter()
            readers = Readers(server, count)
            seconds, mine = time.perf_counter() - began, time.process_time() - mine
            sample = Sample(count, seconds, mine, cpu(server) - used)
            kilobytes[name] = (resident(server) - before) / count / 1024
            readers.close()
            first.close()
        note = f"{kilobytes[name]:.1f} KB per idle stream"
        group.series.append(Series(name, note=note, samples=[sample]))
        tell(f"  streams · {name}: {note}")
    return group, Spread.of([kilobytes[OURS]])


def _readers(stage: Stage, whole: int) -> int:
    return stage.sizes.count(whole, least=20)


def _peer(name: str) -> str | None:
    return "C" if name == NCHAN else None
