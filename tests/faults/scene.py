"""One scene: a new database, everybody at work, the faults, then calm, the drain, and the verdict."""

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import checkers, evidence, history, workload
from tests.faults.cast import Cast, everybody, shuffled
from tests.faults.checkers import Violation
from tests.faults.evidence import Evidence
from tests.faults.nemesis import Nemesis
from tests.faults.options import Options, unreached
from tests.faults.overseer import Overseer, Recoveries
from tests.faults.stage import Stage
from tests.faults.weather import Weather

BEGIN_PATIENCE = 90.0
EXIT_PATIENCE = 90.0
IDLE_PATIENCE = 4.0


@dataclass
class Tally:
    """What a run has done and found so far, over all its scenes."""

    counts: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    recoveries: Recoveries = field(default_factory=Recoveries)
    kept: list[Path] = field(default_factory=list)
    drains: list[float] = field(default_factory=list)
    phase: str = ""


class Scene:
    """Plays one scene on a stage and adds to the tally."""

    def __init__(self, number: int, options: Options, stage: Stage, tally: Tally) -> None:
        self.number = number
        self.options = options
        self.stage = stage
        self.tally = tally
        self.folder = stage.folder / f"scene-{number}"
        self._stuck: list[str] = []
        self._undone: list[tuple[float, float]] = []
        self._drained = False

    async def play(self) -> None:
        """From the first process to the verdict."""
        self.folder.mkdir()
        async with self.stage.scene(self.number):
            overseer = Overseer(self.stage.dsn, self.options.takeover_limit)
            overseer.recoveries = self.tally.recoveries
            cast = Cast(self.stage, self.folder, f"{self.options.seed}.{self.number}", self.options.lease)
            try:
                await self._act(cast, overseer)
                found = await asyncio.to_thread(evidence.collect, self.folder, self.stage.dsn)
            finally:
                await cast.close()
                await overseer.close()
        found.ended = _ended(cast)
        found.undone = self._undone
        found.stuck = self._stuck
        found.unfinished = not self._drained
        self._judge(found)

    async def _act(self, cast: Cast, overseer: Overseer) -> None:
        options, counts = self.options, self.tally.counts
        nemesis = Nemesis(options, self.stage, cast, overseer, counts, self.tally.reached, self.number)
        weather = Weather(options, self.stage, overseer, counts, self.number)
        cast.on_touch = overseer.note
        await cast.open(options.has("clock"))
        parts = everybody(self.folder, self.stage.dsn, options.lease, hostile=options.has("handlers"))
        await cast.enter(shuffled(parts, f"{options.seed}.{self.number}"))
        if await overseer.flows(BEGIN_PATIENCE) is None:
            # Without any fault yet: what follows would tell nothing.
            self._stuck.append(f"nothing was appended within {BEGIN_PATIENCE:g} s of the beginning")
            return
        faults = {**nemesis.faults(), **weather.faults()}
        self.tally.phase = f"scene {self.number} of {options.scenes}"
        await self._faults([faults[name]() for name in faults if options.has(name)], overseer)
        await weather.clear_up()
        cast.on_death = lambda death: None
        cast.plan = lambda actor: actor.part
        self._stuck += weather.stuck
        self._undone = weather.undone
        await self._calm(cast, overseer)

    async def _faults(self, loops: list[object], overseer: Overseer) -> None:
        tasks = [asyncio.ensure_future(loop) for loop in [*loops, overseer.watch()]]  # type: ignore[call-overload]
        began, length = time.monotonic(), self.options.seconds / self.options.scenes
        try:
            # On a busy machine a scene goes on until it has had its share, though not for ever.
            while time.monotonic() - began < (length if self._had_its_share() else 2 * length + 30):
                done, _ = await asyncio.wait(tasks, timeout=0.5, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _had_its_share(self) -> bool:
        options, tally = self.options, self.tally
        counted = all(
            tally.counts[fault] >= options.target(fault, self.number)
            for fault in ("kills", "crashes", "zombies", "restores")
        )
        missed = [point for point in unreached(options, set(tally.reached)) if not point.endswith(".idle")]
        return counted and not (self.number == options.scenes and missed)

    async def _calm(self, cast: Cast, overseer: Overseer) -> None:
        """Writers end, the rest is carried and handled, and everybody goes home in order."""
        for actor in cast.actors:
            actor.busy = True
            # Orders that were given and not carried out yet are void, and whoever stands still goes on.
            actor.order()
            actor.resume()
            if actor.played.storm and actor.kind != "writer":
                # Its heir lives in better weather.
                actor.terminate()
        for kind in ("writer", "relay", "worker", "poller"):
            if kind == "relay":
                await self._drain(overseer)
                await self._kill_idle(cast)
            stubborn = await cast.dismiss(kind, EXIT_PATIENCE)
            self._stuck += [f"{name} did not end within {EXIT_PATIENCE:g} s of SIGTERM" for name in stubborn]

    async def _kill_idle(self, cast: Cast) -> None:
        """Kill one process at each idle point that no process reached: under load, few read to the end of the log."""
        for point in unreached(self.options, set(self.tally.reached)):
            kind, _, moment = point.partition(".")
            if moment == "idle" and self._drained:
                kind = {"consumer": "worker"}.get(kind, kind)
                for actor in [each for each in cast.actors if each.kind == kind and each.pid is not None]:
                    gone = actor.gone
                    actor.order(die=(point, 1))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(gone.wait(), IDLE_PATIENCE)
                    if not gone.is_set():
                        # It stands by.
                        actor.order()
                        continue
                    self.tally.counts["kills"] += 1
                    self.tally.reached[point] += 1
                    break

    async def _drain(self, overseer: Overseer) -> None:
        """Until nothing is left to do; stuck is who does not come nearer to that for a while."""
        began = moved = time.monotonic()
        patience = self.options.drain_seconds
        left, before = "the database did not answer", ""
        while time.monotonic() - moved < patience and time.monotonic() - began < 10 * patience:
            left = await self._left(overseer)
            if not left:
                self._drained = True
                self.tally.drains.append(time.monotonic() - began)
                return
            if left != before:
                moved, before = time.monotonic(), left
            self.tally.phase = f"scene {self.number}, calm, left: {left}"
            await asyncio.sleep(0.1)
        self._stuck.append(f"after {time.monotonic() - began:.0f} s of calm there was still left: {left}")

    async def _left(self, overseer: Overseer) -> str:
        rows = await overseer.ask(_LEFT)
        if rows is None:
            return "the database did not answer"
        return "; ".join(f"{what}: {count}" for what, count in rows if count) or await self._unread(overseer) or ""

    async def _unread(self, overseer: Overseer) -> str | None:
        heads = dict(await overseer.ask(_ENDS) or ())
        for path in sorted(self.folder.glob("poller-*.jsonl")):
            last = history.last(path, "poll")
            if last is not None and last["upto"] < heads.get(last["outbox"], 0):
                return f"{path.stem} is at {last['upto']}"
        return None

    def _judge(self, found: Evidence) -> None:
        counts = self.tally.counts
        counts["events"] += len(found.log)
        counts["operations"] += len(found.operations)
        counts["effects"] += len(found.effects)
        counts["polled"] += sum(len(poll.rows) for poll in found.polls)
        counts["dead letters"] += len(found.letters)
        counts["unknown outcomes"] += sum(operation.outcome == "info" for operation in found.operations)
        for operation in found.operations:
            counts[f"{operation.kind} transactions"] += 1
        for path in self.folder.glob("*.jsonl"):
            for line in history.read(path):
                if line["f"] == "point" and line["point"].endswith(".fenced"):
                    counts["fenced"] += 1
                elif line["f"] == "misuse":
                    counts["hostile calls"] += 1
        violations = checkers.check(found)
        self.tally.violations += violations
        if violations or self.options.keep:
            self.tally.kept.append(self.folder)
        else:
            shutil.rmtree(self.folder)


_ENDS = "select 'book', max(position) from book.log union all select 'post', max(position) from post.log"
_LEFT = "\n union all ".join(
    [
        *(
            f"select '{outbox}: pending events', count(*) from {outbox}.outbox where status = 'pending'"
            f" and aggregate_id not like '{workload.POISON}-%'"
            for outbox in workload.CONSUMERS
        ),
        "select consumer.name || ' is behind', book.given(head.gaps, consumer.position, head.position)"
        " from book.consumer, book.head where consumer.lanes = 1 or strpos(consumer.name, '#') > 0",
        f"select 'dead letters to try', count(*) from book.dead_letter_events where status in ('retrying', 'waiting')"
        f" and aggregate_id not like '{workload.POISON}-%'",
    ]
)


def _ended(cast: Cast) -> list[str]:
    # -15: told to end before it had begun.
    return [
        f"{death.actor.name} (process {death.pid}) ended with status {death.status}: see {death.actor.name}.log"
        for death in cast.deaths
        if death.status not in (0, -9, -15)
    ]
