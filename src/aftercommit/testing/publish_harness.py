"""What the publish suite has to know of a kind of connection, and how it drives one. Holds no assertion."""

import asyncio
import contextvars
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aftercommit.outbox import Outbox, Receipt


class PublishHarness(ABC):
    """One blocking connection of the kind under test. All its methods are called on one thread."""

    def __init__(self, dsn: str) -> None:
        """Remember where to connect; nothing is opened yet."""
        self.dsn = dsn

    @property
    @abstractmethod
    def target(self) -> Any:
        """What a user of this kind of connection gives to publish."""

    @abstractmethod
    def open(self) -> None:
        """Connect, in the mode in which its users work in transactions."""

    @abstractmethod
    def open_outside_transaction(self) -> None:
        """Connect in the mode in which every statement commits by itself, and begin nothing."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    def rollback(self) -> None:
        """Roll the transaction back."""

    @abstractmethod
    def savepoint(self) -> None:
        """Set a savepoint."""

    @abstractmethod
    def release_savepoint(self) -> None:
        """Keep what was done since the savepoint."""

    @abstractmethod
    def rollback_to_savepoint(self) -> None:
        """Undo what was done since the savepoint."""

    @abstractmethod
    def execute(self, statement: str) -> None:
        """Run a statement of the application's own in the transaction."""

    @abstractmethod
    def close(self) -> None:
        """Roll back what is open and disconnect."""


class AsyncPublishHarness(ABC):
    """One asyncio connection of the kind under test."""

    def __init__(self, dsn: str) -> None:
        """Remember where to connect; nothing is opened yet."""
        self.dsn = dsn

    @property
    @abstractmethod
    def target(self) -> Any:
        """What a user of this kind of connection gives to publish."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, in the mode in which its users work in transactions."""

    @abstractmethod
    async def open_outside_transaction(self) -> None:
        """Connect in the mode in which every statement commits by itself, and begin nothing."""

    @abstractmethod
    async def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    async def commit(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    async def rollback(self) -> None:
        """Roll the transaction back."""

    @abstractmethod
    async def savepoint(self) -> None:
        """Set a savepoint."""

    @abstractmethod
    async def release_savepoint(self) -> None:
        """Keep what was done since the savepoint."""

    @abstractmethod
    async def rollback_to_savepoint(self) -> None:
        """Undo what was done since the savepoint."""

    @abstractmethod
    async def execute(self, statement: str) -> None:
        """Run a statement of the application's own in the transaction."""

    @abstractmethod
    async def close(self) -> None:
        """Roll back what is open and disconnect."""


class Caller:
    """Somebody with a connection. A blocking one has a thread of its own, so that two callers can meet."""

    def __init__(self, harness: PublishHarness | AsyncPublishHarness) -> None:
        """Take over a harness that is not open yet."""
        self._harness = harness
        self._thread = ThreadPoolExecutor(max_workers=1) if isinstance(harness, PublishHarness) else None

    async def open(self) -> None:
        """Connect for work in transactions."""
        await self._do(self._harness.open)

    async def open_outside_transaction(self) -> None:
        """Connect with no transaction around statements."""
        await self._do(self._harness.open_outside_transaction)

    async def begin(self) -> None:
        """Begin a transaction."""
        await self._do(self._harness.begin)

    async def commit(self) -> None:
        """Commit it."""
        await self._do(self._harness.commit)

    async def rollback(self) -> None:
        """Roll it back."""
        await self._do(self._harness.rollback)

    async def savepoint(self) -> None:
        """Set a savepoint."""
        await self._do(self._harness.savepoint)

    async def release_savepoint(self) -> None:
        """Keep what was done since."""
        await self._do(self._harness.release_savepoint)

    async def rollback_to_savepoint(self) -> None:
        """Undo what was done since."""
        await self._do(self._harness.rollback_to_savepoint)

    async def execute(self, statement: str) -> None:
        """Run a statement of the application's own."""
        await self._do(lambda: self._harness.execute(statement))

    async def publish(self, outbox: Outbox, events: Any, **options: Any) -> Receipt:
        """Publish on this connection, as its user would."""
        receipt: Receipt = await self._do(lambda: outbox.publish(self._harness.target, events, **options))
        return receipt

    async def close(self) -> None:
        """Disconnect, and end the thread."""
        try:
            await self._do(self._harness.close)
        finally:
            if self._thread is not None:
                self._thread.shutdown()

    async def _do(self, action: Callable[[], Any]) -> Any:
        if self._thread is None:
            return await action()
        # The context goes along, as it does with asyncio.to_thread: the correlation id lives there.
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._thread, context.run, action)
