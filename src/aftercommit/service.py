"""One start/stop protocol for everything that runs in the background, and a probe for tests."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

Result = TypeVar("Result")
Probe = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Called by a service at named points of its work, with the point and its details. For tests."""
LONG: Final = 3600.0
"""Seconds of a wait for nothing in particular: wakers end it."""


class Waker(asyncio.Event):
    """An asyncio event that a task can wait for together with others.

    One task per event would also work, but it costs as much as a query: too much between a commit and its handler.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sleepers: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Wake all waiting tasks."""
        super().set()
        for sleeper in self.sleepers:
            _wake(sleeper)


class Service(ABC):
    """A background task that runs until it is stopped.

    Tests can give it a probe, which it awaits at named points ("relay.delivered"); the probe may wait there, or raise.
    """

    name: str = "service"

    def __init__(self, probe: Probe | None = None) -> None:
        self._probe = probe
        self._task: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[Any] | None = None
        self.stopping = Waker()

    @abstractmethod
    async def run(self) -> None:
        """Work until `stopping` is set, then finish cleanly."""

    async def start(self) -> Self:
        """Run in the background."""
        self.stopping.clear()
        self._task = asyncio.create_task(self.run(), name=self.name)
        return self

    async def stop(self) -> None:
        """Finish the work in progress and end. An error of `run` is raised here."""
        self.stopping.set()
        if self._task is not None:
            await self._task

    async def wait(self) -> None:
        """Wait until the service ends by itself or by `stop`."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def reach(self, point: str, **detail: Any) -> None:
        """Tell the probe that the work has reached a named point."""
        if self._probe is not None:
            await self._probe(point, detail)

    async def pause(self, seconds: float, *wakers: Waker) -> None:
        """Wait until the time is up, the service is stopping, or one of the wakers is set; clears the wakers."""
        await wait_for_any(seconds, self.stopping, *wakers)
        for waker in wakers:
            waker.clear()

    async def __aenter__(self) -> Self:
        """Start. If the service fails while the block runs, the block is cancelled and the error raised."""
        await self.start()
        self._owner = asyncio.current_task()
        if self._task is not None:
            self._task.add_done_callback(self._cancel_owner)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. If the service has failed, its error replaces the cancellation that it caused."""
        owner, self._owner = self._owner, None
        if self._failed() and owner is not None and isinstance(error, asyncio.CancelledError):
            owner.uncancel()
        await self.stop()

    def _failed(self) -> bool:
        task = self._task
        return task is not None and task.done() and not task.cancelled() and task.exception() is not None

    def _cancel_owner(self, task: "asyncio.Task[None]") -> None:
        if self._owner is not None and self._failed() and not self.stopping.is_set():
            self._owner.cancel()


async def wait_for_any(seconds: float, *wakers: Waker) -> None:
    """Wait until one of the wakers is set or the time is up."""
    if seconds <= 0 or any(waker.is_set() for waker in wakers):
        await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    alarm = loop.call_later(seconds, _wake, woken)
    for waker in wakers:
        waker.sleepers.add(woken)
    try:
        await woken
    finally:
        alarm.cancel()
        for waker in wakers:
            waker.sleepers.discard(woken)


def _wake(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)


async def finish_all(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """All results. An error is raised only after everything has finished, so that nothing keeps running unseen."""
    listed = list(work)
    if len(listed) == 1:
        # Without a task of its own, which would take two turns of the event loop.
        return [await listed[0]]
    results = await asyncio.gather(*listed, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def until_one_ends(*work: Awaitable[Any]) -> None:
    """Wait until the first one ends, with a result or an error, and cancel the others. Returns and raises neither."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        # asyncio complains about errors that nothing has retrieved.
        await asyncio.gather(*tasks, return_exceptions=True)
