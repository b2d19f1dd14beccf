"""What the server cannot show was not received: readers hear of it as a gap, and get it when it comes after all."""

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import pytest

from aftercommit.client import FeedEvent, Gap, follow, read, read_back
from aftercommit.feed import LogEvent
from aftercommit.feed.app import FeedApp
from tests.clients.scripted_feed import scripted_feed
from tests.clients.test_follow import QUICK
from tests.feed.journal import Journal, LineWritten, journal_feed, numbered, to_item

pytestmark = pytest.mark.contract("E4", "L13")

PATIENCE = 60.0
BEGINNING = "1970-01-01T00:00:00.000Z#000"


def picky(event: LogEvent[LineWritten]) -> Any:
    if event.payload.text == "line 2":
        raise RuntimeError("a mistake")
    return to_item(event)


def broken(journal: Journal) -> FeedApp:
    return journal.app(feed=journal_feed(journal.outbox, item=picky))


def number_or_gap(item: FeedEvent | Gap) -> Any:
    return item.number if isinstance(item, FeedEvent) else (item.reason, item.number)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_follower_is_told_of_it_in_its_place(journal: Journal, stream: bool):
    await journal.write(*numbered(3))
    async with journal.served(broken(journal)) as reading:
        url = f"{reading.server.url}/books/b-1/lines"
        follower = follow(url, token=journal.token(), start=BEGINNING, gapless=True, pace=QUICK, stream=stream)
        async with asyncio.timeout(PATIENCE), aclosing(follower.with_gaps()) as items:
            seen = [await anext(items) for _ in range(3)]
    assert [number_or_gap(each) for each in seen] == [1, ("withheld", 2), 3]
    gap = seen[1]
    assert isinstance(gap, Gap)
    assert gap.event_id is not None
    assert gap.event_id in gap.message
    assert str(gap.restart).endswith("#002")


async def test_an_event_that_comes_after_all_is_handed_over(journal: Journal):
    await journal.write(*numbered(3))
    gaps: list[Gap] = []
    async with journal.served(broken(journal)) as reading, journal.served() as mended:
        options: Any = {"token": journal.token(), "pace": QUICK, "stream": False, "on_gap": gaps.append}
        url = f"{reading.server.url}/books/b-1/lines"
        follower = follow(url, start=BEGINNING, **options)
        async with asyncio.timeout(PATIENCE), aclosing(aiter(follower)) as events:
            assert [(await anext(events)).number for _ in range(2)] == [1, 3]
        # The same reader goes back to the place of the gap, on a server that can show it.
        follower._requests = follow(f"{mended.server.url}/books/b-1/lines", **options)._requests
        assert follower._position is not None
        follower._position.reset(gaps[0].after)
        async with asyncio.timeout(PATIENCE), aclosing(aiter(follower)) as events:
            assert (await anext(events)).data["text"] == "line 2"
    assert [(gap.reason, gap.number) for gap in gaps] == [("withheld", 2)]


async def test_a_part_that_is_read_tells_of_it_too(journal: Journal, caplog: pytest.LogCaptureFixture):
    await journal.write(*numbered(3))
    async with journal.served(broken(journal)) as reading, asyncio.timeout(PATIENCE):
        url = f"{reading.server.url}/books/b-1/lines"
        for reader, expected in ((read, [1, 3]), (read_back, [3, 1])):
            gaps: list[Gap] = []
            found = [event async for event in reader(url, token=journal.token(), on_gap=gaps.append)]
            assert [event.number for event in found] == expected
            assert [(gap.reason, gap.number) for gap in gaps] == [("withheld", 2)]
        with caplog.at_level(logging.WARNING, logger="aftercommit.client"):
            assert len([event async for event in read(url, token=journal.token())]) == 2
        assert [record.message.split()[0] for record in caplog.records if "gap" in record.message] == ["feed_gap"]


def taxed(event: LogEvent[LineWritten]) -> Any:
    """Items with a field of this name; of line 2 nothing but its place is beside it."""
    place = {name: to_item(event)[name] for name in ("event_id", "ts", "seq")}
    return {**(place if event.payload.text == "line 2" else to_item(event)), "withheld": "120.00"}


@pytest.mark.parametrize("stream", [True, False])
async def test_an_item_with_a_field_of_that_name_is_an_event(
    journal: Journal, stream: bool, caplog: pytest.LogCaptureFixture
):
    """Only one that looks exactly like a note is withheld, and the server's log says why."""
    await journal.write(*numbered(3))
    app = journal.app(feed=journal_feed(journal.outbox, item=taxed))
    async with journal.served(app) as reading:
        url = f"{reading.server.url}/books/b-1/lines"
        follower = follow(url, token=journal.token(), start=BEGINNING, gapless=True, pace=QUICK, stream=stream)
        async with asyncio.timeout(PATIENCE), aclosing(follower.with_gaps()) as items:
            seen = [await anext(items) for _ in range(3)]
    assert [number_or_gap(each) for each in seen] == [1, ("withheld", 2), 3]
    assert isinstance(seen[0], FeedEvent)
    assert seen[0].data["withheld"] == "120.00"
    assert app.hub.withheld["lines"] == 1
    [said] = [record for record in caplog.records if record.message == "feed_item_withheld"]
    assert "rename that field" in getattr(said, "error", "")


async def test_a_hold_is_a_sign_of_life_and_no_event():
    async with scripted_feed(events=2) as feed:

        async def held(reply: Any) -> None:
            await reply.begin_stream()
            await reply.events(1)
            await reply.write(b'event: hold\ndata: {"event_type": "x", "version": 2, "known": 1}\n\n')
            await reply.write(b'event: bye\nretry: 10\ndata: {"reason": "held", "retry": 10}\n\n')

        feed.streams.append(held)
        follower = follow(feed.url, pace=QUICK, start=BEGINNING)
        async with asyncio.timeout(PATIENCE), aclosing(follower.with_gaps()) as items:
            assert [number_or_gap(await anext(items)) for _ in range(2)] == [1, 2]
