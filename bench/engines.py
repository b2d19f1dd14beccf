"""Our engine under the watch: started, held at the gate, let go when the clock runs, stopped when the work is done."""

from collections.abc import Callable
from typing import Any, Literal

from aftercommit import Database, Engine, Event, Outbox, RelaySettings
from aftercommit.consumer import LogWorker
from aftercommit.relay import Relay
from aftercommit.relay.transports import LogTransport
from aftercommit.service import Service
from aftercommit.testing.signals import Signals
from bench import loops, shop
from bench.figures import Sample
from bench.stage import Stage

CONSUMER = "bench"
PATIENCE = 600.0
Start = Literal["earliest", "latest"] | None


def with_handler(outbox: Outbox, *, inbox: bool = True, start: Start = None) -> Outbox:
    """Add a consumer whose handler does nothing, so that what is measured is all around it."""
    consumer = outbox.consumer(CONSUMER, inbox=inbox, start=start)

    @consumer.on(shop.OrderPlaced)
    async def take(event: Event[shop.OrderPlaced], connection: Any) -> None:
        """Takes the event and does nothing."""

    return outbox


def relay(stage: Stage, dsn: str, events: int, outbox: Outbox | None = None) -> Sample:
    """The relay moves a backlog of so many events to the log."""

    def make(signals: Signals) -> Service:
        return Relay(outbox or shop.declared(), Database(dsn), LogTransport(), settings=RelaySettings(), probe=signals)

    return _timed(stage, make, "relay.ready", "relay.appended", events)


def bus(stage: Stage, dsn: str, events: int) -> Sample:
    """The relay hands a backlog to a handler in its own process, inbox written, and appends it to the log."""

    def make(signals: Signals) -> Service:
        return Engine(with_handler(shop.declared()), Database(dsn), transport="bus", probe=signals)

    return _timed(stage, make, "relay.ready", "relay.appended", events)


def worker(stage: Stage, dsn: str, events: int, *, inbox: bool, start: Start = None) -> Sample:
    """A worker follows so many events of the log and hands each to the handler."""

    def make(signals: Signals) -> Service:
        outbox = with_handler(shop.declared(), inbox=inbox, start=start)
        return LogWorker(outbox, outbox.consumers[CONSUMER], Database(dsn), probe=signals)

    return _timed(stage, make, "consumer.active", "consumer.handled", events)


def _timed(stage: Stage, make: Callable[[Signals], Service], gate: str, done: str, events: int) -> Sample:
    return loops.run(_until_done(stage, make, gate, done, events))


async def _until_done(stage: Stage, make: Callable[[Signals], Service], gate: str, done: str, events: int) -> Sample:
    signals = Signals()
    held = signals.hold(gate)
    async with make(signals):
        try:
            await held.wait()
            with stage.watch() as watch:
                held.release()
                await signals.wait_total(done, events, timeout=PATIENCE)
                watch.events = signals.totals[done]
        finally:
            held.release()
    return watch.taken
