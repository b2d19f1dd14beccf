"""Leases on lanes: which aggregates a relay may carry. The database's clock counts; a random token fences writes.

Relays share the lanes evenly without a leader. A relay that stops hands its lanes over. When one dies, others take its
lanes once the lease has run out, and treat them as suspect: one of their events may have killed it.
"""

import asyncio
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.relay.plan import share_of_lanes
from aftercommit.service import Waker

NEWS = "lanes"
EXPIRY_MARGIN = 0.01


class Lanes:
    """The lanes that one relay holds; `tick` renews them. A listener tells it at once when others give lanes away."""

    def __init__(self, shape: Shape, name: str, lease_seconds: float, listener: Listener | None = None) -> None:
        self._statements = Statements(shape)
        self._channel = shape.publish_channel
        self.name = name
        self.relay: UUID = uuid4()
        self.token: UUID = uuid4()
        self.lease = lease_seconds
        self.held: frozenset[int] = frozenset()
        self.suspect: set[int] = set()
        self.tick_now = Waker() if listener is None else listener.subscribe(self._channel, {NEWS})
        self._listening = False
        self._listeners: set[object] = set()
        self._flag = asyncio.Lock()
        self._watchers: list[Waker] = []
        self._at_work: list[frozenset[int]] = []
        self._leaving: frozenset[int] = frozenset()
        self._is_new = True
        self._next_tick = 0.0
        self._valid_until = 0.0

    @property
    def are_valid(self) -> bool:
        """Whether the leases have surely not run out; counted from before the renewal was sent."""
        return time.monotonic() < self._valid_until

    @property
    def seconds_to_tick(self) -> float:
        """How long until `tick` is due: a third of the lease, or less when a lane may become free."""
        return 0.0 if self.tick_now.is_set() else max(0.0, self._next_tick - time.monotonic())

    def watch(self, event: Waker) -> None:
        """Set this event whenever the lanes held change."""
        self._watchers.append(event)

    @contextmanager
    def at_work(self, lanes: Collection[int]) -> Iterator[None]:
        """Keep these lanes from other relays while work on them goes on: another relay would deliver again."""
        mine = frozenset(lanes)
        self._at_work.append(mine)
        try:
            yield
        finally:
            self._at_work.remove(mine)
            if self._leaving & mine:
                self.tick_now.set()

    async def tick(self, connection: AsyncConnection) -> None:
        """Send a heartbeat, renew the leases, and take or give lanes until the share is right."""
        asked_at = time.monotonic()
        self.tick_now.clear()
        await self._heartbeat(connection)
        renewed = await connection.execute(self._statements["renew_lanes"], self._identity)
        held = {lane for (lane,) in await renewed.fetchall()}
        share, expiry = await self._look_around(connection)
        self._leaving = frozenset(sorted(held)[share:])
        if len(held) < share:
            held |= await self._take(connection, share - len(held))
        self._valid_until = asked_at + self.lease
        self._next_tick = asked_at + min(self.lease / 3, expiry + EXPIRY_MARGIN)
        self.suspect &= held
        self._hold(frozenset(held) - self._leaving)
        if given := self._leaving.difference(*self._at_work):
            await self._release(connection, given, self.suspect & given)
            self._leaving -= given

    async def release_all(self, connection: AsyncConnection) -> None:
        """Give all lanes back and leave the list of relays."""
        released, suspects = self.held | self._leaving, frozenset(self.suspect)
        self.suspect.clear()
        self.forget()
        await connection.execute(self._statements["leave"], {"relay": self.relay})
        await self._release(connection, released, suspects)

    async def listen(self, connection: AsyncConnection, who: object, listening: bool) -> None:
        """Publishers ring while anybody here listens; on return the database knows."""
        (self._listeners.add if listening else self._listeners.discard)(who)
        async with self._flag:
            wanted = bool(self._listeners)
            if self._listening != wanted:
                await connection.execute(self._statements["listen_flag"], {"relay": self.relay, "listening": wanted})
                self._listening = wanted

    def is_listening(self, who: object) -> bool:
        """Whether publishers ring for this listener."""
        return self._listening and who in self._listeners

    def forget(self) -> None:
        """After a lost connection: hold nothing until the next tick. Suspect lanes stay suspect."""
        self._valid_until = self._next_tick = 0.0
        self._is_new, self._listening, self._leaving = True, False, frozenset()
        self._listeners.clear()
        self._hold(frozenset())

    @property
    def _identity(self) -> dict[str, Any]:
        return {"relay": self.relay, "token": self.token, "lease": self.lease}

    async def _heartbeat(self, connection: AsyncConnection) -> None:
        parameters = {**self._identity, "name": self.name, "listening": self._listening, "is_new": self._is_new}
        await connection.execute(self._statements["heartbeat"], parameters)
        if self._is_new:
            # The others give up this relay's share as soon as they hear of it.
            await connection.execute(self._statements["lane_news"], {"channel": self._channel, "news": NEWS})
        self._is_new = False

    async def _look_around(self, connection: AsyncConnection) -> tuple[int, float]:
        row = await (await connection.execute(self._statements["live_relays"], self._identity)).fetchone()
        live, expiry = row or (1, None)
        return share_of_lanes(live), self.lease if expiry is None else expiry

    async def _take(self, connection: AsyncConnection, wanted: int) -> set[int]:
        taken = await connection.execute(self._statements["take_lanes"], {**self._identity, "wanted": wanted})
        rows = await taken.fetchall()
        self.suspect.update(lane for lane, died in rows if died)
        return {lane for lane, _ in rows}

    async def _release(self, connection: AsyncConnection, lanes: Collection[int], suspects: Collection[int]) -> None:
        parameters = {**self._identity, "lanes": sorted(lanes), "suspects": sorted(suspects)}
        await connection.execute(self._statements["release_lanes"], parameters)
        await connection.execute(self._statements["lane_news"], {"channel": self._channel, "news": NEWS})

    def _hold(self, lanes: frozenset[int]) -> None:
        if lanes != self.held:
            self.held = lanes
            for watcher in self._watchers:
                watcher.set()
