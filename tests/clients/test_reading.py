"""Reading a part of a feed: from a time on, back from a place, and to an end."""

import asyncio
from datetime import UTC, datetime
from typing import Unpack

import psycopg
import pytest

from aftercommit.client import TASKS, FeedEvent, ReadOptions, Wire, read, read_back
from aftercommit.client.connection import Lost
from aftercommit.client.wire import Unreadable, refusal
from aftercommit.errors import DeclarationError, FeedRefused, FollowError
from aftercommit.feed import POSITION, BareArray, Everything, Limits, LogEvent
from aftercommit.feed import Wire as FeedWire
from aftercommit.feed.strands.hub import HubSettings
from tests.clients.scripted_feed import answer_with, drop, refuse, scripted_feed
from tests.clients.test_follow import QUICK
from tests.feed.journal import Journal, LineWritten, journal_feed, numbered

NUMBERED = Wire(beginning="0")
AS_ARRAY = {
    "item": lambda event: {"event_id": event.position, "text": event.payload.text},
    "wire": FeedWire(cursor="after_id", before="before_id", from_time="from_time", body=BareArray()),
}
BEGAN = datetime(2025, 11, 12, 10, tzinfo=UTC)


def options(journal: Journal, **more: Unpack[ReadOptions]) -> ReadOptions:
    return {"token": journal.token(), "pace": QUICK, **more}


def texts(events: list[FeedEvent]) -> list[str]:
    return [event.data["text"] for event in events]


async def spread(journal: Journal, count: int) -> None:
    """Lines, a minute apart."""
    await journal.write(*numbered(count))
    with psycopg.connect(journal.dsn) as connection:
        connection.execute(
            "update journal.log set ts = timestamptz '2025-11-12T10:00:00Z' + stream_seq * interval '1 minute'"
        )


@pytest.mark.contract("L13")
async def test_a_part_is_read_from_a_time_or_a_cursor_to_the_end(journal: Journal):
    await spread(journal, 25)
    async with journal.served() as reading:
        url = f"{reading.server.url}/books/b-1/lines"
        everything = [event async for event in read(url, **options(journal, limit=4))]
        assert texts(everything) == list(numbered(25))
        after = [event async for event in read(url, after=everything[9].cursor, **options(journal, limit=4))]
        assert texts(after) == list(numbered(15, 11))
        moment = BEGAN.replace(minute=20)
        since = [event async for event in read(url, from_time=moment, **options(journal, limit=2))]
        assert texts(since) == list(numbered(6, 20))
        later = [event async for event in read(url, from_time=BEGAN.replace(year=2100), **options(journal))]
        assert later == []


@pytest.mark.contract("L13")
async def test_back_comes_the_newest_first_down_to_the_beginning(journal: Journal):
    await spread(journal, 25)
    async with journal.served() as reading:
        url = f"{reading.server.url}/books/b-1/lines"
        back = [event async for event in read_back(url, **options(journal, limit=4))]
        assert texts(back) == list(numbered(25))[::-1]
        part = [event async for event in read_back(url, before=back[15].cursor, **options(journal, limit=4))]
        assert texts(part) == list(numbered(9))[::-1]
        nothing = [event async for event in read_back(url, **options(journal, filters={"minLevel": "ERROR"}))]
        assert nothing == []


async def test_a_feed_of_arrays_is_read_both_ways(journal: Journal):
    def item(event):
        return {"event_id": event.position, "text": event.payload.text}

    feed = journal_feed(
        journal.outbox,
        select=Everything(),
        cursor=POSITION,
        item=item,
        facets={},
        filters=(),
        permission=None,
        limits=Limits(default=2, least=1, most=10),
        wire=FeedWire(cursor="after_id", before="before_id", from_time="from_time", body=BareArray()),
    )
    await journal.write(*numbered(7))
    async with journal.served(journal.app(feed=feed, path="/all")) as reading:
        url = f"{reading.server.url}/all"
        assert texts([event async for event in read(url, **options(journal, wire=TASKS))]) == list(numbered(7))
        back = [event async for event in read_back(url, **options(journal, wire=TASKS))]
        assert texts(back) == list(numbered(7))[::-1]


def level_of(event: LogEvent[LineWritten]) -> str:
    return event.payload.level


@pytest.mark.contract("L5", "L13")
@pytest.mark.parametrize("array", [False, True], ids=["paged", "array"])
async def test_back_goes_on_where_the_newest_page_has_stopped_looking(
    journal: Journal, array: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("aftercommit.feed.strands.history.WINDOW", 10)
    monkeypatch.setattr("aftercommit.feed.strands.history.ROUNDS", 3)
    feed = journal_feed(
        journal.outbox,
        select=Everything(),
        cursor=POSITION,
        facets={"level": level_of},
        filters=journal.feed.filters[:1],
        permission=None,
        **(AS_ARRAY if array else {}),
    )
    await journal.write("first", "second", level="ERROR")
    await journal.write(*numbered(98))
    app = journal.app(feed=feed, path="/lines", hub=HubSettings(ring_bytes=1))
    async with journal.served(app) as reading:
        newest = await reading.client.get("/lines", params={"minLevel": "ERROR", "limit": 5})
        assert newest.headers["x-next-cursor"] == "100"
        if array:
            assert (newest.json(), newest.headers["x-previous-cursor"]) == ([], "71")
        else:
            pagination = newest.json()["pagination"]
            assert (newest.json()["lines"], pagination["previousCursor"], pagination["hasMore"]) == ([], "71", False)
            assert "previousCursor" not in (await reading.client.get("/lines")).json()["pagination"]
        asked = options(journal, limit=5, filters={"minLevel": "ERROR"}, wire=TASKS if array else NUMBERED)
        found = [event async for event in read_back(f"{reading.server.url}/lines", **asked)]
        assert texts(found) == ["second", "first"]


async def test_what_passes_is_waited_for_and_what_does_not_is_raised():
    page = b'{"logs": [{"event_id": "e1"}], "pagination": {"nextCursor": "t#1", "hasMore": false}}'
    async with scripted_feed(polls=[refuse(503), drop, answer_with(b"<html>"), answer_with(page)]) as feed:
        assert [event.id async for event in read(feed.url, pace=QUICK)] == ["e1"]
    async with scripted_feed(polls=[refuse(403)]) as feed:
        with pytest.raises(FeedRefused, match="told 403"):
            await anext(read(feed.url, pace=QUICK))
    async with scripted_feed(polls=[drop] * 9) as feed:
        with pytest.raises(FollowError, match="cannot be read"):
            await anext(read(feed.url, pace=QUICK))
        assert len(feed.requests) == QUICK.failures + 1
    async with scripted_feed(polls=[refuse(410, reason="retention", restart="t#5")]) as feed:
        with pytest.raises(FeedRefused) as caught:
            await anext(read(feed.url, after="t#1", pace=QUICK))
        assert caught.value.details["restart"] == "t#5"


async def test_of_a_long_answer_an_error_shows_the_beginning_and_has_the_rest():
    long = b"<html>" + b"x" * 5000
    async with scripted_feed(polls=[answer_with(long)] * 9) as feed:
        with pytest.raises(FollowError, match=r"cannot be read: it is not JSON \(.*\): '<html>x{74}'$") as caught:
            await anext(read(feed.url, pace=QUICK))
        assert isinstance(caught.value.__cause__, Unreadable)
        assert caught.value.__cause__.quoted == long.decode()
    async with scripted_feed(polls=[drop] * 9) as feed:
        with pytest.raises(FollowError) as caught:
            await anext(read(feed.url, pace=QUICK))
        assert isinstance(caught.value.__cause__, Lost)
    refused = refusal(403, {}, long, BEGAN)
    assert refused.message == long.decode()
    assert str(refused) == f"The feed answered 403: {long[:500].decode()}"


async def test_a_refused_token_is_renewed_once():
    tokens = iter(["old", "new", "newer"])
    async with scripted_feed(events=2, polls=[refuse(401)]) as feed:
        assert [event.id async for event in read(feed.url, token=lambda: next(tokens), pace=QUICK)] == ["e1", "e2"]
        assert [request.headers["authorization"] for request in feed.requests] == ["Bearer old", "Bearer new"]
    async with scripted_feed(polls=[refuse(401)] * 3) as feed:
        with pytest.raises(FeedRefused, match="401"):
            await anext(read(feed.url, token=lambda: "bad", pace=QUICK))
        assert len(feed.requests) == 2


async def test_what_cannot_be_asked_for_is_said_before_anything_is_asked():
    with pytest.raises(DeclarationError, match="pass one of them"):
        await anext(read("http://h/logs", after="t#1", from_time=BEGAN))
    with pytest.raises(DeclarationError, match="no time zone"):
        await anext(read("http://h/logs", from_time=datetime(2025, 11, 12)))  # noqa: DTZ001 - that is the mistake
    page = b'{"items": [{"event_id": "e1"}], "pagination": {"nextCursor": "5", "hasMore": false}}'
    async with scripted_feed(polls=[answer_with(page)]) as feed:
        async with asyncio.timeout(60):
            with pytest.raises(FollowError, match="before="):
                assert [event async for event in read_back(feed.url, wire=Wire(), pace=QUICK)]
