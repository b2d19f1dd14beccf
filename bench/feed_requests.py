"""Requests as fast as a server answers them, by wrk: what it was told, and how much came back."""

import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench import feed_logs
from bench.feed_server import Server
from bench.figures import Sample
from bench.stage import ContestantFailed

CONNECTIONS: Final = 32
GRACE: Final = 60
MISSING: Final = "wrk is not installed: apt-get install wrk"
SCRIPT: Final = """
local requests, turn = {{}}, 0
function init(args)
    for path in io.lines("{paths}") do requests[#requests + 1] = wrk.format("GET", path) end
end
function request()
    turn = turn % #requests + 1
    return requests[turn]
end
"""
_DONE = re.compile(r"(\d+) requests in ([\d.]+)(ms|s|m),")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0}


def is_installed() -> bool:
    """Whether there is a wrk."""
    return shutil.which("wrk") is not None


def send(
    server: Server,
    paths: Sequence[str],
    seconds: float,
    used: Callable[[], float],
    *,
    connections: int = CONNECTIONS,
    tag: str | None = None,
) -> Sample:
    """Ask for these paths in turn for a while, as somebody with a token; `used` tells the servers' processor time."""
    with tempfile.TemporaryDirectory(prefix="aftercommit-wrk-") as folder:
        listed, script = Path(folder, "paths"), Path(folder, "paths.lua")
        listed.write_text("".join(f"{path}\n" for path in paths))
        script.write_text(SCRIPT.format(paths=listed))
        headers = ["-H", f"Authorization: {feed_logs.bearer()}"]
        if tag is not None:
            headers += ["-H", f"If-None-Match: {tag}"]
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(script), *headers]
        before, mine = used(), _children()
        told = subprocess.run([*command, server.url], capture_output=True, text=True, check=False, timeout=GRACE + 600)
        return _sample(told.stdout + told.stderr, _children() - mine, used() - before)


def _sample(said: str, client: float, server: float) -> Sample:
    done = _DONE.search(said)
    if done is None or "Non-2xx" in said or "Socket errors" in said:
        raise ContestantFailed(f"wrk met errors: {' '.join(said.split())[-200:]}")
    return Sample(int(done[1]), float(done[2]) * _SECONDS[done[3]], client, server)


def _children() -> float:
    """Processor time of the programs that were run here and have ended."""
    times = resource.getrusage(resource.RUSAGE_CHILDREN)
    return times.ru_utime + times.ru_stime
