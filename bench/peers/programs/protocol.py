"""Both ends of a conversation in lines of JSON are simple; this is the end inside a peer's process.

A program is told where its database is and then does what it is asked, one thing at a time: publish for a while, write
a thousand events per call, drain a backlog with a handler that does nothing, or time single events from commit to
handler. It answers with how many events that were, how long it took, and the processor time that it used itself.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

ORDERS = """
    create table if not exists orders (
        id bigint generated always as identity primary key, customer text not null, total integer not null,
        placed_at timestamptz not null default now()
    )
"""
WARM_UP = 5
PATIENCE = 300.0
LOOK = 0.002
FALL_ASLEEP = 0.5


class Tally:
    """Counts what a handler was called for."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._done = 0
        self._loop = asyncio.get_running_loop()
        self._finished = asyncio.Event()

    def one(self) -> None:
        """The handler was called; on any thread."""
        self._done += 1
        if self._done == self._expected:
            self._loop.call_soon_threadsafe(self._finished.set)

    async def wait(self) -> None:
        """Until the handler was called for all."""
        await asyncio.wait_for(self._finished.wait(), PATIENCE)


class Arrivals:
    """The moments at which a handler was called, in the order of the calls; on any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[float] = asyncio.Queue()

    def one(self) -> None:
        """The handler was called."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, time.perf_counter())

    async def next(self) -> float:
        """When the next call came."""
        return await asyncio.wait_for(self._queue.get(), PATIENCE)


class Program(ABC):
    """One peer. `tables` are emptied between rounds by whoever asks; `undone` is a query for whether work is left."""

    # What was chosen for this peer, and mattered.
    settings = ""
    tables: tuple[str, ...] = ()
    undone = ""

    def __init__(self, dsn: str, payload: dict[str, Any]) -> None:
        self.dsn = dsn
        self.payload = payload

    @abstractmethod
    async def open(self) -> None:
        """Install the peer's tables, and the table of the business rows."""

    @abstractmethod
    async def publish(self, seconds: float, connections: int, event: bool) -> int:
        """Transactions of one business row, with or without an event, on so many connections; how many there were."""

    @abstractmethod
    async def bulk(self, events: int) -> None:
        """So many events in one call and one transaction."""

    @abstractmethod
    def working(self, told: "Tally | Arrivals") -> AbstractAsyncContextManager[None]:
        """A worker whose handler tells that it was called, and does nothing else."""

    @abstractmethod
    async def singles(self, arrivals: "Arrivals", singles: int, rest: float) -> list[float]:
        """Milliseconds from just before COMMIT to the handler, one event after the other."""

    @abstractmethod
    async def is_true(self, query: str) -> bool:
        """The value of a query."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    async def drain(self, events: int) -> dict[str, Any]:
        """Handle a backlog: from the start of the worker until the database has nothing undone."""
        tally = Tally(events)
        cpu, started = time.process_time(), time.perf_counter()
        async with self.working(tally):
            await tally.wait()
            while await self.is_true(self.undone):  # noqa: ASYNC110 - a server does not call back
                await asyncio.sleep(LOOK)
            return _since(events, started, cpu)

    async def latency(self, singles: int, rest: float) -> list[float]:
        """Single events while the worker is asleep."""
        arrivals = Arrivals()
        async with self.working(arrivals):
            await asyncio.sleep(FALL_ASLEEP)
            return await self.singles(arrivals, singles, rest)

    async def answer(self, ask: dict[str, Any]) -> dict[str, Any]:
        """One request."""
        match ask:
            case {"do": "publish", "seconds": seconds, "connections": connections, "event": event}:
                cpu, started = time.process_time(), time.perf_counter()
                done = await self.publish(seconds, connections, event)
                return _since(done, started, cpu)
            case {"do": "bulk", "calls": calls, "events": events}:
                cpu, started = time.process_time(), time.perf_counter()
                for _ in range(calls):
                    await self.bulk(events)
                return _since(calls * events, started, cpu)
            case {"do": "drain", "events": events}:
                return await self.drain(events)
            case {"do": "latency", "singles": singles, "rest": rest}:
                found = await self.latency(WARM_UP + singles, rest)
                return {"milliseconds": found[WARM_UP:]}
        raise ValueError(f"{ask!r} is not a request that this program knows")


def _since(events: int, started: float, cpu: float) -> dict[str, Any]:
    return {"events": events, "seconds": time.perf_counter() - started, "client_cpu": time.process_time() - cpu}


class AsyncProgram(Program):
    """A peer with asyncio connections of some kind: the loops around them are the same for all."""

    def __init__(self, dsn: str, payload: dict[str, Any]) -> None:
        super().__init__(dsn, payload)
        self._connections: list[Any] = []

    @abstractmethod
    async def connect(self) -> Any:
        """A connection to publish on."""

    @abstractmethod
    async def transact(self, connection: Any, event: bool) -> float:
        """One transaction; returns the moment just before its COMMIT was sent."""

    async def publish(self, seconds: float, connections: int, event: bool) -> int:
        chosen = await self.connected(connections)
        until = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(self._repeat(each, event, until) for each in chosen)))

    async def connected(self, count: int) -> list[Any]:
        """So many connections, opened when they are first needed."""
        while len(self._connections) < count:
            self._connections.append(await self.connect())
        return self._connections[:count]

    async def _repeat(self, connection: Any, event: bool, until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            await self.transact(connection, event)
            done += 1
        return done

    async def singles(self, arrivals: Arrivals, singles: int, rest: float) -> list[float]:
        await self.connected(1)
        found = []
        for _ in range(singles):
            await asyncio.sleep(rest)
            committed = await self.transact(self._connections[0], True)
            found.append(1000 * (await arrivals.next() - committed))
        return found


def parts(dsn: str) -> dict[str, str]:
    """User, database, host and port of a connection URI, for those who do not take one."""
    url = urlsplit(dsn)
    options = {name: values[0] for name, values in parse_qs(url.query).items()}
    return {
        "user": unquote(url.username or ""),
        "database": unquote(url.path.lstrip("/")),
        "host": options.get("host", url.hostname or ""),
        "port": options.get("port", str(url.port or 5432)),
    }


def serve(program: type[Program]) -> None:
    """Answer on standard output, which nobody else may write to, until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(_serve(program, answers))


async def _serve(program: type[Program], answers: Any) -> None:
    opening = json.loads(await asyncio.to_thread(sys.stdin.readline))
    running = program(opening["dsn"], opening["payload"])
    await running.open()
    answers.write(json.dumps({"settings": running.settings, "tables": running.tables}) + "\n")
    while line := await asyncio.to_thread(sys.stdin.readline):
        answers.write(json.dumps(await running.answer(json.loads(line))) + "\n")
    await running.close()
