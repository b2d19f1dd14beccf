"""What befalls the processes: killed at points and at random, stopped past their lease, restarted, given another clock.

Every fault draws from a random stream of its own, made from the seed, so that a seed repeats the schedule.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from tests.faults import workload
from tests.faults.actors import Part
from tests.faults.cast import CLOCK, Actor, Cast, Death
from tests.faults.options import POINTS, Options, unreached
from tests.faults.overseer import Overseer
from tests.faults.stage import Stage

# Passed once in a life, at its beginning: to be ordered before the process is made.
FIRST_POINTS: Final = frozenset({"relay.ready", "consumer.active", "listener.working", "listener.deaf"})
# Where a process has work in its hands: what it does with it after a takeover must be refused.
AT_WORK: Final = {
    workload.BOOK: ("relay.read", "relay.deliver"),
    workload.POST: ("relay.read", "relay.deliver", "relay.delivered", "handler.written"),
    "worker": ("consumer.read", "consumer.read", "handler.begun"),
}
FENCED: Final = {"relay": "relay.fenced", "worker": "consumer.fenced"}
PATIENCE: Final = 4.0
KINDS: Final = {"relay": 45, "worker": 40, "writer": 9, "poller": 6}


class Nemesis:
    """The faults of one scene that are done to processes."""

    def __init__(
        self,
        options: Options,
        stage: Stage,
        cast: Cast,
        overseer: Overseer,
        counts: Counter[str],
        reached: Counter[str],
        scene: int,
    ) -> None:
        self.options = options
        self.stage = stage
        self.cast = cast
        self.overseer = overseer
        self.counts = counts
        self.scene = scene
        self.reached = reached
        self._casting = self.chance("casting")
        self._first_orders: dict[str, tuple[str, int]] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        cast.on_death = self._count_death
        cast.plan = self._plan
        overseer.heirs = self._heirs

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self.options.seed}/{self.scene}/{name}")

    def faults(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by the name of the fault."""
        return {
            "kills": self.kill,
            "zombies": self.make_zombies,
            "restarts": self.restart,
            "pauses": self.pause,
            "clock": self.move_clock,
        }

    async def kill(self) -> None:
        """SIGKILL, at a point that was hit least so far, or at any moment."""
        chance = self.chance("kills")
        quota = -(-self.options.kills // self.options.scenes)
        interval = self.options.seconds / self.options.scenes / quota * 0.85
        due = time.monotonic()
        while True:
            due = max(due + interval * chance.uniform(0.4, 1.6), time.monotonic() - 3 * interval)
            await asyncio.sleep(due - time.monotonic())
            kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
            victims = self.cast.living("worker" if self.options.points and kind == "writer" else kind)
            if victims:
                await self._aim(chance, chance.choice(victims))

    async def _aim(self, chance: random.Random, actor: Actor) -> None:
        pid = actor.pid
        holds = bool(await self.overseer.held_by(actor, pid)) if pid is not None else False
        if actor.pid != pid or actor.busy:
            return
        point = self._next_point(chance, actor, holds)
        if point is None or chance.random() < (0.0 if self.options.points else 0.35):
            actor.ordered = None
            actor.signal(signal.SIGKILL)
        elif point in FIRST_POINTS:
            self._first_orders[actor.name] = (point, 1)
            actor.ordered = None
            actor.signal(signal.SIGKILL)
        else:
            self._order_death(actor, point, chance.choice((1, 1, 2, 5)))

    def _order_death(self, actor: Actor, point: str, time_passed: int) -> None:
        actor.busy = True
        actor.order(die=(point, time_passed))
        pid = actor.pid

        async def see_to_it() -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(actor.gone.wait(), PATIENCE)
            if actor.pid == pid:
                # It does not come by that point: any other moment will do.
                actor.ordered = None
                actor.signal(signal.SIGKILL)
            actor.busy = False

        self._spawn(see_to_it())

    def _next_point(self, chance: random.Random, actor: Actor, holds: bool) -> str | None:
        points = [point for point in self.options.points or POINTS.get(actor.kind, ()) if self._passes(actor, point)]
        if not holds:
            # It stands by, so it does not come by any point of the work itself.
            points = [point for point in points if point in FIRST_POINTS or point == "consumer.standing_by"]
        if not points:
            return None
        least = min(self.reached[point] for point in points)
        return chance.choice([point for point in points if self.reached[point] <= least + 1])

    def _passes(self, actor: Actor, point: str) -> bool:
        """Whether a process of this part can come by this point, without somebody else's help."""
        kinds = POINTS.get(actor.kind, ())
        book_relay = actor.kind == "relay" and actor.part.outbox == workload.BOOK
        carried = (
            "relay.delivered",
            "relay.counted",
            "relay.failed",
            "relay.outage",
            "handler.begun",
            "handler.written",
        )
        helped = ("relay.fenced", "consumer.fenced", "relay.stopped", "consumer.stopped", "consumer.paused")
        listens = actor.part.listen or not point.startswith("listener.")
        deaf = point != "listener.deaf" or self.options.has("pooler")
        return point in kinds and point not in helped and not (book_relay and point in carried) and listens and deaf

    async def make_zombies(self) -> None:
        """Stop a process until others have taken over all its leases, then let it continue.

        The last scene makes more of them until a relay and a worker were killed while they were fenced.
        """
        chance = self.chance("zombies")
        number = 0
        while missing := self._missing_zombies():
            number += 1
            candidates = [actor for actor in self.cast.living() if actor.kind in missing]
            if candidates:
                actor = chance.choice(candidates)
                points = self._points_at_work(actor)
                if points:
                    die_fenced = number % 3 == 2 or not self.reached[FENCED[actor.kind]]
                    await self._make_zombie(chance, actor, chance.choice(points), die_fenced)
            await asyncio.sleep(chance.uniform(0.1, 0.5))

    def _missing_zombies(self) -> list[str]:
        """The kinds of which there must be more."""
        if self.counts["zombies"] < self.options.target("zombies", self.scene):
            return list(FENCED)
        wanted = unreached(self.options, set(self.reached)) if self.scene == self.options.scenes else []
        return [kind for kind, point in FENCED.items() if point in wanted]

    def _points_at_work(self, actor: Actor) -> list[str]:
        points = AT_WORK[actor.part.outbox if actor.kind == "relay" else "worker"]
        return [point for point in points if not self.options.points or point in self.options.points]

    async def _make_zombie(self, chance: random.Random, actor: Actor, point: str, die_fenced: bool) -> None:
        with self._alone(actor) as pid:
            actor.stopped.clear()
            if chance.random() < 0.25 and not self.options.points:
                actor.signal(signal.SIGSTOP)
            else:
                fenced = (FENCED[actor.kind], 1) if die_fenced else None
                actor.order(stop=(point, chance.choice((1, 2))), die=fenced)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(actor.stopped.wait(), PATIENCE)
            held = await self.overseer.held_by(actor, pid) if actor.stopped.is_set() else {}
            taken_over = bool(held) and await self._taken_over(held)
            if taken_over:
                # Sometimes its heir is to be in the middle of the same work when it comes back.
                await asyncio.sleep(chance.choice((0.0, 0.4, 1.5)))
            if actor.pid == pid:
                actor.signal(signal.SIGCONT)
            if taken_over and actor.pid == pid:
                self.counts["zombies"] += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(actor.gone.wait(), 0.5)

    async def _taken_over(self, held: dict[str, str]) -> bool:
        deadline = time.monotonic() + 12.0
        while time.monotonic() < deadline:
            if await self.overseer.still_held(held) == []:
                return True
            await asyncio.sleep(0.02)
        return False

    async def restart(self) -> None:
        """SIGTERM, as in a rolling deployment; now and then it is killed while it is about to end."""
        chance = self.chance("restarts")
        while True:
            await asyncio.sleep(chance.uniform(1.5, 5.0))
            candidates = [actor for actor in self.cast.living() if actor.kind in ("relay", "worker")]
            if not candidates:
                continue
            actor = chance.choice(candidates)
            with self._alone(actor):
                if chance.random() < 0.6:
                    actor.order(die=(f"{'relay' if actor.kind == 'relay' else 'consumer'}.stopped", 1))
                actor.signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(actor.gone.wait(), 8.0)
                self.counts["restarts"] += 1
                actor.ordered = None
                if actor.pid is not None:
                    actor.signal(signal.SIGKILL)

    async def pause(self) -> None:
        """An operator pauses a consumer for a moment; whoever works for it may be killed meanwhile."""
        chance = self.chance("pauses")
        while True:
            await asyncio.sleep(chance.uniform(2.0, 6.0))
            name = chance.choice(workload.CONSUMERS[workload.BOOK])
            await self.overseer.ask("update book.consumer set paused = true where split_part(name, '#', 1) = %s", name)
            workers = [actor for actor in self.cast.living("worker") if name in actor.part.consumers]
            if workers and chance.random() < 0.7:
                self._order_death(chance.choice(workers), "consumer.paused", 1)
            await asyncio.sleep(chance.uniform(0.5, 1.2))
            await self.overseer.insist("update book.consumer set paused = false")
            self.counts["pauses"] += 1

    async def move_clock(self) -> None:
        """The wall clock of some processes jumps by minutes, back and forth."""
        chance = self.chance("clock")
        while True:
            self.cast.clock.write_text(f"{chance.choice((-1, 1)) * chance.uniform(60, 900):+.0f}")
            self.counts["clock"] += 1
            await asyncio.sleep(chance.uniform(1.0, 5.0))

    def _plan(self, actor: Actor) -> Part:
        """How the next incarnation lives: which way it reaches the database, by which clock, in what weather."""
        chance = self._casting
        part = replace(actor.part, die=self._first_orders.pop(actor.name, None), options=dict(actor.part.options))
        ways = ["direct", "direct"]
        ways += ["proxy", "proxy"] if self.options.has("network") else []
        ways += ["pooler"] if self.options.has("pooler") else []
        # An answer that is cut off matters most to a writer and to a worker whose handlers have no inbox behind them.
        exposed = actor.kind == "writer" or "bare" in part.consumers
        way = "proxy" if exposed and "proxy" in ways and chance.random() < 0.6 else chance.choice(ways)
        if part.die is not None and part.die[0] == "listener.deaf":
            way = "pooler"
        elif part.die is not None and part.die[0] == "listener.working":
            way = "direct"
        if way == "pooler":
            self.counts["pooler"] += 1
        part = replace(part, dsn=self.stage.route(way))
        if way == "pooler" and chance.random() < 0.5 and part.die is None:
            part = replace(part, listen_dsn=self.stage.dsn)
        if self.options.has("clock") and chance.random() < 0.3:
            part.options["nursery"] = CLOCK
        if self.options.has("storms") and actor.kind != "poller" and chance.random() < 0.15:
            self.counts["storms"] += 1
            part = replace(part, storm=True)
        if actor.kind == "relay":
            part.options["carriers"] = chance.choice((1, 1, 3))
        return part

    def _heirs(self, dead: Actor) -> list[str]:
        """Who could take over from it and has nothing the matter: neither storm nor bad network nor orders to die."""
        family = dead.name.rpartition("-")[0]
        return [
            actor.name
            for actor in self.cast.living(dead.kind)
            if actor is not dead
            and actor.name.rpartition("-")[0] == family
            and not actor.played.storm
            and (self.stage.proxy is None or actor.played.dsn != self.stage.proxy.dsn)
        ]

    def _count_death(self, death: Death) -> None:
        if death.status == -signal.SIGKILL:
            self.counts["kills"] += 1
            self.counts[f"kills of {death.actor.kind}s"] += 1
            if death.point is not None:
                self.reached[death.point] += 1
            self.overseer.mourn(death)

    @contextmanager
    def _alone(self, actor: Actor) -> Iterator[int]:
        """Nobody else does anything to this actor meanwhile."""
        assert actor.pid is not None
        actor.busy = True
        try:
            yield actor.pid
        finally:
            actor.busy = False

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
