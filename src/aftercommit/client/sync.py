"""Following without asyncio: the same follower, on an event loop of its own that runs while you wait for an event."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TypeVar, Unpack

from aftercommit.client.follow import Follower
from aftercommit.client.machine import State
from aftercommit.client.options import Gap, Options
from aftercommit.client.wire import FeedEvent
from aftercommit.errors import FollowError

Item = TypeVar("Item")


def follow_sync(url: str, **options: Unpack[Options]) -> "SyncFollower":
    """Follow the feed at `url` in blocking code: `for event in follow_sync(url, …)`. Takes the options of `follow`."""
    return SyncFollower(url, **options)


class SyncFollower:
    """A reader of one feed for blocking code. Use it from one thread; only `stop` may be called from any other."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        self._follower = Follower(url, **options)
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._stopped = False

    @property
    def state(self) -> State:
        """Whether it is connecting, streaming, polling, waiting (to connect again) or stopped."""
        return self._follower.state

    @property
    def cursor(self) -> str | None:
        """The cursor of the last event that was handed over."""
        return self._follower.cursor

    def listen(self, listener: Callable[[State], None]) -> None:
        """Call this with every new state."""
        self._follower.listen(listener)

    def __iter__(self) -> Iterator[FeedEvent]:
        """The events; gaps are passed to `on_gap`, or logged. Leaving the loop closes everything."""
        return self._run(aiter(self._follower))

    def with_gaps(self) -> Iterator[FeedEvent | Gap]:
        """The events, with each gap in its place."""
        return self._run(self._follower.with_gaps())

    def stop(self) -> None:
        """End the iteration, even while it waits for an event. Safe in any thread and in signal handlers."""
        self._stopped = True
        waiting = self._waiting
        if waiting is not None:
            loop, ended = waiting
            # A closed loop means that the iteration has ended by itself.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_finish, ended)

    def _run(self, items: AsyncGenerator[Item]) -> Iterator[Item]:
        _refuse_inside_a_loop(self._follower.url)
        self._stopped = False
        with asyncio.Runner() as runner:
            try:
                while (found := runner.run(self._next(items))) is not None:
                    yield found
            finally:
                runner.run(items.aclose())

    async def _next(self, items: AsyncGenerator[Item]) -> Item | None:
        """The next item; None after `stop`."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._waiting = (loop, ended)
        if self._stopped:
            return None
        item = asyncio.ensure_future(anext(items))
        try:
            await asyncio.wait((item, ended), return_when=asyncio.FIRST_COMPLETED)
            return await item if item.done() else None
        finally:
            item.cancel()
            await asyncio.gather(item, return_exceptions=True)


def _finish(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)


def _refuse_inside_a_loop(url: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise FollowError(f"follow_sync({url!r}) would block the running event loop: use follow()")
