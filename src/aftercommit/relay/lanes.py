"""Leases on lanes: which aggregates this relay may carry, on the database's clock, fenced by a random token.

Relays share the lanes evenly without a leader. A relay that stops hands its lanes over; one that dies is replaced when
its lease has run out, and its lanes are then suspect: an event among them may have killed it.
"""

import asyncio
import time
from typing import Any
from uuid import UUID, uuid4

import psycopg

from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.relay.plan import share_of_lanes


class Lanes:
    """The lanes one relay holds, kept up by `tick`."""

    def __init__(self, shape: Shape, name: str, lease: float) -> None:
        """Holding none."""
        self._statements = Statements(shape)
        self._channel = shape.publish_channel
        self.name = name
        self.relay: UUID = uuid4()
        self.token: UUID = uuid4()
        self.lease = lease
        self.held: frozenset[int] = frozenset()
        self.suspect: set[int] = set()
        self.listening = False
        self.changed = asyncio.Event()
        self._valid_until = 0.0

    @property
    def are_valid(self) -> bool:
        """Whether the leases have surely not run out yet; counted from before the renewal was asked for."""
        return time.monotonic() < self._valid_until

    async def tick(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Say that we live, renew what we hold, and take or give lanes until our share is right."""
        asked_at = time.monotonic()
        parameters = {"relay": self.relay, "token": self.token, "lease": self.lease}
        await connection.execute(
            self._statements["heartbeat"], {**parameters, "name": self.name, "listening": self.listening}
        )
        renewed = await connection.execute(self._statements["renew_lanes"], parameters)
        held = {lane for (lane,) in await renewed.fetchall()}
        counted = await connection.execute(self._statements["live_relays"], parameters)
        (live,) = await counted.fetchone() or (1,)
        share = share_of_lanes(live)
        if len(held) > share:
            surplus = sorted(held)[share:]
            await self._release(connection, surplus)
            held.difference_update(surplus)
        elif len(held) < share:
            taken = await connection.execute(
                self._statements["take_lanes"], {**parameters, "wanted": share - len(held)}
            )
            for lane, died in await taken.fetchall():
                held.add(lane)
                if died:
                    self.suspect.add(lane)
        self._valid_until = asked_at + self.lease
        self._hold(frozenset(held))

    async def release_all(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Hand everything over at once and be counted no more."""
        held, self._valid_until = self.held, 0.0
        self._hold(frozenset())
        await connection.execute(self._statements["leave"], {"relay": self.relay})
        await self._release(connection, sorted(held))

    async def set_listening(self, connection: psycopg.AsyncConnection[Any], listening: bool) -> None:
        """Ask publishers to ring for us, or to stop doing so."""
        if self.listening != listening:
            self.listening = listening
            await connection.execute(self._statements["listen_flag"], {"relay": self.relay, "listening": listening})

    def forget(self) -> None:
        """After a lost connection: nothing is ours until the next tick says so."""
        self._valid_until = 0.0
        self._hold(frozenset())

    async def _release(self, connection: psycopg.AsyncConnection[Any], lanes: list[int]) -> None:
        await connection.execute(
            self._statements["release_lanes"],
            {"relay": self.relay, "token": self.token, "lanes": lanes, "channel": self._channel},
        )

    def _hold(self, lanes: frozenset[int]) -> None:
        self.suspect &= lanes
        if lanes != self.held:
            self.held = lanes
            self.changed.set()
