"""The relay: holds lanes, runs carriers on them, and goes on after outages of the database and the transport."""

import asyncio
import logging
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import psycopg

from aftercommit.backoff import Exponential
from aftercommit.errors import DeclarationError, LeaseLost, TransportUnavailable
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.database import Database, is_direct, privilege
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.resilience import DatabaseService, close_quietly, first_of
from aftercommit.postgres.statements import Statements
from aftercommit.relay.carrier import Carrier
from aftercommit.relay.doorbell import POLL, Doorbell
from aftercommit.relay.lanes import Lanes
from aftercommit.relay.plan import Marks
from aftercommit.relay.settle import Settlement
from aftercommit.relay.sweeper import Sweeper
from aftercommit.relay.transport import Transport
from aftercommit.schema.requirement import require_schema
from aftercommit.schema.retention import Retention
from aftercommit.service import Probe, wait_for_any
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.relay")

MARK_INTERVAL = 0.25


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

    It wakes up through the listener, which other services may share; without one it polls.
    """

    def __init__(
        self,
        outbox: Outbox,
        database: Database,
        transport: Transport,
        *,
        settings: RelaySettings | None = None,
        listener: Listener | None = None,
        name: str | None = None,
        probe: Probe | None = None,
    ) -> None:
        super().__init__(probe)
        outbox.registry.require_upcasters()
        self.name = name or f"relay {socket.gethostname()}:{os.getpid()}"
        self.outbox = outbox
        self.settings = settings or RelaySettings()
        self._database = database
        self._transport = transport
        self._statements = Statements(outbox.shape)
        self.lanes = Lanes(outbox.shape, self.name, self.settings.lease_seconds, listener)
        carriers = self.settings.carriers
        self._doorbells = [Doorbell(outbox.shape, self.lanes, listener, each, carriers) for each in range(carriers)]
        self._doorbell = self._doorbells[0]
        self._marks = Marks()
        self._settlement = Settlement(outbox, self.lanes.token)
        self._transport_backoff = Exponential(base=0.2, maximum=30.0)
        self._outages = 0
        self._carriers: list[Carrier] = []

    def carrier(self) -> Carrier:
        """A new carrier for some lanes of this relay."""
        size = self.settings.batch_size
        return Carrier(self.outbox, self._transport, self._settlement, self._marks, batch_size=size, probe=self._probe)

    async def run(self) -> None:
        """Open the transport, work in sessions, close it."""
        await self._open_transport()
        try:
            await super().run()
        finally:
            await self._transport.close()

    async def session(self) -> None:
        """Connect and work, until stopped or until a connection is lost."""
        control = await self._database.connect()
        self._marks.forget()
        self._doorbell.forget()
        self.lanes.forget()
        self._carriers.clear()
        try:
            await require_schema(control, self.outbox.shape)
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
            raise privilege(control.info.user, self.outbox.shape, problem) from problem
        finally:
            self.lanes.forget()
            await close_quietly(control)

    async def _work(self, control: AsyncConnection) -> None:
        sweeper = Sweeper(self.outbox.shape, self._database, self.settings.retention)
        look = self.settings.gauge_seconds
        async with asyncio.TaskGroup() as group:
            carriers = [group.create_task(self._carrier_loop(number)) for number in range(self.settings.carriers)]
            background = [
                group.create_task(self._control_loop(control)),
                group.create_task(_measure(self.outbox, self._database, self.lanes, self._carriers, look, self.reach)),
                group.create_task(sweeper.keep(self.stopping)),
            ]
            await self._until_drained(carriers)
            for task in background:
                task.cancel()
            # Wait here: before Python 3.13, a task that fails on the way out leaves this one marked as cancelled.
            await asyncio.wait([*carriers, *background])

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

    async def _control_loop(self, control: AsyncConnection) -> None:
        while True:
            if self.lanes.seconds_to_tick == 0:
                await self.lanes.tick(control)
            last_seq = await self._doorbell.last_seq(control)
            self.answered()
            self._marks.observe(last_seq, await self._doorbell.open_writers(control))
            await wait_for_any(min(MARK_INTERVAL, self.lanes.seconds_to_tick), self.lanes.tick_now)

    async def _carrier_loop(self, number: int) -> None:
        connection = await self._database.connect()
        carrier, doorbell = self.carrier(), self._doorbells[number]
        self._carriers.append(carrier)
        try:
            if is_direct(connection):
                await connection.execute(self._statements["plan_by_index"])
            while not self.stopping.is_set():
                lanes = {lane for lane in self.lanes.held if lane % self.settings.carriers == number}
                if not lanes or not self.lanes.are_valid:
                    await self._wait_for_lanes(doorbell)
                    continue
                try:
                    with self.lanes.at_work(lanes):
                        await self._turn(connection, carrier, doorbell, lanes)
                except TransportUnavailable as problem:
                    await self._wait_for_transport(problem)
                except LeaseLost as problem:
                    log_event(logger, logging.WARNING, "relay_lease_lost", relay=self.name, error=str(problem))
                    await self.reach("relay.fenced")
                    self.lanes.tick_now.set()
                    await self._wait_for_lanes(doorbell)
        except psycopg.errors.InsufficientPrivilege as problem:
            raise privilege(connection.info.user, self.outbox.shape, problem) from problem
        finally:
            await close_quietly(connection)

    async def _turn(self, connection: AsyncConnection, carrier: Carrier, doorbell: Doorbell, lanes: set[int]) -> None:
        suspects = lanes & self.lanes.suspect if self._transport.capabilities.carries else set()
        if suspects:
            await carrier.carry_suspects(connection, suspects)
            self.lanes.suspect -= suspects
            return
        carried = await carrier.carry_due(connection, lanes)
        if not carried.count:
            await self._run_dry(connection, carrier, doorbell, lanes)
            return
        self._transport_is_back()
        await doorbell.worked(connection, carried.count)
        if carried.rest_seconds > 0 and doorbell.hears:
            # The bell worked all the time, so whatever comes after a look that took everything rings it.
            await self.reach("relay.idle")
            await self.pause(min(POLL, carried.rest_seconds), doorbell.rung)
        elif not carried.more and (seconds := doorbell.gathering(carried.count)):
            await self.reach("relay.gathering")
            await self.pause(seconds)

    async def _run_dry(
        self, connection: AsyncConnection, carrier: Carrier, doorbell: Doorbell, lanes: set[int]
    ) -> None:
        await self.reach("relay.idle")
        seconds = await doorbell.ran_dry(connection)
        if seconds > 0:
            due_in = await carrier.reader.seconds_to_next_retry(connection, lanes)
            seconds = seconds if due_in is None else max(0.001, min(seconds, due_in))
            await self.pause(seconds, doorbell.rung)

    async def _wait_for_lanes(self, doorbell: Doorbell) -> None:
        await self.pause(self.settings.lease_seconds / 3, doorbell.rung)
        self.lanes.tick_now.set()
        await asyncio.sleep(0)

    async def _open_transport(self) -> None:
        while not self.stopping.is_set():
            try:
                await self._transport.open()
                self._transport_is_back()
                return
            except TransportUnavailable as problem:
                await self._wait_for_transport(problem)

    async def _wait_for_transport(self, problem: TransportUnavailable) -> None:
        self._outages += 1
        if self._outages == 1:
            fields = {"transport": self._transport.name, "error": str(problem)}
            log_event(logger, logging.WARNING, "transport_is_unavailable", **fields)
        await self.reach("relay.outage", outages=self._outages)
        await self.pause(self._transport_backoff(self._outages, problem) or 0.0)

    def _transport_is_back(self) -> None:
        if self._outages:
            fields = {"transport": self._transport.name, "attempts": self._outages}
            log_event(logger, logging.INFO, "transport_is_back", **fields)
        self._outages = 0


async def _measure(
    outbox: Outbox,
    database: Database,
    lanes: Lanes,
    carriers: Sequence[Carrier],
    gauge_seconds: float,
    reach: Callable[[str], Awaitable[None]],
) -> None:
    """Measure the backlog every `gauge_seconds`, and find events that a watermark has passed, until cancelled."""
    statements = Statements(outbox.shape)
    connection = await database.connect()
    try:
        while True:
            started = time.monotonic()
            row = await (await connection.execute(statements["backlog"])).fetchone()
            if row is not None:
                outbox.meter.on_backlog(*row)
            # An operator may have put an event back by hand, with its old seq: no watermark may hide it.
            parameters = {"watermark": 0, "lanes": sorted(lanes.held)}
            row = await (await connection.execute(statements["lowest_fresh"], parameters)).fetchone()
            if row is not None and row[0] is not None:
                for carrier in carriers:
                    carrier.reader.watermark.look_back_to(row[0])
            await reach("relay.measured")
            # Counting a large backlog takes time: spend at most about a twentieth of the time on it.
            await asyncio.sleep(max(gauge_seconds, 20 * (time.monotonic() - started)))
    finally:
        await close_quietly(connection)
