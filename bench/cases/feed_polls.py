"""Polls of a feed: answered 304, and with pages from the ring, beside endpoints that check and look up nothing."""

import json
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bench import feed_logs, feed_requests
from bench.feed_server import Process, cpu, running
from bench.figures import Direction, Finding, Group, Sample, Verdict, against
from bench.peers.peer import Peers
from bench.stage import Contestant, Stage

NAME = "feed-polls"
TITLE = "Polls of a feed"
ABOUT = (
    "One server process, wrk on 32 connections. Ours checks the token, the permission, two rate limits and that the "
    "investigation exists, and answers from memory; a page has 100 logs. *Kept* is a page that was asked for before "
    "and has not changed; *from the ring* are pages behind ever other cursors, put together anew. The others "
    "check nothing: a route with a constant answer, and the same page with the same headers as ready bytes. All run on "
    "uvicorn with the same settings; CPU is that of wrk and of the server, per request."
)
LOGS = 2000
PAGE = 100
# More than are kept, so that every one of them is made anew.
CURSORS = 1500
SECONDS = 4.0
# Headers that the server adds to every answer, or to this one because of how it was asked for.
SERVERS_OWN = ("date", "connection")
OURS, STARLETTE, FASTAPI = "aftercommit", "Starlette route", "FastAPI route"
KEPT, RING, READY, STARLETTE_READY = (
    "aftercommit, kept", "aftercommit, from the ring", "raw ASGI, ready bytes", "Starlette route, ready bytes",
)  # fmt: skip
TARGETS: dict[str, tuple[str, str, Direction, float]] = {
    "poll answered 304: share of a trivial Starlette route": (OURS, STARLETTE, "at least", 0.6),
    "poll answered 304: times a trivial FastAPI route": (OURS, FASTAPI, "at least", 1.5),
    "page of 100 from the ring: share of the same ready bytes": (RING, READY, "at least", 0.6),
    "page of 100, kept: share of the same ready bytes": (KEPT, READY, "at least", 0.8),
}


def run(stage: Stage, peers: Peers) -> Finding:
    """304 and pages."""
    if not feed_requests.is_installed():
        missing = [Verdict(what, target[2], target[3], None, feed_requests.MISSING) for what, target in TARGETS.items()]
        return Finding(NAME, TITLE, ABOUT, [], missing)
    dsn = stage.database("bench_feed_polls")
    with stage.connect(dsn) as connection:
        feed_logs.prepare(connection, LOGS)
    ours = Process("ours", dsn)
    with running(ours):
        groups = [_unchanged(stage, ours), _pages(stage, ours)]
    return Finding(NAME, TITLE, ABOUT, groups, [_verdict(groups, what) for what in TARGETS])


def _unchanged(stage: Stage, ours: Process) -> Group:
    path = f"{feed_logs.ADDRESS}?limit={PAGE}"
    tag = _asked(ours, path)[0]["etag"]
    starlette, fastapi = Process("starlette 304"), Process("fastapi 304")
    with running(starlette, fastapi):
        return stage.measure(
            "poll answered 304",
            "requests/s",
            [
                Contestant(STARLETTE, _playing(stage, starlette, [path], tag), note="constant answer"),
                Contestant(FASTAPI, _playing(stage, fastapi, [path], tag), note="two parameters, constant answer"),
                Contestant(OURS, _playing(stage, ours, [path], tag)),
            ],
        )


def _pages(stage: Stage, ours: Process) -> Group:
    one = f"{feed_logs.ADDRESS}?limit={PAGE}"
    behind = [f"{one}&afterCursor={feed_logs.cursor_of(number)}" for number in range(1, CURSORS + 1)]
    with tempfile.TemporaryDirectory(prefix="aftercommit-bench-") as folder:
        files = [Path(folder, "body"), Path(folder, "headers")]
        headers, body = _asked(ours, one)
        files[0].write_bytes(body)
        files[1].write_text(json.dumps({name: value for name, value in headers.items() if name not in SERVERS_OWN}))
        raw, starlette = (Process(role, *map(str, files)) for role in ("ready bytes", "starlette ready"))
    with running(raw, starlette):
        return stage.measure(
            "page of 100 logs",
            "requests/s",
            [
                Contestant(READY, _playing(stage, raw, behind)),
                Contestant(STARLETTE_READY, _playing(stage, starlette, behind)),
                Contestant(KEPT, _playing(stage, ours, [one])),
                Contestant(RING, _playing(stage, ours, behind)),
            ],
        )


def _playing(stage: Stage, server: Process, paths: list[str], tag: str | None = None) -> Callable[[], Sample]:
    seconds = stage.sizes.seconds(SECONDS)
    return lambda: feed_requests.send(server, paths, seconds, lambda: cpu(server), tag=tag)


def _asked(server: Process, path: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of an answer."""
    asked = urllib.request.Request(server.url + path, headers={"Authorization": feed_logs.bearer()})
    with urllib.request.urlopen(asked) as answer:
        return {name.lower(): value for name, value in answer.headers.items()}, answer.read()


def _verdict(groups: list[Group], what: str) -> Verdict:
    mine, other, direction, target = TARGETS[what]
    series = {each.name: each for group in groups for each in group.series}
    if mine not in series:
        return Verdict(what, direction, target, None, "ours failed")
    return against(what, direction, target, series[mine], series.get(other))
