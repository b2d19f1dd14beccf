"""A peer from outside: its process, its database, and what it is asked."""

import contextlib
import json
import select
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import shop
from bench.figures import Sample
from bench.peers.environment import ROOT
from bench.stage import Contestant, ContestantFailed, Stage

PATIENCE = 180.0
GRACE = 30.0


class PeerFailed(ContestantFailed):
    """A peer's process ended or answered nothing; what it said is on standard error."""


class Peer:
    """A running peer. `backlog` is the share of a backlog that it is given."""

    def __init__(self, name: str, version: str, command: Sequence[str], *, language: str, backlog: float) -> None:
        self.name = name
        self.version = version
        self.language = language
        self._command = list(command)
        self._backlog = backlog
        self.settings = ""
        self._tables: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def open(self, stage: Stage) -> None:
        """Start the process on a database of its own."""
        self._stage = stage
        self._dsn = stage.database(f"peer_{self.name.replace('-', '_')}")
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        told = self._ask({"dsn": self._dsn, "payload": vars(shop.EVENTS[1])})
        self.settings, self._tables = told["settings"], list(told["tables"])

    def close(self) -> None:
        """Let the process end: it does when nothing more can be asked."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def publish(self, seconds: float, connections: int, *, event: bool) -> Sample:
        """Transactions for a while, with or without an event."""
        self._clean()
        return self._sample({"do": "publish", "seconds": seconds, "connections": connections, "event": event})

    def bulk(self, calls: int, events: int) -> Sample:
        """So many events per call; fewer calls for the slow."""
        self._clean()
        return self._sample({"do": "bulk", "calls": max(1, int(calls * self._backlog)), "events": events})

    def drain(self, events: int, do: str = "drain") -> Sample:
        """Write a backlog (a part of it, for the slow), then have it handled."""
        self._clean()
        events = max(50, int(events * self._backlog))
        calls = max(1, events // 1000)
        self._ask({"do": "bulk", "calls": calls, "events": events // calls})
        self._settle()
        return self._sample({"do": do, "events": calls * (events // calls)})

    def latency(self, singles: int, rest: float) -> list[float]:
        """Milliseconds from commit to handler."""
        self._clean()
        found: list[float] = self._ask({"do": "latency", "singles": singles, "rest": rest})["milliseconds"]
        return found

    def _sample(self, ask: dict[str, Any]) -> Sample:
        before = self._stage.server_seconds()
        told = self._ask(ask)
        used = self._stage.server_seconds() - before
        return Sample(told["events"], told["seconds"], told["client_cpu"], used)

    def _ask(self, ask: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None:
            raise PeerFailed(f"{self.name} had failed before")
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(ask) + "\n")
            process.stdin.flush()
            # One answer per question, so nothing is left in the buffer that select could not see.
            ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
            answer = process.stdout.readline() if ready else ""
        except BrokenPipeError:
            answer = ""
        if not answer:
            process.kill()
            self.close()
            raise PeerFailed(f"{self.name} failed when it was asked to {ask.get('do', 'open')}")
        told: dict[str, Any] = json.loads(answer)
        return told

    def _clean(self) -> None:
        with self._stage.connect(self._dsn) as connection:
            connection.execute(f"truncate {', '.join(self._tables)} cascade".encode())

    def _settle(self) -> None:
        with self._stage.connect(self._dsn) as connection:
            connection.execute("vacuum analyze")
            connection.execute("checkpoint")


@dataclass(slots=True)
class Peers:
    """Everybody else in this run: those who are there, and why the others are not."""

    present: list[Peer] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    def find(self, name: str) -> Peer | None:
        """A peer by its name, if it is there."""
        return next((peer for peer in self.present if peer.name == name), None)

    def contestants(self, play: Callable[[Peer], Sample]) -> list[Contestant]:
        """Each peer as a contestant."""

        def contestant(peer: Peer) -> Contestant:
            return Contestant(peer.name, lambda: play(peer), peer.language, peer.settings)

        return [contestant(peer) for peer in self.present]

    def close(self) -> None:
        """Let all of them end."""
        for peer in self.present:
            peer.close()
