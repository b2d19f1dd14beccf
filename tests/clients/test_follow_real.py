"""The Python client against the real server: nothing lost, nothing twice, on whichever server and by whichever way."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Unpack

import httpx
import pytest

from aftercommit.client import FeedEvent, FileBookmark, Gap, MemoryBookmark, Options, State, follow
from aftercommit.client.follow import Follower
from aftercommit.errors import FeedRefused
from aftercommit.feed import LogEvent
from tests.clients.front import front
from tests.clients.test_follow import POLLING, QUICK, numbers, take
from tests.feed.journal import Journal, LineWritten, journal_feed, numbered, to_item

PATIENCE = 60.0


def following(journal: Journal, url: str, **options: Unpack[Options]) -> Follower:
    options.setdefault("token", journal.token())
    options.setdefault("pace", QUICK)
    return follow(f"{url}/books/b-1/lines", **options)


def texts(events: list[FeedEvent]) -> list[str]:
    return [event.data["text"] for event in events]


@pytest.mark.contract("L11", "L13")
async def test_history_and_news_come_through_one_stream(journal: Journal):
    await journal.write(*numbered(5))
    async with journal.served() as reading:
        follower = following(journal, reading.server.url, gapless=True, start="1970-01-01T00:00:00.000Z#000")
        async with asyncio.timeout(PATIENCE), aclosing(follower.with_gaps()) as items:
            seen = [await anext(items) for _ in range(5)]
            await journal.write(*numbered(5, 6))
            seen += [await anext(items) for _ in range(5)]
            assert follower.state is State.STREAMING
        assert texts([item for item in seen if isinstance(item, FeedEvent)]) == list(numbered(10))


@pytest.mark.contract("L13")
async def test_without_a_cursor_the_newest_page_comes_first(journal: Journal):
    await journal.write(*numbered(30))
    async with journal.served() as reading:
        streamed = await take(following(journal, reading.server.url, limit=10), 10)
        polled = await take(following(journal, reading.server.url, limit=10, stream=False), 10)
    assert texts(streamed) == texts(polled) == list(numbered(10, 21))


@pytest.mark.thorough
@pytest.mark.contract("L11", "L13")
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "polls"])
async def test_two_servers_cut_again_and_again_lose_and_repeat_nothing(journal: Journal, stream: bool):
    total = 300
    async with journal.served() as one, journal.served() as other, front(one.server.url, other.server.url) as gate:
        # Cut in the middle of events, wherever that is.
        gate.cut_after = 3001
        gaps: list[Gap] = []
        follower = following(
            journal,
            gate.url,
            start="1970-01-01T00:00:00.000Z#000",
            stream=stream,
            limit=7,
            gapless=True,
            on_gap=gaps.append,
        )

        async def write() -> None:
            for begin in range(1, total, 10):
                await journal.write(*numbered(10, begin))

        writing = asyncio.ensure_future(write())
        async with asyncio.timeout(PATIENCE):
            events = await take(follower, total)
        await writing
        assert numbers(events) == list(range(1, total + 1))
        assert gaps == []
        assert gate.connections > 3


@pytest.mark.contract("L13")
async def test_a_restarted_reader_goes_on_behind_its_bookmark(journal: Journal):
    bookmark = MemoryBookmark("1970-01-01T00:00:00.000Z#000")
    seen: list[int | None] = []
    await journal.write(*numbered(20))
    async with journal.served() as reading:
        for stream in (True, False, True, False):
            events = await take(following(journal, reading.server.url, bookmark=bookmark, stream=stream), 5)
            seen += numbers(events)
    # The last one of each life was handed over but not asked beyond, and comes again.
    assert seen == [*range(1, 6), *range(5, 10), *range(9, 14), *range(13, 18)]


@pytest.mark.contract("L13")
async def test_a_filtered_reader_moves_on_although_nothing_matches(journal: Journal):
    await journal.write("loud", level="ERROR")
    async with journal.served() as reading:
        bookmark = Announcing()
        follower = following(
            journal, reading.server.url, filters={"minLevel": "ERROR"}, bookmark=bookmark, save_every_seconds=0
        )
        async with asyncio.timeout(PATIENCE), aclosing(aiter(follower)) as events:
            assert (await anext(events)).number == 1
            following_on = asyncio.ensure_future(anext(events))
            await journal.write(*numbered(8))
            await asyncio.to_thread(bookmark.wait_for, 9)
            await journal.write("louder", level="ERROR")
            assert (await following_on).number == 10


class Announcing(MemoryBookmark):
    """Tells whoever waits which places were kept."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: SimpleQueue[str] = SimpleQueue()

    def save(self, cursor: str) -> None:
        super().save(cursor)
        self.kept.put(cursor)

    def wait_for(self, number: int) -> None:
        while not self.kept.get(timeout=PATIENCE).endswith(f"#{number:03d}"):
            pass


@pytest.mark.thorough
@pytest.mark.contract("L13")
async def test_a_server_that_drains_sends_its_readers_elsewhere(journal: Journal):
    await journal.write("first")
    async with journal.served() as other:
        async with journal.served() as one, front(one.server.url, other.server.url) as gate:
            follower = following(journal, gate.url)
            states: list[State] = []
            follower.listen(states.append)
            events = aiter(follower)
            async with asyncio.timeout(PATIENCE):
                assert (await anext(events)).number == 1
                waiting = asyncio.ensure_future(anext(events))
                await one.server.stop()
                await journal.write("second")
                assert (await waiting).number == 2
                await events.aclose()
        # Announced, so it is no failure, and nothing was polled.
        assert State.POLLING not in states


@pytest.mark.contract("L13")
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "polls"])
async def test_a_cursor_of_another_life_is_reported_and_replaced(journal: Journal, stream: bool):
    await journal.write(*numbered(3))
    async with journal.served() as reading:
        follower = following(journal, reading.server.url, start="2001-01-01T00:00:00.000Z#002", stream=stream)
        async with asyncio.timeout(PATIENCE), aclosing(follower.with_gaps()) as items:
            gap = await anext(items)
            events = [await anext(items) for _ in range(3)]
    assert isinstance(gap, Gap)
    assert (gap.reason, gap.after) == ("epoch", "2001-01-01T00:00:00.000Z#002")
    assert texts([item for item in events if isinstance(item, FeedEvent)]) == list(numbered(3))


@pytest.mark.contract("L8", "L13")
async def test_a_token_that_the_server_refuses_is_renewed_and_one_without_rights_is_raised(journal: Journal):
    await journal.write("first")
    async with journal.served() as reading:
        tokens = iter(["not.a.token", journal.token()])
        assert len(await take(following(journal, reading.server.url, token=lambda: next(tokens)), 1)) == 1
        stranger = following(journal, reading.server.url, token=journal.token("eve", ("book:b-2:read",)))
        with pytest.raises(FeedRefused, match=r"403 forbidden: Insufficient permissions for book:b-1:read"):
            await take(stranger, 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_bookmark_that_the_server_cannot_read_is_named(journal: Journal, tmp_path: Path, stream: bool):
    file = tmp_path / "b-1.cursor"
    file.write_text("garbled\n")
    async with journal.served() as reading:
        follower = following(journal, reading.server.url, bookmark=FileBookmark(file), stream=stream)
        with pytest.raises(FeedRefused, match=rf"400 bad_request.*Invalid cursor.*bookmark {re.escape(str(file))}:"):
            await take(follower, 1)


@pytest.mark.contract("L7", "L13")
async def test_idle_polls_are_answered_304(journal: Journal):
    await journal.write("first")
    statuses: asyncio.Queue[int] = asyncio.Queue()

    async def note(answer: httpx.Response) -> None:
        statuses.put_nowait(answer.status_code)

    async with (
        journal.served() as reading,
        httpx.AsyncClient(event_hooks={"response": [note]}, timeout=PATIENCE) as client,
    ):
        follower = following(journal, reading.server.url, stream=False, pace=POLLING, client=client)
        async with asyncio.timeout(PATIENCE), aclosing(aiter(follower)) as events:
            assert (await anext(events)).number == 1
            waiting = asyncio.ensure_future(anext(events))
            # The first page, the page behind it, and then nothing but the tag of that one.
            assert [await statuses.get() for _ in range(4)] == [200, 200, 304, 304]
            await journal.write("second")
            assert (await waiting).number == 2


@pytest.mark.contract("L13")
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "polls"])
async def test_what_the_server_withholds_is_reported_and_nothing_else_is_missing(journal: Journal, stream: bool):
    def picky(event: LogEvent[LineWritten]) -> Mapping[str, Any]:
        if event.stream_seq in (2, 3, 6):
            raise RuntimeError("this one cannot be shown")
        return to_item(event)

    await journal.write(*numbered(7))
    gaps: list[Gap] = []
    feed = journal_feed(journal.outbox, item=picky)
    async with journal.served(journal.app(feed=feed)) as reading:
        follower = following(
            journal,
            reading.server.url,
            gapless=True,
            stream=stream,
            limit=2,
            start="1970-01-01T00:00:00.000Z#000",
            on_gap=gaps.append,
        )
        seen = await take(follower, 4)
    assert [event.number for event in seen] == [1, 4, 5, 7]
    assert [(gap.reason, gap.number) for gap in gaps] == [("withheld", 2), ("withheld", 3), ("withheld", 6)]
