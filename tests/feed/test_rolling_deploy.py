"""Old and new code side by side: a server that is too old for an event waits there, and leads nobody past it."""

import logging
from typing import Any

import httpx
import pytest

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.tokens import TokenVerifier
from aftercommit.feed import Feed, LogEvent
from aftercommit.feed.app.service import service
from aftercommit.feed.live.streams import StreamTimes
from tests.feed.journal import Journal, LineWritten, Reading, journal_feed, numbered, to_item, until
from tests.feed.newer import newer_app, write_newer

pytestmark = pytest.mark.contract("E4")

HOLD = StreamTimes(
    tick_seconds=0.02,
    progress_seconds=0.05,
    heartbeat_seconds=0.2,
    drain_seconds=1.0,
    retry_seconds=0.1,
    hold_seconds=1.5,
)
BEGINNING = "1970-01-01T00:00:00.000Z#000"


def texts(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [line["text"] for line in answer.json()["lines"]]


def assert_held(answer: httpx.Response, event_type: str = "line.written", version: int = 2, known: Any = 1) -> None:
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "3"
    assert answer.headers["cache-control"] == "no-store"
    body = answer.json()
    assert body["error"] == "unavailable"
    assert body["details"] == {"event_type": event_type, "version": version, "known": known}
    assert f"{event_type} version {version}" in body["message"]


async def caught_up(reading: Reading, head: int, book: str = "b-1") -> None:
    """The server has heard of everything."""
    feed = next(iter(reading.app.feeds.values()))
    strand = await reading.app.hub.strand(feed, book)
    await until(lambda: strand.head >= head)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.thorough
async def test_a_page_ends_before_the_event_and_the_next_is_503_until_newer_code_serves_it(
    journal: Journal, warm: bool
):
    await journal.write(*numbered(3))
    async with journal.served() as old, journal.served(newer_app(journal)) as new:
        if warm:
            # From the ring: the event is heard of while somebody reads.
            await old.poll()
        await write_newer(journal, "new 4")
        await journal.write("line 5")
        await caught_up(old, 5)

        page = await old.poll(afterCursor=BEGINNING)
        assert texts(page) == ["line 1", "line 2", "line 3"]
        pagination = page.json()["pagination"]
        assert (pagination["hasMore"], page.headers["x-has-more"]) == (True, "true")
        assert "etag" not in page.headers
        assert page.headers["cache-control"] == "private, no-store"

        place = pagination["nextCursor"]
        assert_held(await old.poll(afterCursor=place))
        assert_held(await old.poll(afterCursor=place, headers={"Prefer": "wait=30"}))
        assert texts(await new.poll(afterCursor=place)) == ["new 4", "line 5"]
        # Whoever has read it elsewhere goes on here.
        four = (await new.poll(afterCursor=place, limit=1)).json()["pagination"]["nextCursor"]
        assert texts(await old.poll(afterCursor=four)) == ["line 5"]


@pytest.mark.thorough
async def test_history_that_is_older_than_the_ring_holds_as_well(journal: Journal):
    await write_newer(journal, "new 1")
    await journal.write(*numbered(150, 2))
    await write_newer(journal, "new 152")
    await journal.write(*numbered(150, 153))
    async with journal.served() as old, journal.served(newer_app(journal)) as new:
        assert_held(await old.poll(afterCursor=BEGINNING))
        first = (await new.poll(afterCursor=BEGINNING, limit=1)).json()["pagination"]["nextCursor"]
        page = await old.poll(afterCursor=first, limit=1000)
        assert texts(page) == list(numbered(150, 2))
        assert_held(await old.poll(afterCursor=page.json()["pagination"]["nextCursor"]))


async def test_the_newest_page_ends_before_it_and_no_tag_hides_it_later(journal: Journal):
    await journal.write(*numbered(3))
    await write_newer(journal, "new 4")
    await journal.write("line 5")
    async with journal.served() as old, journal.served(newer_app(journal)) as new:
        page = await old.poll()
        assert texts(page) == ["line 1", "line 2", "line 3"]
        assert page.json()["pagination"]["hasMore"] is True
        assert "etag" not in page.headers
        assert_held(await old.poll(limit=2))
        assert texts(await old.poll(limit=1)) == ["line 5"]
        # Whoever reads back from the end would never come to it.
        assert_held(await old.poll(beforeCursor="end"))
        assert texts(await old.poll(beforeCursor="end", limit=1)) == ["line 5"]
        whole = await new.poll()
        assert texts(whole) == ["line 1", "line 2", "line 3", "new 4", "line 5"]
        # A reader that has all of it may be told by either that nothing is new.
        assert (await old.poll(headers={"If-None-Match": whole.headers["etag"]})).status_code == 304


async def test_reading_back_stops_behind_it(journal: Journal):
    await journal.write(*numbered(3))
    await write_newer(journal, "new 4")
    await journal.write("line 5", "line 6")
    async with journal.served() as old, journal.served(newer_app(journal)) as new:
        lines = (await new.poll()).json()["lines"]
        cursors = [f"{line['ts']}#{line['seq']:03d}" for line in lines]
        for limit in (2, 100):
            page = await old.poll(beforeCursor=cursors[5], limit=limit)
            assert texts(page) == ["line 5"]
            assert page.json()["pagination"]["previousCursor"] == cursors[4]
            assert page.json()["pagination"]["hasMore"] is True
            assert ("etag" in page.headers, page.headers["cache-control"]) == (False, "private, no-store")
        assert_held(await old.poll(beforeCursor=cursors[4]))
        assert texts(await old.poll(beforeCursor=cursors[3])) == ["line 1", "line 2", "line 3"]


async def test_filters_lead_nobody_past_what_may_match(journal: Journal):
    def by_hand(outbox: Any) -> Feed:
        return journal_feed(outbox, facets={"level": "level", "author": lambda event: event.payload.author})

    await journal.write("one", author="ada")
    await write_newer(journal, "two", author="ada", level="ERROR")
    await journal.write("three", author="ada", level="ERROR")
    async with journal.served() as old, journal.served(journal.app(feed=by_hand(journal.outbox))) as function:
        # What is stored says that it does not match, whatever the version.
        assert texts(await old.poll(afterCursor=BEGINNING, author="bob")) == []
        assert texts(await old.poll(afterCursor=BEGINNING, author="ada")) == ["one"]
        assert_held(await old.poll(afterCursor=BEGINNING, minLevel="WARN"))
        # Who the author is, only newer code can tell.
        assert_held(await function.poll(afterCursor=BEGINNING, author="bob"))
        assert_held(await function.poll(afterCursor=BEGINNING, author="bob", minLevel="WARN"))


async def test_an_event_of_a_type_that_is_not_declared_here_is_held_where_all_types_are_shown(journal: Journal):
    await journal.write("one")
    await write_newer(journal, "two", picture=True)
    await journal.write("three")
    everything = journal.app(feed=journal_feed(journal.outbox, types=None))
    async with journal.served(everything) as old, journal.served() as lines_alone:
        page = await old.poll(afterCursor=BEGINNING)
        assert texts(page) == ["one"]
        held = await old.poll(afterCursor=page.json()["pagination"]["nextCursor"])
        assert_held(held, "picture.pasted", 1, None)
        # A feed that names its types never had it.
        assert texts(await lines_alone.poll(afterCursor=BEGINNING)) == ["one", "three"]


@pytest.mark.thorough
@pytest.mark.parametrize("live", [True, False])
async def test_a_stream_stays_at_the_event_says_so_once_and_sends_its_reader_on(journal: Journal, live: bool):
    await journal.write("one", "two")
    async with journal.served(journal.app(times=HOLD)) as old, journal.served(newer_app(journal)) as new:
        if not live:
            await write_newer(journal, "three")
        async with old.stream(afterCursor=BEGINNING) as stream:
            last = (await stream.events(2))[-1]["id"]
            if live:
                await write_newer(journal, "three")
            await journal.write("four")
            told = await stream.named("hold")
            assert told["item"] == {"event_type": "line.written", "version": 2, "known": 1}
            assert "id" not in told
            later = []
            while (block := await stream.block()) is not None:
                later.append(block)
            assert {"": "hb"} in later, "signs of life"
            assert [block["event"] for block in later if "event" in block] == ["bye"]
            assert '"reason":"held"' in later[-1]["data"]
            assert all(block.get("id", last) == last for block in later)
        async with new.stream(headers={"Last-Event-ID": last}) as stream:
            assert await stream.texts(2) == ["three", "four"]


async def test_a_stream_without_a_cursor_that_would_begin_with_it_sends_its_reader_on_at_once(journal: Journal):
    await write_newer(journal, "one")
    await journal.write("two")
    async with journal.served() as old, old.stream() as stream:
        blocks = []
        while (block := await stream.block()) is not None:
            blocks.append(block)
        assert [block["event"] for block in blocks if "event" in block] == ["hold", "bye"]
        assert not any("id" in block for block in blocks)


@pytest.mark.thorough
async def test_a_stream_that_waits_ends_with_its_token_and_with_the_server(journal: Journal):
    await write_newer(journal, "one")
    access = BearerAccess(TokenVerifier(journal.keys, leeway_seconds=0))
    async with journal.served(journal.app(access)) as old:
        async with old.stream(afterCursor=BEGINNING, headers=journal.bearer(seconds=5)) as stream:
            await stream.named("hold")
            assert (await stream.named("bye"))["item"]["reason"] == "unauthorized"
        async with old.stream(afterCursor=BEGINNING) as stream:
            await stream.named("hold")
            old.app.drain()
            assert (await stream.named("bye"))["item"]["reason"] == "shutdown"


async def test_a_held_feed_is_told_once_in_the_log_and_in_the_figures_and_others_are_served(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    await write_newer(journal, "one", "two")
    app = journal.app()
    with caplog.at_level(logging.WARNING, logger="aftercommit.feed"):
        async with journal.served(app, service(app)) as reading:
            assert 'feed_held{feed="lines"} 0\n' in (await reading.client.get("/metrics")).text
            for _ in range(3):
                assert_held(await reading.poll(afterCursor=BEGINNING))
            assert 'feed_held{feed="lines"} 1\n' in (await reading.client.get("/metrics")).text

            async def is_ready() -> bool:
                return (await reading.client.get("/readyz")).status_code == 200

            await until(is_ready)
            assert (await reading.poll("other")).status_code == 200
    said = [record for record in caplog.records if record.message.startswith("feed_held")]
    assert len(said) == 1
    assert (said[0].event_type, said[0].version, said[0].known) == ("line.written", 2, 1)  # type: ignore[attr-defined]


async def test_nobody_keeps_a_page_with_an_item_that_is_withheld(journal: Journal):
    def picky(event: LogEvent[LineWritten]) -> Any:
        if event.payload.text == "line 3":
            raise RuntimeError("a mistake that the next version of this function does not make")
        return to_item(event)

    await journal.write(*numbered(6))
    mended = journal.app()
    async with (
        journal.served(journal.app(feed=journal_feed(journal.outbox, item=picky))) as reading,
        journal.served(mended) as later,
    ):
        lines = (await later.poll()).json()["lines"]
        first, last = (f"{line['ts']}#{line['seq']:03d}" for line in (lines[0], lines[5]))
        questions: list[dict[str, Any]] = [{"afterCursor": first, "limit": 3}, {"beforeCursor": last, "limit": 3}, {}]
        for asked in questions:
            page = await reading.poll(**asked)
            assert "item failed" in page.text
            assert ("etag" in page.headers, page.headers["cache-control"]) == (False, "private, no-store")
