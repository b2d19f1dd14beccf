"""The harness's own look into the database: who holds what, how far the log is, how long a recovery took."""

import asyncio
import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.faults import workload
from tests.faults.cast import Actor, Death
from tests.faults.questions import Questions

LOOK: Final = 0.05
IDLE: Final = 3.0
# So long ago a process must have begun, and been left in peace, to be an heir: after an outage it reconnects within two
# seconds.
SETTLED: Final = 3.5


@dataclass
class Trouble:
    """Something that kept a process, or everybody (no name), from its work for a while."""

    name: str | None
    began: float
    ended: float = math.inf


@dataclass
class Bereaved:
    """What a killed process held, until somebody else has it and has worked on it."""

    actor: Actor
    began: float
    held: dict[str, str]
    mark: dict[str, int]
    heirs: list[str]
    lived: str
    taken: float | None = None
    told: bool = False


@dataclass
class Recoveries:
    """Seconds that recoveries took: `takeover` until all was in other hands, `progress` until they worked on it.

    A takeover in trouble is one for which nobody was there who had nothing done to him in the time that it may take;
    a flow in trouble, one during which relays were killed, stopped or cut off as well.
    """

    takeover: list[float] = field(default_factory=list)
    takeover_in_trouble: list[float] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)
    flow: list[float] = field(default_factory=list)
    flow_in_trouble: list[float] = field(default_factory=list)
    # Takeovers over their limit: what was left at that time, and what had happened to the heirs before.
    late: list[str] = field(default_factory=list)


class Overseer:
    """Where the database does not answer, the answer is None.

    What is done to it goes over a connection of its own: an order may wait long for somebody who was stopped, and a
    look that waited behind it would make a takeover appear as long.
    """

    def __init__(self, dsn: str, takeover_limit: float) -> None:
        self._takeover_limit = takeover_limit
        self._troubles: list[Trouble] = []
        self._looks = Questions(dsn)
        self._orders = Questions(dsn)
        self._bereaved: list[Bereaved] = []
        self._mourning: set[asyncio.Task[None]] = set()
        self.recoveries = Recoveries()
        self.heirs: Callable[[Actor], list[str]] = lambda actor: []

    def note(self, name: str | None = None) -> None:
        """Something was done to this process just now; without a name, to everybody."""
        now = time.monotonic()
        self._troubles.append(Trouble(name, now, now))

    @contextmanager
    def trouble(self) -> Iterator[None]:
        """While this lasts nobody can work as usual."""
        one = Trouble(None, time.monotonic())
        self._troubles.append(one)
        try:
            yield
        finally:
            one.ended = time.monotonic()

    async def ask(self, query: str, *parameters: Any) -> list[tuple[Any, ...]] | None:
        """What somebody else wants done or known; None where the database does not answer."""
        return await self._orders.ask(query, *parameters)

    async def insist(self, statement: str) -> None:
        """Until the database has done it."""
        while await self.ask(statement) is None:  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        await self._looks.close()
        await self._orders.close()

    async def lanes_of(self, outbox: str, name: str) -> dict[int, str]:
        """The lanes of a relay by its name, with their tokens."""
        relay = f"(select id from {outbox}.relay where name = %s)"
        rows = await self._looks.ask(f"select lane, token::text from {outbox}.lane where relay = {relay}", name)
        return dict(rows or ())

    async def consumers_of(self, pid: int) -> dict[str, str]:
        """The consumers that a process holds, with their tokens."""
        worker = f"{socket.gethostname()}:{pid}"
        rows = await self._looks.ask("select name, token::text from book.consumer where worker = %s", worker)
        return dict(rows or ())

    async def held_by(self, actor: Actor, pid: int) -> dict[str, str]:
        """Whatever it holds, by a name that says what it is."""
        if actor.kind == "relay":
            lanes = await self.lanes_of(actor.part.outbox, f"{actor.name}:{pid}")
            return {f"{actor.part.outbox}/{lane}": token for lane, token in lanes.items()}
        return await self.consumers_of(pid)

    async def still_held(self, held: dict[str, str]) -> list[str] | None:
        """What of it still carries the same token."""
        tokens = list(set(held.values()))
        rows = await self._looks.ask(
            """
            select 'book/' || lane from book.lane where token::text = any(%s)
            union all select 'post/' || lane from post.lane where token::text = any(%s)
            union all select name from book.consumer where token::text = any(%s)
            """,
            tokens,
            tokens,
            tokens,
        )
        return [name for (name,) in rows] if rows is not None else None

    async def heads(self) -> dict[str, int] | None:
        rows = await self._looks.ask(
            "select 'book', position from book.head union all select 'post', position from post.head"
        )
        return dict(rows) if rows else None

    def mourn(self, death: Death) -> None:
        """A relay or worker was killed: what it held is watched until somebody else has it."""
        if death.actor.kind in ("relay", "worker"):
            task = asyncio.ensure_future(self._mourn(death))
            self._mourning.add(task)
            task.add_done_callback(self._mourning.discard)

    async def _mourn(self, death: Death) -> None:
        heirs, lived = self.heirs(death.actor), death.lived
        held = await self.held_by(death.actor, death.pid)
        mark = await self._progress_of(death.actor, list(held))
        if held and mark is not None:
            self._bereaved.append(Bereaved(death.actor, death.at, held, mark, heirs, lived))

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            for one in list(self._bereaved):
                if not await self._look_after(one):
                    # The database itself is away: that is another recovery.
                    self.forget()
                    break
            await asyncio.sleep(LOOK)

    async def _look_after(self, one: Bereaved) -> bool:
        now = time.monotonic()
        if one.taken is None:
            left = await self.still_held(one.held)
            if left and not one.told and now - one.began > self._takeover_limit:
                one.told = True
                if self._had_an_heir(one):
                    self._tell_late(one, left)
            if left == []:
                one.taken = now
                times = self.recoveries.takeover if self._had_an_heir(one) else self.recoveries.takeover_in_trouble
                times.append(now - one.began)
            return left is not None
        mark = await self._progress_of(one.actor, list(one.held))
        if mark is not None and any(mark[name] > one.mark.get(name, 0) for name in mark):
            self.recoveries.progress.append(now - one.began)
            self._let_go(one)
        elif now - one.taken > IDLE:
            # Nothing came for what it held, so nothing is known about it.
            self._let_go(one)
        return mark is not None

    def _had_an_heir(self, one: Bereaved) -> bool:
        """Whether somebody was fit to take over, from shortly before until it had to be done. (Not until it was done:
        the longer it takes, the surer something happens meanwhile.)"""
        since, until = one.began - SETTLED, one.began + self._takeover_limit
        hit = {each.name for each in self._troubles if each.began <= until and each.ended >= since}
        return None not in hit and any(name not in hit for name in one.heirs)

    def _tell_late(self, one: Bereaved, left: list[str]) -> None:
        names = {*one.heirs, None}
        past = [each for each in self._troubles if each.name in names and one.began - each.ended < 15]
        troubles = ", ".join(
            f"{each.name or 'everybody'} {one.began - each.began:.1f} to {one.began - each.ended:.1f} s before"
            for each in past[-8:]
        )
        some = ", ".join(left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
        self.recoveries.late.append(
            f"{one.actor.name} ({one.lived}) was killed and {some} stayed with it. Heirs: {', '.join(one.heirs)}. "
            f"Troubles: {troubles or 'none'}"
        )

    def flowed(self, began: float, seconds: float, limit: float) -> None:
        """Appends have begun again, so long after they could."""
        hit = {each.name for each in self._troubles if each.began <= began + limit and each.ended >= began}
        in_trouble = any(name is not None and name.startswith("relay-") for name in hit)
        (self.recoveries.flow_in_trouble if in_trouble else self.recoveries.flow).append(seconds)

    async def _progress_of(self, actor: Actor, names: list[str]) -> dict[str, int] | None:
        if actor.kind == "worker":
            rows = await self._looks.ask("select name, position from book.consumer where name = any(%s)", names)
        else:
            lanes = [int(name.partition("/")[2]) for name in names]
            rows = await self._looks.ask(
                f"""
                select 'log', coalesce(max(position), 0) from {actor.part.outbox}.log
                where lane = any(%s) and position > (select position - 2000 from {actor.part.outbox}.head)
                """,
                lanes,
            )
        return dict(rows) if rows is not None else None

    def _let_go(self, one: Bereaved) -> None:
        # While we asked, a crash may have made us forget all of them.
        self._bereaved = [other for other in self._bereaved if other is not one]

    def forget(self) -> None:
        """Takeovers that cannot be measured any more."""
        self._bereaved.clear()

    async def flows(self, patience: float) -> float | None:
        """Seconds until both logs have grown from now on; None when they did not."""
        began = time.monotonic()
        start: dict[str, int] | None = None
        while time.monotonic() - began < patience:
            heads = await self.heads()
            start = start or heads
            if heads and start and all(heads[name] > start[name] for name in workload.CONSUMERS):
                return time.monotonic() - began
            await asyncio.sleep(LOOK)
        return None
