"""Ways to hold a transaction: each stack runs the same transactions on its own kind of connection.

A transaction is a business row and then nothing, the event as our library publishes it, or the event by a raw INSERT.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Literal

from aftercommit import Outbox
from bench import loops, shop

Kind = Literal["no event", "aftercommit", "raw INSERT", "raw INSERT, ready text"]
KINDS: tuple[Kind, ...] = ("no event", "raw INSERT", "raw INSERT, ready text", "aftercommit")
Given = shop.OrderPlaced | None
Row = tuple[Any, ...] | None
ROWS: dict[Kind, Callable[[shop.OrderPlaced], tuple[Any, ...]]] = {
    "raw INSERT": shop.by_hand,
    "raw INSERT, ready text": shop.with_ready_payload,
}
CUSTOMER, TOTAL = "customer-17", 12500


class Stack(ABC):
    """Connections of one kind, open for the whole case."""

    name: str
    marks = "%s"

    def __init__(self, dsn: str, connections: int, outbox: Outbox) -> None:
        """Nothing is opened yet."""
        self.dsn = dsn
        self.connections = connections
        self.outbox = outbox
        self.order = shop.order_statement(self.marks)
        self.insert = shop.insert_statement(self.marks)

    @abstractmethod
    def open(self) -> None:
        """Connect."""

    @abstractmethod
    def run(self, kind: Kind, seconds: float) -> int:
        """Transactions on all connections at once for so long; how many were committed."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""


class BlockingStack(Stack):
    """One thread per connection, which is made, used and closed in it."""

    def open(self) -> None:
        """Start the threads; each connects."""
        self._threads = [ThreadPoolExecutor(1) for _ in range(self.connections)]
        self._opened = [thread.submit(self.connect).result() for thread in self._threads]

    def run(self, kind: Kind, seconds: float) -> int:
        """All threads until the same moment."""
        until = time.perf_counter() + seconds
        running = [
            thread.submit(self._repeat, connection, kind, number, until)
            for number, (thread, connection) in enumerate(zip(self._threads, self._opened, strict=True))
        ]
        return sum(each.result() for each in running)

    def _repeat(self, connection: Any, kind: Kind, number: int, until: float) -> int:
        transact, row = self.transact, ROWS.get(kind)
        done = 0
        while time.perf_counter() < until:
            event = shop.EVENTS[(number * 1000 + done) % len(shop.EVENTS)]
            transact(connection, event if kind == "aftercommit" else None, row(event) if row else None)
            done += 1
        return done

    def close(self) -> None:
        """Every thread closes what it opened."""
        for thread, connection in zip(self._threads, self._opened, strict=True):
            thread.submit(self.disconnect, connection).result()
            thread.shutdown()

    @abstractmethod
    def connect(self) -> Any:
        """What a thread works with."""

    @abstractmethod
    def transact(self, connection: Any, event: Given, row: Row) -> None:
        """One transaction: the business row, then the event or the row if there is one."""

    def disconnect(self, connection: Any) -> None:
        """Close what `connect` made."""
        connection.close()


class AsyncStack(Stack):
    """One task per connection on one event loop."""

    def open(self) -> None:
        """Start the loop and connect."""
        self._runner = loops.runner()
        self._opened = [self._runner.run(self.connect()) for _ in range(self.connections)]

    def run(self, kind: Kind, seconds: float) -> int:
        """All tasks until the same moment."""
        return self._runner.run(self._run(kind, seconds))

    async def _run(self, kind: Kind, seconds: float) -> int:
        until = time.perf_counter() + seconds
        tasks = [self._repeat(each, kind, number, until) for number, each in enumerate(self._opened)]
        return sum(await asyncio.gather(*tasks))

    async def _repeat(self, connection: Any, kind: Kind, number: int, until: float) -> int:
        transact, row = self.transact, ROWS.get(kind)
        for done in count():
            if time.perf_counter() >= until:
                return done
            event = shop.EVENTS[(number * 1000 + done) % len(shop.EVENTS)]
            await transact(connection, event if kind == "aftercommit" else None, row(event) if row else None)
        raise AssertionError("count() never ends")

    def close(self) -> None:
        """Disconnect and end the loop."""
        for connection in self._opened:
            self._runner.run(self.disconnect(connection))
        self._runner.close()

    @abstractmethod
    def connect(self) -> Any:
        """What a task works with; awaited."""

    @abstractmethod
    def transact(self, connection: Any, event: Given, row: Row) -> Awaitable[None]:
        """One transaction: the business row, then the event or the row if there is one."""

    async def disconnect(self, connection: Any) -> None:
        """Close what `connect` made."""
        await connection.close()
