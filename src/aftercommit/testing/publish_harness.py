"""What the publish suite must know about a kind of connection (`PublishHarness`), and how it drives one (`Caller`)."""

import asyncio
import contextvars
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aftercommit.outbox import Outbox, Receipt

Step = Awaitable[None] | None


class PublishHarness(ABC):
    """One connection of the kind under test. For an async connection, write all methods as `async def`.

    The suite calls the methods of a blocking connection on one thread.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    @property
    @abstractmethod
    def target(self) -> Any:
        """The object that users of this kind of connection pass to publish."""

    @abstractmethod
    def open(self) -> Step:
        """Connect, in the mode for work in transactions."""

    @abstractmethod
    def open_outside_transaction(self) -> Step:
        """Connect in the mode in which every statement commits by itself, and begin nothing."""

    @abstractmethod
    def begin(self) -> Step:
        """Begin a transaction."""

    @abstractmethod
    def commit(self) -> Step:
        """Commit the transaction."""

    @abstractmethod
    def rollback(self) -> Step:
        """Roll the transaction back."""

    @abstractmethod
    def savepoint(self) -> Step:
        """Set a savepoint."""

    @abstractmethod
    def release_savepoint(self) -> Step:
        """Keep what was done since the savepoint."""

    @abstractmethod
    def rollback_to_savepoint(self) -> Step:
        """Undo what was done since the savepoint."""

    @abstractmethod
    def execute(self, statement: str) -> Step:
        """Run a statement of the application in the transaction."""

    @abstractmethod
    def close(self) -> Step:
        """Roll back what is open and disconnect."""


class Caller:
    """Drives a harness: `await caller.begin()`. A blocking connection has its own thread, so two callers can block
    each other."""

    def __init__(self, harness: PublishHarness) -> None:
        self._harness = harness
        self._thread = None if inspect.iscoroutinefunction(harness.open) else ThreadPoolExecutor(max_workers=1)

    def __getattr__(self, step: str) -> Callable[..., Awaitable[Any]]:
        return functools.partial(self._do, getattr(self._harness, step))

    async def publish(self, outbox: Outbox, events: Any, **options: Any) -> Receipt:
        """Publish on this connection."""
        # `target` is read on the thread, too: Django has one connection per thread.
        receipt: Receipt = await self._do(lambda: outbox.publish(self._harness.target, events, **options))
        return receipt

    async def close(self) -> None:
        """Disconnect, and end the thread."""
        try:
            await self._do(self._harness.close)
        finally:
            if self._thread is not None:
                self._thread.shutdown()

    async def _do(self, action: Callable[..., Any], *arguments: Any) -> Any:
        if self._thread is None:
            return await action(*arguments)
        # With the context, as asyncio.to_thread does it: the correlation id is there.
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._thread, context.run, action, *arguments)
