"""Combines the parts that run in one process: a listener, relays and workers. The CLI and small programs start it."""

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
from aftercommit.postgres.shared import SharedConnections
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
    """All services of one outbox, or of several, in this process. Several share one listener and a few connections.

    Ends when it is stopped or when a service fails for good.
    """

    name = "engine"

    def __init__(
        self,
        outbox: Outbox | Sequence[Outbox],
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
        """Relays, and workers for all consumers or the named ones. With the bus, the relays run the handlers."""
        super().__init__(probe)
        self.outboxes = (outbox,) if isinstance(outbox, Outbox) else tuple(outbox)
        self._turned_at = time.monotonic()
        self.listener = listener = Listener(database, probe) if listen else None
        ways = _transports(transport, self.outboxes, database)
        settings = relay_settings or RelaySettings(carriers=BUS_CARRIERS if ways[0].capabilities.carries else 1)
        shared = SharedConnections(database)
        chosen = {} if isinstance(ways[0], BusTransport) else _chosen(self.outboxes, workers)
        at_work = {
            each: LogWorker(
                each,
                consumers,
                database,
                settings=worker_settings,
                listener=listener,
                connections=shared,
                probe=probe,
            )
            for each, consumers in chosen.items()
        }
        self.workers = list(at_work.values())
        self.relays = [
            Relay(
                each,
                database,
                way,
                settings=settings,
                listener=listener,
                connections=shared,
                hand_over=at_work[each].news if each in at_work else None,
                probe=probe,
            )
            for each, way in zip(self.outboxes, ways, strict=True)
            if relay
        ]

    @property
    def services(self) -> list[Service]:
        """The parts, in the order in which they start."""
        first = [self.listener] if self.listener is not None else []
        return [*first, *self.relays, *self.workers]

    @property
    def not_ready(self) -> list[str]:
        """The reasons why this process is not ready; empty when it is. Can be read from another thread."""
        parts = [*self.relays, *self.workers]
        return [reason for part in parts if (reason := part.not_ready(max(READY_WITHIN, part.silence)))]

    @property
    def is_alive(self) -> bool:
        """Whether the event loop runs; if it does not, restart the process. Can be read from another thread."""
        return time.monotonic() - self._turned_at < ALIVE_WITHIN

    async def up(self) -> None:
        """Wait until every relay and worker has found its tables and started to work."""
        for part in [*self.relays, *self.workers]:
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


def _transports(chosen: TransportName | Transport, outboxes: Sequence[Outbox], database: Database) -> list[Transport]:
    if not outboxes:
        raise DeclarationError("an engine needs at least one outbox")
    if chosen == "log":
        return [LogTransport() for _ in outboxes]
    if chosen == "bus":
        return [BusTransport(Dispatcher(each, database)) for each in outboxes]
    if isinstance(chosen, str):
        raise DeclarationError(f"unknown transport {chosen!r}: use 'log', 'bus' or a Transport object")
    if len(outboxes) > 1:
        raise DeclarationError("a Transport object serves one outbox: give each outbox an engine and a transport")
    return [chosen]


def _chosen(outboxes: Sequence[Outbox], workers: bool | Sequence[str]) -> dict[Outbox, list[Consumer]]:
    """The consumers to run, by outbox; those without a consumer are missing."""
    declared = {each: list(each.consumers.values()) if workers is not False else [] for each in outboxes}
    if not isinstance(workers, bool):
        known = dict.fromkeys(name for each in outboxes for name in each.consumers)
        for name in workers:
            if name not in known:
                raise DeclarationError(
                    f"consumer {name!r} is not declared. Declared consumers: {', '.join(known) or 'none'}"
                )
        declared = {each: [each.consumers[name] for name in workers if name in each.consumers] for each in outboxes}
    return {each: consumers for each, consumers in declared.items() if consumers}
