"""Runs one carrier on its share of the relay's lanes: decides when it works, when it sleeps and what wakes it."""

import logging
from collections.abc import Callable

from aftercommit.errors import LeaseLost, TransportUnavailable
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.relay.carrier import Carrier
from aftercommit.relay.doorbell import Doorbell
from aftercommit.relay.lanes import Lanes
from aftercommit.relay.transport_outage import TransportOutage
from aftercommit.service import Service, Waker, wait_for_any
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.relay")

# After work the carrier looks once more this soon, for a retry that fell due meanwhile.
FIRST_LOOK = 1.0
SHORTEST_PAUSE = 0.001


class CarrierLoop:
    """One carrier at work. Each turn carries what is due, or looks whether anything is, and then perhaps sleeps."""

    def __init__(
        self,
        carrier: Carrier,
        doorbell: Doorbell,
        lanes: Lanes,
        mine: Callable[[int], bool],
        outage: TransportOutage,
        worked: Waker,
        relay: Service,
    ) -> None:
        """`mine` tells which lanes are for this carrier; `worked` is set when it has carried events."""
        self.carrier = carrier
        self._doorbell = doorbell
        self._lanes = lanes
        self._mine = mine
        self._outage = outage
        self._worked = worked
        self._relay = relay
        # Nobody has rung: look before the carrier reads and locks.
        self._only_look = False
        # A publisher has rung, and nothing was read since.
        self._rung = False

    def look_back_to(self, seq: int) -> None:
        """An untried event has this seq: the next read must see it."""
        if self.carrier.reader.watermark.look_back_to(seq):
            self._doorbell.look.set()

    async def run(self, connection: AsyncConnection) -> None:
        """Carry until the relay stops."""
        while not self._relay.stopping.is_set():
            await self._guarded_turn(connection)

    async def _guarded_turn(self, connection: AsyncConnection) -> None:
        lanes = {lane for lane in self._lanes.held if self._mine(lane)}
        if not lanes or not self._lanes.are_valid:
            await self._wait_for_lanes()
            return
        try:
            with self._lanes.at_work(lanes):
                await self._turn(connection, lanes)
        except TransportUnavailable as problem:
            await self._outage.wait(problem)
        except LeaseLost as problem:
            log_event(logger, logging.WARNING, "relay_lease_lost", relay=self._relay.name, error=str(problem))
            await self._relay.reach("relay.fenced")
            self._lanes.tick_now.set()
            await self._wait_for_lanes()

    async def _turn(self, connection: AsyncConnection, lanes: set[int]) -> None:
        suspects = lanes & self._lanes.suspect if self.carrier.carries else set()
        if suspects:
            await self.carrier.carry_suspects(connection, suspects)
            self._lanes.suspect -= suspects
            return
        if self._only_look and (due_in := await self.carrier.reader.look(connection, lanes)) > 0:
            await self._run_dry(connection, lanes, due_in)
            return
        rung, self._rung = self._rung, False
        carried = await self.carrier.carry_due(connection, lanes, rung=rung)
        if not carried.count:
            await self._run_dry(connection, lanes)
            return
        self._outage.over()
        self._worked.set()
        await self._doorbell.worked(connection, carried.count)
        if carried.rest_seconds > 0 and self._doorbell.hears:
            # The bell worked all the time, so whatever comes after a look that took everything rings it.
            await self._relay.reach("relay.idle")
            await self._sleep(min(FIRST_LOOK, carried.rest_seconds))
        elif not carried.more and (seconds := self._doorbell.gathering(carried.count)):
            await self._relay.reach("relay.gathering")
            await self._relay.pause(seconds)

    async def _run_dry(self, connection: AsyncConnection, lanes: set[int], due_in: float | None = None) -> None:
        """Nothing is due, and for `due_in` seconds nothing will be unless it is published."""
        await self._relay.reach("relay.idle")
        seconds = await self._doorbell.ran_dry(connection)
        if seconds > 0:
            due_in = await self.carrier.reader.look(connection, lanes) if due_in is None else due_in
            await self._sleep(max(SHORTEST_PAUSE, min(seconds, due_in)))
        else:
            self._only_look = True

    async def _sleep(self, seconds: float) -> None:
        await wait_for_any(seconds, self._relay.stopping, self._doorbell.rung, self._doorbell.look)
        self._rung = self._doorbell.rung.is_set()
        self._only_look = not self._rung
        self._doorbell.rung.clear()
        self._doorbell.look.clear()

    async def _wait_for_lanes(self) -> None:
        await self._relay.pause(self._lanes.lease / 3, self._doorbell.rung)
        self._lanes.tick_now.set()
        await self._relay.pause(0.0)
