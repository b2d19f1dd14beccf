"""Following without asyncio, against the same scripted feed, which runs in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from aftercommit.client import Gap, MemoryBookmark, State, follow_sync
from aftercommit.errors import FeedRefused, FollowError
from tests.clients.scripted_feed import ScriptedFeed, cursor_of, drop, fall_silent, refuse, scripted_feed
from tests.clients.test_follow import QUICK


class Elsewhere:
    """A loop in another thread, on which feeds are served."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._open: list[AbstractAsyncContextManager[ScriptedFeed]] = []
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(90)

    def feed(self, **script: Any) -> ScriptedFeed:
        async def made() -> tuple[AbstractAsyncContextManager[ScriptedFeed], ScriptedFeed]:
            manager = scripted_feed(**script)
            return manager, await manager.__aenter__()

        manager, feed = self.run(made())
        self._open.append(manager)
        assert isinstance(feed, ScriptedFeed)
        return feed

    def close(self) -> None:
        for manager in self._open:
            self.run(manager.__aexit__(None, None, None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedFeed]]:
    elsewhere = Elsewhere()
    yield elsewhere.feed
    elsewhere.close()


def test_events_come_in_an_ordinary_loop_and_leaving_it_closes_everything(serve: Callable[..., ScriptedFeed]):
    bookmark = MemoryBookmark()
    feed = serve(events=3)
    follower = follow_sync(feed.url, pace=QUICK, bookmark=bookmark)
    seen = []
    for event in follower:
        seen.append(event.number)
        assert follower.state is State.STREAMING
        if len(seen) == 3:
            break
    assert seen == [1, 2, 3]
    assert follower.state is State.STOPPED
    assert bookmark.cursor == cursor_of(feed.events[1])
    assert follower.cursor == cursor_of(feed.events[2])


def test_the_same_machine_falls_back_to_polling(serve: Callable[..., ScriptedFeed]):
    feed = serve(events=2, streams=[drop, drop, drop])
    states: list[State] = []
    follower = follow_sync(feed.url, pace=QUICK)
    follower.listen(states.append)
    events = iter(follower)
    assert [next(events).number, next(events).number] == [1, 2]
    del events
    assert State.POLLING in states


def test_gaps_may_be_had_in_their_place(serve: Callable[..., ScriptedFeed]):
    feed = serve(events=2, streams=[refuse(410, reason="retention", restart="2025-11-12T10:30:00.000Z#001")])
    items = follow_sync(feed.url, pace=QUICK).with_gaps()
    gap, event = next(items), next(items)
    del items
    assert isinstance(gap, Gap)
    assert not isinstance(event, Gap)
    assert (gap.reason, event.number) == ("retention", 2)


def test_another_thread_stops_it_while_it_waits(serve: Callable[..., ScriptedFeed]):
    feed = serve(streams=[fall_silent])
    follower = follow_sync(feed.url)
    streaming = threading.Event()
    follower.listen(lambda state: streaming.set() if state is State.STREAMING else None)

    def stop() -> None:
        assert streaming.wait(60)
        follower.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert list(follower) == []
    stopper.join()
    assert follower.state is State.STOPPED


def test_a_handler_may_stop_it_too(serve: Callable[..., ScriptedFeed]):
    feed = serve(events=3)
    follower = follow_sync(feed.url, pace=QUICK)
    seen = []
    for event in follower:
        seen.append(event.number)
        if event.number == 2:
            follower.stop()
    assert seen == [1, 2]


def test_a_refusal_is_raised_in_the_loop(serve: Callable[..., ScriptedFeed]):
    feed = serve(streams=[refuse(403)])
    with pytest.raises(FeedRefused, match="403"):
        next(iter(follow_sync(feed.url, pace=QUICK)))


async def test_inside_a_running_loop_it_points_to_follow():
    with pytest.raises(FollowError, match=r"use follow\(\)"):
        next(iter(follow_sync("http://127.0.0.1:9/logs")))
