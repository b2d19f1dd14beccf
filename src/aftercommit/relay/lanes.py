"""Lanes: which aggregates a relay may carry. The database's clock counts; a random token fences writes.

A relay has one lease, which it renews. Its lanes are its own as long as that lease is valid. Relays share the lanes
evenly without a leader. A relay that stops hands its lanes over. When one dies, others take its lanes once its lease
has run out, and treat them as suspect: one of their events may have killed it.

Each lane has a lease of its own, too, by which relays of releases before 0008 go. It is long, so it is rarely written.
Only while such a relay is alive is it as short as the lease of the relay, and renewed as often.
"""

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.relay.listen_flag import ListenFlag
from aftercommit.relay.plan import share_of_lanes
from aftercommit.service import Waker

NEWS = "lanes"
EXPIRY_MARGIN = 0.01
# The lease of a lane, in leases of the relay; it is renewed when a third of it is over.
LANE_LEASES = 24


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a relay is. The token fences its writes."""

    name: str
    relay: UUID = field(default_factory=uuid4)
    token: UUID = field(default_factory=uuid4)


@dataclass(frozen=True, slots=True)
class Around:
    """What a heartbeat saw: our lanes, and whether that is certain; live relays; seconds to the next lease's end."""

    held: Collection[int]
    continued: bool
    live: int
    beside_older: bool
    expiry: float | None


class Lanes:
    """The lanes that one relay holds; `tick` renews them. A listener tells it at once when others give lanes away."""

    def __init__(self, shape: Shape, name: str, lease_seconds: float, listener: Listener | None = None) -> None:
        self._statements = Statements(shape)
        self._identity = Identity(name)
        self.lease = lease_seconds
        self.held: frozenset[int] = frozenset()
        self.suspect: set[int] = set()
        self.tick_now = Waker() if listener is None else listener.subscribe(shape.publish_channel, {NEWS})
        self.flag = ListenFlag(self._statements, self._identity.relay)
        self._watchers: list[Waker] = []
        self._at_work: list[frozenset[int]] = []
        self._leaving: frozenset[int] = frozenset()
        self._is_new = True
        self._next_tick = 0.0
        self._valid_until = 0.0
        self._renew_lanes_at = 0.0

    @property
    def relay(self) -> UUID:
        """The id of this relay."""
        return self._identity.relay

    @property
    def token(self) -> UUID:
        """What fences the writes of this relay."""
        return self._identity.token

    @property
    def are_valid(self) -> bool:
        """Whether the lease has surely not run out; counted from before the renewal was sent."""
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
        """Renew the lease, and take or give lanes until the share is right. At rest this is one statement."""
        asked_at = time.monotonic()
        self.tick_now.clear()
        around = await self._heartbeat(connection)
        lane_lease = self.lease if around.beside_older else LANE_LEASES * self.lease
        held = set(around.held)
        if not around.continued or around.beside_older or asked_at >= self._renew_lanes_at:
            held = await self._renew(connection, lane_lease)
            self._renew_lanes_at = asked_at + lane_lease / 3
        share = share_of_lanes(around.live)
        self._leaving = frozenset(sorted(held)[share:])
        if len(held) < share:
            held |= await self._take(connection, share - len(held), lane_lease)
        self._valid_until = asked_at + self.lease
        expiry = self.lease if around.expiry is None else around.expiry
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
        await self._release(connection, released, suspects, leaves=True)

    def forget(self) -> None:
        """After a lost connection: hold nothing until the next tick. Suspect lanes stay suspect."""
        self._valid_until = self._next_tick = self._renew_lanes_at = 0.0
        self._is_new, self._leaving = True, frozenset()
        self.flag.forget()
        self._hold(frozenset())

    async def _heartbeat(self, connection: AsyncConnection) -> Around:
        parameters = {
            **self._parameters(),
            "name": self._identity.name,
            "listening": self.flag.is_set,
            "is_new": self._is_new,
        }
        row = await (await connection.execute(self._statements["heartbeat"], parameters)).fetchone()
        if self._is_new:
            # The others give up this relay's share as soon as they hear of it.
            await self._tell_others(connection)
        self._is_new = False
        return Around(*row) if row else Around((), False, 1, False, None)

    async def _renew(self, connection: AsyncConnection, lane_lease: float) -> set[int]:
        renewed = await connection.execute(self._statements["renew_lanes"], self._parameters(lane_lease=lane_lease))
        return {lane for (lane,) in await renewed.fetchall()}

    async def _take(self, connection: AsyncConnection, wanted: int, lane_lease: float) -> set[int]:
        parameters = self._parameters(wanted=wanted, lane_lease=lane_lease)
        rows = await (await connection.execute(self._statements["take_lanes"], parameters)).fetchall()
        self.suspect.update(lane for lane, died in rows if died)
        return {lane for lane, _ in rows}

    async def _release(
        self, connection: AsyncConnection, lanes: Collection[int], suspects: Collection[int], *, leaves: bool = False
    ) -> None:
        parameters = self._parameters(lanes=sorted(lanes), suspects=sorted(suspects), leaves=leaves)
        await connection.execute(self._statements["release_lanes"], parameters)
        await self._tell_others(connection)

    async def _tell_others(self, connection: AsyncConnection) -> None:
        channel = self._statements.shape.publish_channel
        await connection.execute(self._statements["lane_news"], {"channel": channel, "news": NEWS})

    def _parameters(self, **more: Any) -> dict[str, Any]:
        return {"relay": self.relay, "token": self.token, "lease": self.lease, **more}

    def _hold(self, lanes: frozenset[int]) -> None:
        if lanes != self.held:
            self.held = lanes
            for watcher in self._watchers:
                watcher.set()
