"""Pages of a feed that are older than what is in memory: deep in a long investigation, and the rare among many."""

from collections.abc import Callable

from bench import feed_logs, feed_requests
from bench.feed_server import Process, cpu, running
from bench.figures import Finding, Sample, Series, Spread, Verdict, against
from bench.peers.peer import Peers
from bench.stage import Contestant, Stage, say

NAME = "feed-history"
TITLE = "History of a feed"
ABOUT = (
    "One investigation with so many logs that most are on disk, one in a thousand of them an ERROR. Pages of 100 "
    "behind ever other cursors, which the server reads from PostgreSQL: near the beginning, deep within, and from the "
    "first half on with `minLevel=ERROR`, where a page reaches over a hundred thousand logs. *Raw SQL and JSON* is the "
    "deep page by hand, on the same uvicorn: one query, dicts, `json.dumps`; it checks and redacts nothing. wrk on 4 "
    "connections; CPU "
    "is that of wrk, and of the server together with PostgreSQL, per request."
)
LOGS = 2_000_000
PAGE = 100
CURSORS = 1500
CONNECTIONS = 4
SECONDS = 4.0
FIRST, DEEP, ERRORS, RAW = "first pages", "deep pages", "minLevel=ERROR", "raw SQL and JSON, deep"
TIMES_CPU = 3.0
COSTS = "history page of 100: times the CPU of raw SQL and JSON"
# A page that is read costs what it costs wherever it lies; the rest is the noise of reading.
SHARE, MOST_TIMES = 0.9, 3.0


def run(stage: Stage, peers: Peers) -> Finding:
    """Three places of one investigation."""
    logs = stage.sizes.count(LOGS, least=3000)
    deep_is_first = f"page deep in {logs:,} logs: share of the speed of a first page"
    rare_is_near = f"page of minLevel=ERROR among {logs:,} logs: times as long as an unfiltered page"
    if not feed_requests.is_installed():
        missing = feed_requests.MISSING
        verdicts = [
            Verdict(deep_is_first, "at least", SHARE, None, missing),
            Verdict(rare_is_near, "at most", MOST_TIMES, None, missing),
            Verdict(COSTS, "at most", TIMES_CPU, None, missing),
        ]
        return Finding(NAME, TITLE, ABOUT, [], verdicts)
    dsn = stage.database("bench_feed_history")
    say(f"history · writing {logs:,} logs")
    with stage.connect(dsn) as connection:
        feed_logs.prepare(connection, logs)
    ours, raw = Process("ours", dsn), Process("raw history", dsn)
    with running(ours, raw):
        contestants = [
            Contestant(FIRST, _playing(stage, ours, _behind(0, logs // 8))),
            Contestant(DEEP, _playing(stage, ours, _behind(logs * 3 // 4, logs * 7 // 8))),
            Contestant(RAW, _playing(stage, raw, _behind(logs * 3 // 4, logs * 7 // 8))),
            Contestant(ERRORS, _playing(stage, ours, _behind(0, logs // 2, "&minLevel=ERROR"))),
        ]
        group = stage.measure("page of 100 logs from the database", "requests/s", contestants)
    first, deep, errors, by_hand = (group.find(name) for name in (FIRST, DEEP, ERRORS, RAW))
    verdicts = []
    if first is not None and deep is not None:
        verdicts.append(against(deep_is_first, "at least", SHARE, deep, first))
    if first is not None:
        # The ratio of two rates is the inverse of that of their times.
        verdicts.append(against(rare_is_near, "at most", MOST_TIMES, first, errors))
    if deep is not None and by_hand is not None:
        verdicts.append(Verdict(COSTS, "at most", TIMES_CPU, _cpu_ratio(deep, by_hand)))
    return Finding(NAME, TITLE, ABOUT, [group], verdicts)


def _cpu_ratio(ours: Series, other: Series) -> Spread:
    """Processor time of server and database per page, round by round."""
    pairs = zip(ours.samples, other.samples, strict=True)
    return Spread.of(mine.server_microseconds / theirs.server_microseconds for mine, theirs in pairs)


def _behind(begin: int, end: int, filters: str = "") -> list[str]:
    """Addresses of pages behind places that are spread over a part of the log."""
    stride = max(1, (end - begin) // CURSORS)
    one = f"{feed_logs.ADDRESS}?limit={PAGE}{filters}"
    places = range(begin + 1, end, stride)
    return [f"{one}&afterCursor={feed_logs.cursor_of(number)}" for number in places]


def _playing(stage: Stage, server: Process, paths: list[str]) -> Callable[[], Sample]:
    def used() -> float:
        return cpu(server) + stage.server_seconds()

    seconds = stage.sizes.seconds(SECONDS)
    return lambda: feed_requests.send(server, paths, seconds, used, connections=CONNECTIONS)
