"""Combines the parts that run in one process: a listener, a relay and workers. The CLI and small programs start it."""

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

from aftercommit.consumer import Dispatcher, LogWorker, WorkerSettings
from aftercommit.errors import DeclarationError
from aftercommit.outbox import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.database import Database
from aftercommit.postgres.listen import Listener
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transport import Transport
from aftercommit.relay.transports import BusTransport, LogTransport
from aftercommit.service import Probe, Service, finish_all, until_one_ends

# A health check reports within this time that the database does not answer.
READY_WITHIN = 10.0
# Longer than a handler may reasonably block the event loop.
ALIVE_WITHIN = 60.0

TransportName = Literal["log", "bus"]
BUS_CARRIERS = 4


class Engine(Service):
    """All services of one outbox in this process. Ends when it is stopped or when one of them fails for good."""

    name = "engine"

    def __init__(
        self,
        outbox: Outbox,
        database: Database,
        *,
        relay: bool = True,
        workers: bool | Sequence[str] = True,
        transport: TransportName | Transport = "log",
        relay_settings: RelaySettings | None = None,
        worker_settings: WorkerSettings | None = None,
        listen: bool = True,
        probe: Probe | None = None,
    ) -> None:
        """A relay, and workers for all consumers or the named ones. With the bus, the relay runs the handlers."""
        super().__init__(probe)
        self.outbox = outbox
        self._turned_at = time.monotonic()
        self.listener = Listener(database, probe) if listen else None
        self.relay: Relay | None = None
        self.worker: LogWorker | None = None
        carried = _transport(transport, outbox, database)
        if not isinstance(carried, BusTransport) and workers is not False:
            chosen = _chosen(outbox, workers)
            if chosen:
                self.worker = LogWorker(
                    outbox, chosen, database, settings=worker_settings, listener=self.listener, probe=probe
                )
        if relay:
            settings = relay_settings or RelaySettings(carriers=BUS_CARRIERS if carried.capabilities.carries else 1)
            self.relay = Relay(
                outbox, database, carried, settings=settings, listener=self.listener, hand_over=self.worker, probe=probe
            )

    @property
    def services(self) -> list[Service]:
        """The parts, in the order in which they start."""
        parts: list[Service | None] = [self.listener, self.relay, self.worker]
        return [part for part in parts if part is not None]

    @property
    def not_ready(self) -> list[str]:
        """The reasons why this process is not ready; empty when it is. Can be read from another thread."""
        parts = [part for part in (self.relay, self.worker) if part is not None]
        return [reason for part in parts if (reason := part.not_ready(max(READY_WITHIN, part.silence)))]

    @property
    def is_alive(self) -> bool:
        """Whether the event loop runs; if it does not, restart the process. Can be read from another thread."""
        return time.monotonic() - self._turned_at < ALIVE_WITHIN

    async def up(self) -> None:
        """Wait until the relay and every worker have found their tables and started to work."""
        for part in (self.relay, self.worker):
            if part is not None:
                await part.up.wait()

    async def _turn(self) -> None:
        while True:
            self._turned_at = time.monotonic()
            await asyncio.sleep(1.0)

    async def run(self) -> None:
        """Start all services, wait, stop them; the first error of a service is raised."""
        turning = asyncio.create_task(self._turn(), name="engine turns")
        try:
            await self._run(self.services)
        finally:
            turning.cancel()

    async def _run(self, parts: list[Service]) -> None:
        for part in parts:
            await part.start()
        try:
            await until_one_ends(self.stopping.wait(), *(part.wait() for part in parts))
        finally:
            # The listener stops last: the others still need its wake-ups while they hand over.
            try:
                await finish_all(part.stop() for part in parts if part is not self.listener)
            finally:
                if self.listener is not None:
                    await self.listener.stop()


def _transport(chosen: TransportName | Transport, outbox: Outbox, database: Database) -> Transport:
    if chosen == "log":
        return LogTransport()
    if chosen == "bus":
        return BusTransport(Dispatcher(outbox, database))
    if isinstance(chosen, str):
        raise DeclarationError(f"unknown transport {chosen!r}: use 'log', 'bus' or a Transport object")
    return chosen


def _chosen(outbox: Outbox, workers: bool | Sequence[str]) -> list[Consumer]:
    if workers is True:
        return list(outbox.consumers.values())
    names = list(workers) if not isinstance(workers, bool) else []
    for name in names:
        if name not in outbox.consumers:
            raise DeclarationError(
                f"consumer {name!r} is not declared. Declared consumers: {', '.join(outbox.consumers) or 'none'}"
            )
    return [outbox.consumers[name] for name in names]
