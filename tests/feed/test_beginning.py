"""A feed that begins with the oldest event: who asks without a cursor and just goes on has read everything."""

from typing import Any

import pytest

from aftercommit.client import LOGS, follow, read, read_back
from aftercommit.errors import DeclarationError
from tests.feed.journal import PATH, Journal, journal_feed, until

ALL = [f"line {number}" for number in range(8)]


@pytest.fixture
async def oldest_first(journal: Journal) -> Journal:
    """The journal, read from its beginning; eight lines are in it."""
    journal.feed = journal_feed(journal.outbox, name="from_the_beginning", begins="oldest")
    await journal.write(*ALL)
    return journal


@pytest.mark.contract("T1")
async def test_the_first_page_has_the_oldest_and_the_next_goes_on(oldest_first: Journal):
    async with oldest_first.served() as reading:
        assert await reading.texts(limit=3) == ALL[:3]
        answer = await reading.poll(limit=3)
        told = answer.json()["pagination"]
        assert (told["hasMore"], told["returned"]) == (True, 3)
        # What comes first is another one later, when retention has been there: nobody keeps this page for ever.
        assert "immutable" not in answer.headers["Cache-Control"]
        assert await reading.texts(limit=3, afterCursor=told["nextCursor"]) == ALL[3:6]
        again = await reading.poll(limit=3, headers={"If-None-Match": answer.headers["ETag"]})
        assert again.status_code == 304
        await oldest_first.write("news")

        async def shows_news() -> bool:
            return await reading.texts() == [*ALL, "news"]

        await until(shows_news)
        assert await reading.texts(limit=3) == ALL[:3]


async def test_filters_and_reading_back_are_as_ever(oldest_first: Journal):
    await oldest_first.write("late", level="ERROR")
    async with oldest_first.served() as reading:
        assert await reading.texts(minLevel="ERROR") == ["late"]
        last = (await reading.poll(minLevel="ERROR")).json()["pagination"]["nextCursor"]
        assert await reading.texts(beforeCursor=last, limit=2) == ALL[-2:]


async def test_its_newest_page_can_be_asked_for_and_read_back_from(oldest_first: Journal):
    async with oldest_first.served() as reading:
        newest = await reading.poll(beforeCursor="end", limit=3)
        assert [line["text"] for line in newest.json()["lines"]] == ALL[-3:]
        assert newest.json()["pagination"]["hasMore"] is False
        tag = {"If-None-Match": newest.headers["ETag"]}
        assert (await reading.poll(beforeCursor="end", limit=3, headers=tag)).status_code == 304
        url, token = f"{reading.server.url}/books/b-1/lines", oldest_first.token()
        back = [event.data["text"] async for event in read_back(url, wire=LOGS, token=token, limit=3)]
        assert back == ALL[::-1]
        refused = await reading.client.get("/books/b-1/lines/stream?beforeCursor=end")
        assert refused.status_code == 400


@pytest.mark.thorough
async def test_an_empty_feed_waits_for_its_first_event_without_a_cursor(journal: Journal):
    journal.feed = journal_feed(journal.outbox, name="from_the_beginning", begins="oldest")
    async with journal.served() as reading:
        assert await reading.texts() == []
        patient = await reading.poll(headers={"Prefer": "wait=1"})
        assert (patient.status_code, patient.headers["Preference-Applied"]) == (200, "wait=1")
        async with reading.stream() as followed:
            assert (await followed.block() or {}).get("retry")
            await journal.write("first")
            assert [event["item"]["text"] for event in await followed.events(1)] == ["first"]


@pytest.mark.contract("T4")
async def test_a_stream_without_a_cursor_brings_everything_however_small_its_pages(oldest_first: Journal):
    async with oldest_first.served() as reading:
        sizes: list[dict[str, Any]] = [{}, {"limit": 1}, {"limit": 3}]
        for parameters in sizes:
            async with reading.stream(**parameters) as followed:
                events = await followed.events(8)
            assert [event["item"]["text"] for event in events] == ALL


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "polls"])
async def test_the_client_needs_to_know_nothing_of_it(oldest_first: Journal, stream: bool):
    async with oldest_first.served() as reading:
        url, token = f"{reading.server.url}/books/b-1/lines", oldest_first.token()
        options = {} if stream else {"stream": False}
        seen: list[str] = []
        async with follow(url, wire=LOGS, token=token, limit=3, **options) as events:  # type: ignore[arg-type]
            async for event in events:
                seen.append(event.data["text"])
                if len(seen) == len(ALL):
                    break
        assert seen == ALL
        assert [event.data["text"] async for event in read(url, wire=LOGS, token=token, limit=3)] == ALL


async def test_its_description_says_so(oldest_first: Journal):
    async with oldest_first.served() as reading:
        described = reading.app.openapi()["paths"][PATH]["get"]["description"]
        assert "Without it, returns the oldest items that are kept." in described


def test_a_beginning_that_nobody_knows_is_refused(journal_dsn: str):
    with pytest.raises(DeclarationError, match="must be 'newest' or 'oldest'"):
        journal_feed(Journal(journal_dsn).outbox, name="other", begins="middle")
