"""The probe inside a process of a run: counts the points it passes, and kills or stops the process at one of them."""

import json
import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.history import History

# Written down when passed: what zombies and takeovers are judged by.
TOLD = frozenset({"relay.fenced", "consumer.fenced", "relay.ready", "consumer.active", "relay.outage", "listener.deaf"})


@dataclass(frozen=True)
class At:
    """A point, and the how manyth time it is passed."""

    point: str
    time: int = 1


class FatalProbe:
    """Given to relays, workers and handlers. Death is SIGKILL: nothing is flushed, closed or said."""

    def __init__(self, history: History, die: At | None, stop: At | None) -> None:
        self._history = history
        self._die = die
        self._stop = stop
        self._passed: Counter[str] = Counter()

    def arm(self, orders: Path) -> None:
        """Read what is to happen from now on; a point is counted from here."""
        given = json.loads(orders.read_text())
        self._passed.clear()
        self._die, self._stop = (At(*given[name]) if given.get(name) else None for name in ("die", "stop"))

    async def __call__(self, point: str, detail: dict[str, Any]) -> None:
        self.pass_by(point)

    async def reach(self, point: str) -> None:
        self.pass_by(point)

    def pass_by(self, point: str) -> None:
        self._passed[point] += 1
        if point in TOLD:
            self._history.write("info", "point", point=point, pid=os.getpid())
        if self._die == At(point, self._passed[point]):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._stop == At(point, self._passed[point]):
            # Nothing is written first: between here and the stop nothing must happen that a real pause would not have.
            os.kill(os.getpid(), signal.SIGSTOP)
