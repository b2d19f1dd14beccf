"""The relay: holds lanes, runs carriers on them, and goes on after outages of the database and the transport."""

import asyncio
import logging
import math
import os
import socket
from dataclasses import dataclass, field

import psycopg

from aftercommit.errors import DeclarationError, TransportUnavailable
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.database import Database, privilege
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.resilience import DatabaseService, first_of
from aftercommit.postgres.shared import SharedConnections, exclusive
from aftercommit.postgres.statements import Statements
from aftercommit.relay.carrier import Carrier
from aftercommit.relay.carrier_loop import CarrierLoop
from aftercommit.relay.control import ControlLoop
from aftercommit.relay.doorbell import Doorbell
from aftercommit.relay.gauge import measure
from aftercommit.relay.lanes import Lanes
from aftercommit.relay.plan import Marks
from aftercommit.relay.settle import HandOver, Settlement
from aftercommit.relay.sweeper import Sweeper
from aftercommit.relay.transport import Transport
from aftercommit.relay.transport_outage import TransportOutage
from aftercommit.relay.writers import Writers
from aftercommit.schema.requirement import require_schema
from aftercommit.schema.retention import Retention
from aftercommit.service import Probe
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.relay")


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """How a relay works.

    `lease_seconds`: after a crash another relay takes over within this time. `carriers`: how many batches it works on
    at once. `drain_seconds`: how long a stop waits for batches under way. `gauge_seconds`: time between two
    measurements of the backlog. `retention`: how long old data is kept; use the same in all relays of an outbox.
    """

    batch_size: int = 1000
    carriers: int = 1
    lease_seconds: float = 5.0
    drain_seconds: float = 10.0
    gauge_seconds: float = 5.0
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        """Check the numbers."""
        times_are_usable = (
            0 < self.lease_seconds < math.inf and 0 <= self.drain_seconds < math.inf and 0 < self.gauge_seconds <= 60
        )
        if self.batch_size < 1 or not 1 <= self.carriers <= 64 or not times_are_usable:
            raise DeclarationError(
                f"{self!r}: need batch_size >= 1, carriers from 1 to 64, lease_seconds > 0, drain_seconds >= 0, "
                "and gauge_seconds above 0 and up to 60"
            )


class Relay(DatabaseService):
    """Carries the events of one outbox to one transport and into the log.

    It wakes up through the listener, which other services may share, as they may share the connections; without a
    listener it polls. `hand_over` takes new events as soon as they are in the log.
    """

    def __init__(
        self,
        outbox: Outbox,
        database: Database,
        transport: Transport,
        *,
        settings: RelaySettings | None = None,
        listener: Listener | None = None,
        hand_over: HandOver | None = None,
        connections: SharedConnections | None = None,
        name: str | None = None,
        probe: Probe | None = None,
    ) -> None:
        super().__init__(probe)
        outbox.registry.require_upcasters()
        self.name = name or f"relay {socket.gethostname()}:{os.getpid()}"
        self.outbox = outbox
        self.settings = settings or RelaySettings()
        self._database = database
        self._connections = connections or SharedConnections(database)
        self._connections.make_room(carriers=self.settings.carriers)
        self._transport = transport
        self._statements = Statements(outbox.shape)
        self.lanes = Lanes(outbox.shape, self.name, self.settings.lease_seconds, listener)
        carriers = self.settings.carriers
        self._doorbells = [Doorbell(outbox.shape, self.lanes, listener, each, carriers) for each in range(carriers)]
        self._marks = Marks()
        self._writers = Writers(outbox.shape)
        self._control = ControlLoop(self.lanes, self._marks, self._writers, [bell.look for bell in self._doorbells])
        self._settlement = Settlement(outbox, self.lanes.token, hand_over)
        self._transport_outage = TransportOutage(transport.name, self)
        self._carrier_loops: list[CarrierLoop] = []

    def carrier(self) -> Carrier:
        """A new carrier for some lanes of this relay."""
        return Carrier(
            self.outbox,
            self._transport,
            self._settlement,
            self._marks,
            batch_size=self.settings.batch_size,
            probe=self._probe,
        )

    async def run(self) -> None:
        """Open the transport, work in sessions, close it."""
        await self._open_transport()
        try:
            await super().run()
        finally:
            await self._transport.close()

    async def session(self) -> None:
        """Connect and work, until stopped or until a connection is lost."""
        self._marks.forget()
        self._writers.forget()
        self.lanes.forget()
        try:
            async with self._connections as connections:
                await self._session(connections.control())
        finally:
            self.lanes.forget()

    async def _session(self, control: AsyncConnection) -> None:
        try:
            async with exclusive(control) as own:
                await require_schema(own, self.outbox.shape)
            await self._settlement.recognise_server(control)
            await self._take_up_newer(control)
            await self.lanes.tick(control)
            self.session_is_up()
            await self.reach("relay.ready", lanes=len(self.lanes.held))
            try:
                await self._work(control)
            except BaseExceptionGroup as group:
                denied, _ = group.split(psycopg.errors.InsufficientPrivilege)
                raise first_of(denied) if denied is not None else group from None
            await self.lanes.release_all(control)
            await self.reach("relay.stopped")
        except psycopg.errors.InsufficientPrivilege as problem:
            raise privilege(self._connections.user, self.outbox.shape, problem) from problem

    async def _work(self, control: AsyncConnection) -> None:
        shared, look = self._connections, self.settings.gauge_seconds
        sweeper = Sweeper(self.outbox.shape, self._database, self.settings.retention, shared.sweeping)
        loops = self._carrier_loops = [self._carrier_loop(number) for number in range(self.settings.carriers)]
        async with asyncio.TaskGroup() as group:
            carriers = [group.create_task(loop.run(shared.carrying())) for loop in loops]
            background = [
                group.create_task(self._control.keep(control, self.answered)),
                group.create_task(measure(self.outbox, shared.reading(), self.lanes, loops, look, self.reach)),
                group.create_task(sweeper.keep(self.stopping)),
            ]
            await self._until_drained(carriers)
            for task in background:
                task.cancel()
            # Wait here: before Python 3.13, a task that fails on the way out leaves this one marked as cancelled.
            await asyncio.wait([*carriers, *background])

    def _carrier_loop(self, number: int) -> CarrierLoop:
        def mine(lane: int) -> bool:
            return lane % self.settings.carriers == number

        bell, worked = self._doorbells[number], self._control.worked
        return CarrierLoop(self.carrier(), bell, self.lanes, mine, self._transport_outage, worked, self)

    async def _until_drained(self, carriers: list[asyncio.Task[None]]) -> None:
        await self.stopping.wait()
        _, late = await asyncio.wait(carriers, timeout=self.settings.drain_seconds)
        for carrier in late:
            seconds = self.settings.drain_seconds
            log_event(logger, logging.WARNING, "relay_drain_timed_out", relay=self.name, seconds=seconds)
            carrier.cancel()

    async def _take_up_newer(self, control: AsyncConnection) -> None:
        """Deliver again what older code parked because it did not know the version."""
        known = list(self.outbox.registry)
        parameters = {
            "types": [event_type.name for event_type in known],
            "versions": [event_type.version for event_type in known],
        }
        await control.execute(self._statements["take_up_newer_deliveries"], parameters)
        await control.execute(self._statements["end_version_waits"], parameters)

    async def _open_transport(self) -> None:
        while not self.stopping.is_set():
            try:
                await self._transport.open()
                self._transport_outage.over()
                return
            except TransportUnavailable as problem:
                await self._transport_outage.wait(problem)
