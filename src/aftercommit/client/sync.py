"""Following without asyncio: the same follower, on a loop of its own that runs while the next event is awaited."""

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
    """Follow the feed at `url`: `for event in follow_sync(url, …)`. Takes what `follow` takes."""
    return SyncFollower(url, **options)


class SyncFollower:
    """A reader of one feed for blocking code. It is used from one thread; `stop` alone may come from any other."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        """Nothing is asked before the first event is."""
        self._follower = Follower(url, **options)
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._stopped = False

    @property
    def state(self) -> State:
        """What it is doing: connecting, streaming, polling, waiting (to connect again) or stopped."""
        return self._follower.state

    @property
    def cursor(self) -> str | None:
        """The place after the last event that was handed over."""
        return self._follower.cursor

    def listen(self, listener: Callable[[State], None]) -> None:
        """Call this with every new state."""
        self._follower.listen(listener)

    def __iter__(self) -> Iterator[FeedEvent]:
        """The events; gaps go to `on_gap`, or into the log. Leaving the loop lets go of everything."""
        return self._run(aiter(self._follower))

    def with_gaps(self) -> Iterator[FeedEvent | Gap]:
        """The events, and the gaps among them where they are."""
        return self._run(self._follower.with_gaps())

    def stop(self) -> None:
        """End the iteration, also while it waits for an event. May be called from any thread, and from handlers."""
        self._stopped = True
        waiting = self._waiting
        if waiting is not None:
            loop, ended = waiting
            # The loop may be closed by now: then the iteration has ended by itself.
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
        """The next item; None when it was told to stop."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._waiting = (loop, ended)
        if self._stopped:
            return None
        item = asyncio.ensure_future(_anext(items))
        try:
            await asyncio.wait((item, ended), return_when=asyncio.FIRST_COMPLETED)
            return await item if item.done() else None
        finally:
            item.cancel()
            await asyncio.gather(item, return_exceptions=True)


async def _anext(items: AsyncGenerator[Item]) -> Item:
    return await anext(items)


def _finish(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)


def _refuse_inside_a_loop(url: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise FollowError(f"follow_sync({url!r}) would block the event loop that runs here: use follow()")
