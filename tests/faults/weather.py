"""What befalls the database and the ways to it: crashes, cut connections, a bad network, no room, no disk."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from aftercommit.testing.fault_proxy import FaultProxy
from tests.faults.options import FLOW_LIMIT, Options
from tests.faults.overseer import Overseer
from tests.faults.questions import APPLICATION
from tests.faults.stage import Stage

FLOW_PATIENCE: Final = 90.0


class Weather:
    """The faults of one scene that nobody is to blame for. The great ones come one at a time."""

    def __init__(self, options: Options, stage: Stage, overseer: Overseer, counts: Counter[str], scene: int) -> None:
        self.options = options
        self.stage = stage
        self.overseer = overseer
        self.counts = counts
        self.scene = scene
        self.stuck: list[str] = []
        # From before the backup until the restored server ran: what was committed meanwhile may be gone.
        self.undone: list[tuple[float, float]] = []
        self._great = asyncio.Lock()
        self._restoring: asyncio.Future[None] | None = None

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self.options.seed}/{self.scene}/{name}")

    def faults(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by the name of the fault."""
        return {
            "crashes": self.crash,
            "connections": self.terminate,
            "network": self.disturb,
            "exhaustion": self.exhaust,
            "disk": self.fill_disk,
            "restores": self.restore,
        }

    @asynccontextmanager
    async def _great_trouble(self) -> AsyncIterator[None]:
        async with self._great:
            with self.overseer.trouble():
                yield

    async def crash(self) -> None:
        """PostgreSQL is stopped without a checkpoint, or killed, and comes back after a while."""
        chance = self.chance("crashes")
        target = self.options.target("crashes", self.scene)
        interval = self.options.seconds / self.options.crashes * 0.8
        while (number := self.counts["crashes"]) < target:
            await asyncio.sleep(max(0.5, interval * chance.uniform(0.6, 1.2) - 3.0))
            async with self._great_trouble():
                manner = ("immediate", "kill")[number % 2]
                self.overseer.forget()
                await asyncio.to_thread(self.stage.crash, manner)
                await asyncio.sleep(chance.uniform(0.0, 0.6))
                await asyncio.to_thread(self.stage.server.start)
                self.counts["crashes"] += 1
                self.counts[f"crashes ({manner})"] += 1
                await self._see_it_flow("PostgreSQL had come back")

    async def restore(self) -> None:
        """PostgreSQL is restored from a backup that is some seconds old: the end of the log is taken back."""
        chance = self.chance("restores")
        while self.counts["restores"] < self.options.target("restores", self.scene):
            await asyncio.sleep(chance.uniform(1.0, 8.0))
            async with self._great:
                began = time.monotonic()
                await asyncio.to_thread(self.stage.backup)
            await asyncio.sleep(chance.uniform(1.0, 4.0))
            async with self._great_trouble():
                self.overseer.forget()
                # The scene may end meanwhile, and nobody starts a server whose data is only half there.
                self._restoring = asyncio.ensure_future(self._put_back(began))
                await asyncio.shield(self._restoring)
                await self._see_it_flow("PostgreSQL was restored")

    async def _put_back(self, began: float) -> None:
        await asyncio.to_thread(self.stage.restore)
        self.undone.append((began, time.monotonic()))
        self.counts["restores"] += 1

    async def _see_it_flow(self, since: str) -> None:
        began = time.monotonic()
        seconds = await self.overseer.flows(FLOW_PATIENCE)
        if seconds is None:
            self.stuck.append(f"nothing was appended for {FLOW_PATIENCE:g} s after {since}")
        else:
            self.overseer.flowed(began, seconds, FLOW_LIMIT)

    async def terminate(self) -> None:
        """Some sessions are ended by the server."""
        chance = self.chance("connections")
        while True:
            await asyncio.sleep(chance.uniform(0.5, 2.5))
            rows = await self.overseer.ask(
                """
                select application_name, pg_terminate_backend(pid) from (
                    select pid, application_name from pg_stat_activity
                    where datname = current_database() and application_name <> %s and backend_type = 'client backend'
                    order by md5(pid::text || %s) limit %s
                ) chosen
                """,
                APPLICATION,
                str(chance.random()),
                chance.choice((1, 1, 2, 5, 20)),
            )
            for application, _ in rows or ():
                self.overseer.note(application.partition(":")[0])
                self.counts["connections"] += 1

    async def disturb(self) -> None:
        """One thing after the other is wrong with the network: for everybody on it, or for one connection."""
        chance = self.chance("network")
        while True:
            await asyncio.sleep(chance.uniform(0.3, 1.5))
            proxy = self.stage.proxy
            if proxy is None or not proxy.connections:
                continue
            kind = chance.choice(("delay", "reset", "cut_at_commit", "cut_at_commit", "black_hole", "trickle"))
            await self._disturb(chance, proxy, kind)
            self.counts["network"] += 1
            self.counts[f"network ({kind})"] += 1

    async def _disturb(self, chance: random.Random, proxy: FaultProxy, kind: str) -> None:
        one = chance.choice(proxy.connections) if chance.random() < 0.5 else None
        faults = one.faults if one is not None else proxy.faults
        if kind == "reset":
            (one or proxy).reset()
        elif kind == "delay":
            faults.delay = chance.uniform(0.005, 0.1)
            await asyncio.sleep(chance.uniform(0.5, 2.0))
        elif kind == "trickle":
            faults.trickle = True
            await asyncio.sleep(chance.uniform(0.5, 1.5))
        elif kind == "cut_at_commit":
            # The next COMMIT of each connection, not the next of all: among relays a writer would hardly have its turn.
            for connection in [one] if one is not None else list(proxy.connections):
                connection.faults.cut_at_commit = True
            await asyncio.sleep(0.5)
        else:
            faults.black_hole = True
            # Past the lease: whoever is behind it is taken for dead, and then it turns out that it was not.
            await asyncio.sleep(self.options.lease * chance.uniform(1.2, 2.5))
            if chance.random() < 0.5:
                (one or proxy).reset()
        proxy.heal()

    async def exhaust(self) -> None:
        """All connections that the server allows are taken by somebody who does nothing with them."""
        chance = self.chance("exhaustion")
        while True:
            await asyncio.sleep(chance.uniform(8.0, 25.0))
            async with self._great_trouble():
                idle = await self._take_all_connections()
                if idle:
                    await asyncio.sleep(chance.uniform(0.5, 2.0))
                    self.counts["exhaustion"] += 1
                for connection in idle:
                    await connection.close()

    async def _take_all_connections(self) -> list[psycopg.AsyncConnection[Any]]:
        taken: list[psycopg.AsyncConnection[Any]] = []
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                taken.append(await psycopg.AsyncConnection.connect(self.stage.server.dsn, autocommit=True))
            except psycopg.OperationalError:
                return taken
        return taken

    async def fill_disk(self) -> None:
        """The disk of the database has no byte left, until somebody makes room."""
        chance = self.chance("disk")
        while self.stage.disk is not None:
            await asyncio.sleep(chance.uniform(8.0, 25.0))
            async with self._great_trouble():
                filler = self.stage.disk / "filler"
                await asyncio.to_thread(_fill, filler)
                await asyncio.sleep(chance.uniform(0.5, 2.5))
                filler.unlink()
                self.counts["disk"] += 1
                await self._see_it_flow("there was room on the disk again")

    async def clear_up(self) -> None:
        """Nothing is wrong any more."""
        if self._restoring is not None:
            await self._restoring
        if self.stage.proxy is not None:
            self.stage.proxy.heal()
        if self.stage.disk is not None:
            (self.stage.disk / "filler").unlink(missing_ok=True)
        if not self.stage.server.is_running():
            await asyncio.to_thread(self.stage.server.start)
        await self.overseer.insist("update book.consumer set paused = false")


def _fill(path: Path) -> None:
    """A file as large as there is room, so that nobody else can have a page."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        size = 64 << 20
        offset = 0
        while size >= 4096:
            try:
                os.posix_fallocate(descriptor, offset, size)
                offset += size
            except OSError:
                size //= 2
    finally:
        os.close(descriptor)
