"""The processes of a run: what each kind does from its fork to its end. SIGTERM ends them in order."""

import asyncio
import hashlib
import os
import random
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from aftercommit.consumer import Dispatcher, LogWorker, WorkerSettings
from aftercommit.errors import TransportUnavailable
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.shared import SharedConnections
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transport import Transport
from aftercommit.relay.transports import BusTransport, LogTransport
from aftercommit.service import Service, finish_all
from tests.faults import history, workload
from tests.faults.history import History
from tests.faults.probe import At, FatalProbe
from tests.faults.writer import Writer

CANCELLED_PATIENCE = 20.0


@dataclass(frozen=True)
class Part:
    """The part that a process is given: who it is, where it works, and what is to befall it from within."""

    name: str
    kind: str
    dsn: str
    folder: str
    seed: str
    outbox: str = workload.BOOK
    consumers: tuple[str, ...] = ()
    listen: bool = True
    listen_dsn: str | None = None
    lease: float = 1.0
    die: tuple[str, int] | None = None
    stop: tuple[str, int] | None = None
    storm: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def history(self) -> Path:
        """Where this process writes what it does; its heirs go on in the same file."""
        return Path(self.folder, f"{self.name}.jsonl")

    @property
    def orders(self) -> Path:
        """Where a process looks, on SIGUSR1, for what is to befall it."""
        return Path(self.folder, f"{self.name}.orders")


def play(part: Part) -> None:
    """Run the part in this process, until SIGTERM."""
    random.seed(f"{part.seed}/{part.name}")
    born = {"pid": os.getpid(), "dsn": part.dsn, "die": part.die, "storm": part.storm, "options": part.options}
    History(part.history).write("info", "born", **born)
    asyncio.run(_PARTS[part.kind](part))


def _stopping() -> asyncio.Event:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    return stopping


def _probe(part: Part) -> FatalProbe:
    die, stop = (At(*one) if one is not None else None for one in (part.die, part.stop))
    probe = FatalProbe(History(part.history), die, stop)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, probe.arm, part.orders)
    return probe


def _points(part: Part, probe: FatalProbe) -> workload.Points:
    lines = History(part.history)

    def misused(act: str) -> None:
        lines.write("info", "misuse", act=act)

    return workload.Points(probe.reach, probe.pass_by, misused if part.options.get("hostile") else None)


async def _write(part: Part) -> None:
    stopping = _stopping()
    await Writer(part.name, part.dsn, History(part.history), part.seed, storm=part.storm).run(stopping)


async def _relay(part: Part) -> None:
    probe = _probe(part)
    outboxes = workload.declare(_points(part, probe))
    outbox = outboxes[part.outbox]
    name = f"{part.name}:{os.getpid()}"
    database = Database(part.dsn, listen_dsn=part.listen_dsn, application_name=name)

    def services() -> list[Service]:
        listener = Listener(database, probe) if part.listen else None
        settings = RelaySettings(
            batch_size=part.options.get("batch_size", 40),
            carriers=part.options.get("carriers", 1),
            lease_seconds=part.lease,
            gauge_seconds=2.0,
            drain_seconds=3.0,
        )
        transport = _transport(part, outbox, database)
        shared: dict[str, Any] = {
            "listener": listener,
            "connections": SharedConnections(database),
            "probe": probe,
        }
        workers = [_worker(part, outbox, database, **shared)] if part.consumers else []
        hand_over = workers[0].news if workers else None
        relay = Relay(outbox, database, transport, settings=settings, name=name, hand_over=hand_over, **shared)
        return [relay, *workers, *([listener] if listener else [])]

    await _serve(part, services)


async def _work(part: Part) -> None:
    probe = _probe(part)
    outbox = workload.declare(_points(part, probe))[workload.BOOK]
    database = Database(part.dsn, listen_dsn=part.listen_dsn, application_name=f"{part.name}:{os.getpid()}")

    def services() -> list[Service]:
        listener = Listener(database, probe) if part.listen else None
        worker = _worker(part, outbox, database, listener=listener, probe=probe)
        return [worker, *([listener] if listener else [])]

    await _serve(part, services)


def _worker(part: Part, outbox: Outbox, database: Database, **shared: Any) -> LogWorker:
    settings = WorkerSettings(
        lease_seconds=part.lease,
        page_size=part.options.get("page_size", 100),
        max_connections=part.options.get("max_connections"),
    )
    return LogWorker(outbox, [outbox.consumers[name] for name in part.consumers], database, settings=settings, **shared)


async def _serve(part: Part, services: Callable[[], list[Service]]) -> None:
    """Run services until SIGTERM; in a storm they are cancelled at random moments and made anew."""
    stopping = _stopping()
    while not stopping.is_set():
        running = services()
        for service in running:
            await service.start()
        patience = random.expovariate(2.0) if part.storm else None
        waits = [asyncio.ensure_future(stopping.wait()), *(asyncio.ensure_future(one.wait()) for one in running)]
        done, _ = await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        if done or not part.storm:
            await finish_all(service.stop() for service in running)
            # A service that ended by itself has failed for good: the process ends as `aftercommit relay` would.
            break
        await _cancel(running)
        History(part.history).write("info", "storm", services=len(running))


async def _cancel(services: list[Service]) -> None:
    tasks = [service._task for service in services if service._task is not None]
    for task in tasks:
        task.cancel()
    _, left = await asyncio.wait(tasks, timeout=CANCELLED_PATIENCE)
    if left:
        raise RuntimeError(
            f"cancelled {CANCELLED_PATIENCE:g} s ago and still at work: {[one.get_name() for one in left]}"
        )
    await asyncio.gather(*tasks, return_exceptions=True)


class UnsteadyBus(BusTransport):
    """The bus, in front of which the destination as a whole is away now and then."""

    def __init__(self, dispatcher: Dispatcher, away: float) -> None:
        super().__init__(dispatcher)
        self._away = away

    async def deliver(self, records: Any) -> Any:
        if random.random() < self._away:
            raise TransportUnavailable("away, as the harness asked for")
        return await super().deliver(records)


def _transport(part: Part, outbox: Outbox, database: Database) -> Transport:
    if part.outbox == workload.BOOK:
        return LogTransport()
    return UnsteadyBus(Dispatcher(outbox, database), away=part.options.get("away", 0.01))


async def _poll(part: Part) -> None:
    stopping = _stopping()
    lines = History(part.history)
    before = history.last(part.history, "poll")
    after = before["upto"] if before is not None else 0
    page = part.options.get("page", 50)
    while not stopping.is_set():
        try:
            async with await psycopg.AsyncConnection.connect(part.dsn, autocommit=True, prepare_threshold=None) as one:
                while not stopping.is_set():
                    async with asyncio.timeout(10):
                        rows = await (await one.execute(_PAGE[part.outbox], (after, page))).fetchall()
                    if rows:
                        seen = [[row[0], digest(row[1:])] for row in rows]
                        lines.write("ok", "poll", outbox=part.outbox, after=after, upto=rows[-1][0], rows=seen)
                        after = rows[-1][0]
                    else:
                        await asyncio.wait([asyncio.ensure_future(stopping.wait())], timeout=0.03)
        except (psycopg.Error, OSError, TimeoutError) as problem:
            lines.write("info", "lost", error=str(problem)[:100])
            await asyncio.sleep(0.1)


# As anybody's poller would: by position, from the last one it has seen.
_PAGE = {
    schema: f"select position, id::text, seq, aggregate_id, tenant_id, region, payload::text from {schema}.log"
    " where position > %s order by position limit %s"
    for schema in workload.CONSUMERS
}


def digest(row: Any) -> str:
    """A short name for what stands at a position."""
    return hashlib.blake2b(repr(tuple(row)).encode(), digest_size=6).hexdigest()


_PARTS: dict[str, Callable[[Part], Coroutine[Any, Any, None]]] = {
    "writer": _write,
    "relay": _relay,
    "worker": _work,
    "poller": _poll,
}
