"""The cast of a run: which processes there are, made by the zygotes, and made again when they have been killed."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.faults import workload
from tests.faults.actors import Part
from tests.faults.stage import Stage, faketime

REPOSITORY = Path(__file__).resolve().parents[2]
CLOCK = "clock"


@dataclass(frozen=True)
class Death:
    """One end of one process: at a point, at a random moment (both SIGKILL), in order, or by itself."""

    actor: "Actor"
    pid: int
    status: int
    point: str | None
    at: float
    lived: str


@dataclass(eq=False)
class Actor:
    """A part that is always played by somebody."""

    part: Part
    pid: int | None = None
    incarnation: int = 0
    ordered: str | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    played: Part = field(init=False)
    busy: bool = False
    dismissed: bool = False
    on_touch: Callable[[str], None] = lambda name: None

    def __post_init__(self) -> None:
        self.played = self.part

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def kind(self) -> str:
        return self.part.kind

    def order(self, *, die: tuple[str, int] | None = None, stop: tuple[str, int] | None = None) -> None:
        """Tell the living process to kill or stop itself at a point."""
        self.part.orders.write_text(json.dumps({"die": die, "stop": stop}))
        self.ordered = die[0] if die else None
        self.signal(signal.SIGUSR1)

    def terminate(self) -> None:
        """End in order."""
        self.signal(signal.SIGTERM)

    def resume(self) -> None:
        """Go on, if it stands still."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        self.on_touch(self.name)
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Nursery:
    """A zygote and the conversation with it."""

    def __init__(self, environment: dict[str, str], told: Callable[[dict[str, Any]], None]) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote", str(theirs.fileno())],
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Its own group: an interrupt from the keyboard is for the harness alone.
            start_new_session=True,
        )
        theirs.close()
        self._wire = ours
        self._told = told
        self._answers: dict[int, asyncio.Future[int]] = {}
        self._count = 0
        self._listening: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._wire)
        self._listening = asyncio.ensure_future(self._listen(reader))

    async def make(self, part: Part) -> int:
        """A new process; its pid."""
        assert self._writer is not None
        self._count += 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers[self._count] = answer
        self._writer.write(json.dumps({"id": self._count, "play": asdict(part)}).encode() + b"\n")
        return await answer

    async def close(self) -> None:
        """Hang up: the zygote kills what it made and ends."""
        if self._writer is not None:
            self._writer.close()
        if self._listening is not None:
            self._listening.cancel()
        await asyncio.to_thread(self._process.wait, 30)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = json.loads(line)
            if "started" in message:
                self._answers.pop(message["id"]).set_result(message["started"])
            # Answered before it is told of: a process may be dead before its pid has arrived.
            await asyncio.sleep(0)
            if "pid" in message:
                self._told(message)


class Cast:
    """All actors of a scene. Whoever dies is replaced at once, until the curtain."""

    def __init__(self, stage: Stage, folder: Path, seed: str, lease: float) -> None:
        self.stage = stage
        self.folder = folder
        self.actors: list[Actor] = []
        self.deaths: list[Death] = []
        self.playing = True
        self.on_death: Callable[[Death], None] = lambda death: None
        self.on_touch: Callable[[str], None] = lambda name: None
        self.plan: Callable[[Actor], Part] = lambda actor: actor.part
        self.clock = folder / "clock"
        self._seed = seed
        self._lease = lease
        self._nurseries: dict[str, Nursery] = {}
        self._by_pid: dict[int, Actor] = {}
        self._early: dict[int, dict[str, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, clock: bool) -> None:
        """Start the zygotes: a plain one, and one whose children live by a clock that is moved."""
        # From the interpreter's start the sources must be those that the harness itself runs with.
        self._nurseries["plain"] = Nursery({}, self._hear)
        library = faketime()
        if clock and library is not None:
            self.clock.write_text("+0")
            environment = {
                "LD_PRELOAD": str(library),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                # The file is read once a second: at each look at the clock it would cost a handler most of its time.
                "FAKETIME_CACHE_DURATION": "1",
                # Two names for one thing, older and newer: only the wall clock moves.
                "DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
            self._nurseries[CLOCK] = Nursery(environment, self._hear)
        for nursery in self._nurseries.values():
            await nursery.open()

    async def enter(self, parts: list[Part]) -> None:
        """Everybody begins."""
        self.actors = [Actor(part, on_touch=self.on_touch) for part in parts]
        for actor in self.actors:
            await self._begin(actor)

    async def close(self) -> None:
        """Whoever still lives is killed, the zygotes with them."""
        self.playing = False
        for nursery in self._nurseries.values():
            await nursery.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def dismiss(self, kind: str, patience: float) -> list[str]:
        """SIGTERM to all of a kind; the names of those that had to be killed because they did not end."""
        actors = [actor for actor in self.actors if actor.kind == kind]
        for actor in actors:
            actor.busy = actor.dismissed = True
            actor.signal(signal.SIGCONT)
            actor.signal(signal.SIGTERM)
        deadline = time.monotonic() + patience
        stubborn = []
        for actor in actors:
            try:
                await asyncio.wait_for(actor.gone.wait(), max(0.1, deadline - time.monotonic()))
            except TimeoutError:
                stubborn.append(actor.name)
                actor.signal(signal.SIGKILL)
                await actor.gone.wait()
        return stubborn

    def living(self, kind: str | None = None) -> list[Actor]:
        """Those that may be done something to."""
        return [one for one in self.actors if one.pid is not None and not one.busy and kind in (None, one.kind)]

    async def _begin(self, actor: Actor) -> None:
        actor.incarnation += 1
        actor.stopped, actor.gone = asyncio.Event(), asyncio.Event()
        part = replace(self.plan(actor), seed=f"{self._seed}-{actor.incarnation}")
        actor.played, actor.ordered = part, part.die[0] if part.die else None
        nursery = self._nurseries.get(part.options.get("nursery", "plain"), self._nurseries["plain"])
        pid = await nursery.make(part)
        actor.pid = pid
        self.on_touch(actor.name)
        self._by_pid[pid] = actor
        if pid in self._early:
            self._hear(self._early.pop(pid))

    def _hear(self, message: dict[str, Any]) -> None:
        actor = self._by_pid.get(message["pid"])
        if actor is None:
            self._early[message["pid"]] = message
        elif "stopped" in message:
            actor.stopped.set()
            self.on_touch(actor.name)
        else:
            self._bury(actor, message["pid"], message["died"])

    def _bury(self, actor: Actor, pid: int, status: int) -> None:
        del self._by_pid[pid]
        point = actor.ordered if status == -signal.SIGKILL else None
        death = Death(actor, pid, status, point, time.monotonic(), self._lived(actor.played))
        self.deaths.append(death)
        self.on_touch(actor.name)
        actor.pid, actor.ordered = None, None
        actor.gone.set()
        self.on_death(death)
        if self.playing and not actor.dismissed:
            self._again(actor)

    def _lived(self, part: Part) -> str:
        """Which way it reached the database, and what else was special."""
        way = next(way for way in ("direct", "proxy", "pooler") if part.dsn == self.stage.route(way))
        others = [name for name, applies in ((CLOCK, "nursery" in part.options), ("storm", part.storm)) if applies]
        return ", ".join([way, *others])

    def _again(self, actor: Actor) -> None:
        async def begin() -> None:
            # A process that ends by itself at once must not take the machine with it.
            await asyncio.sleep(0.02)
            if self.playing and actor.pid is None and not actor.dismissed:
                await self._begin(actor)

        task = asyncio.ensure_future(begin())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def everybody(folder: Path, dsn: str, lease: float, *, hostile: bool = False) -> list[Part]:
    """The parts of a scene: writers, relays for both outboxes, two workers for every consumer, pollers.

    `hostile`: their handlers misuse their connections now and then.
    """

    def part(name: str, kind: str, **more: Any) -> Part:
        return Part(name, kind, dsn, str(folder), "", lease=lease, **more)

    manner = {"hostile": True} if hostile else {}
    parts = [part(f"writer-{number}", "writer") for number in range(3)]
    for outbox in (workload.BOOK, workload.POST):
        parts += [
            part(
                f"relay-{outbox}-{number}",
                "relay",
                outbox=outbox,
                consumers=workload.BESIDE_RELAY if outbox == workload.BOOK else (),
                listen=number != 1,
                options={"carriers": 1, **manner},
            )
            for number in range(2)
        ]
        parts.append(part(f"poller-{outbox}", "poller", outbox=outbox, options={"page": 30}))
    parts.append(part("poller-slow", "poller", options={"page": 7}))
    for group, consumers in workload.WORKERS.items():
        parts += [
            part(f"worker-{group}-{number}", "worker", consumers=consumers, options={**manner, **_connections(group)})
            for number in range(2)
        ]
    return parts


def _connections(group: str) -> dict[str, int]:
    most = workload.CONNECTIONS.get(group)
    return {} if most is None else {"max_connections": most}


def shuffled(parts: list[Part], seed: str) -> list[Part]:
    """In another order each time, so that nobody is always first."""
    return random.Random(seed).sample(parts, len(parts))
