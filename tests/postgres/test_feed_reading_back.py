"""Backwards and from a moment on: ring and database give what a walk forwards met, at a bounded cost."""

import random
from datetime import UTC, datetime

import pytest

from aftercommit.errors import CursorGone
from aftercommit.feed import EVERYTHING, Chosen, Cursor, Entry, Feed
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.testing.signals import Signals
from tests.postgres.test_feed_history import TINY, level_of, logs, mixed, plain, random_choice
from tests.support.feeding import Closed, LogRecorded, Logs, Walker, caught_up, lines, log_feed, numbers_of

__all__ = ["logs"]


async def back_from(hub: FeedHub, feed: Feed, key: str, before: Cursor, limit: int, chosen: Chosen) -> list[Entry]:
    """All that lies before a cursor, page by page, as a client goes back; in order."""
    found: list[Entry] = []
    place: Cursor | None = before
    while place is not None:
        page = await hub.page_before(await hub.strand(feed, key), place, limit, chosen)
        assert page.has_more == (page.previous is not None)
        assert page.previous is None or page.previous.number < place.number, "each page goes further back"
        found = [*page.entries, *found]
        place = page.previous and feed.cursor.parse(feed.cursor.format(page.previous))
    return found


@pytest.mark.thorough
@pytest.mark.contract("L5")
@pytest.mark.parametrize("window", [8, 1000], ids=["in many rounds", "in few rounds"])
async def test_back_from_anywhere_comes_what_a_walk_forwards_met_before(
    logs: Logs, window: int, monkeypatch: pytest.MonkeyPatch
):
    """From the ring and from history, by every selection and with every kind of filter."""
    monkeypatch.setattr("aftercommit.feed.strands.history.WINDOW", window)
    monkeypatch.setattr("aftercommit.feed.strands.history.ROUNDS", 3)
    chance = random.Random(11)
    async with logs.relay():
        await logs.record(*mixed("i-1", 120))
        await logs.record(*mixed("i-2", 40), project_id="p-2")
        await logs.record(Closed("i-1"), *mixed("i-1", 80, seed=2))
        async with logs.hub(preload_entries=1000, ring_bytes=1 << 24) as full, logs.hub(ring_bytes=TINY) as empty:
            for feed, key in (("logs", "i-1"), ("stream", "i-1"), ("project", "p-1"), ("everything", "")):
                declared = logs.feeds[feed]
                for _ in range(12):
                    given, limit = random_choice(chance), chance.choice((1, 3, 50, 1000))
                    chosen = declared.chosen(given)
                    forwards = await Walker(declared, key, 1000, chosen).walk(full)
                    before = Cursor(chance.randrange(0, 201))
                    expected = [entry.number for entry in forwards if entry.number < before.number]
                    for hub in (full, empty):
                        found = await back_from(hub, declared, key, before, limit, chosen)
                        assert [entry.number for entry in found] == expected, (feed, given, before, limit)
            asked = full.questions
            strand = await full.strand(logs.feed, "i-1")
            assert numbers_of((await full.page_before(strand, Cursor(6), 3)).entries) == [2, 3, 4]
            assert full.questions == asked, "what the ring has costs no question"


async def test_ring_and_history_read_back_alike(logs: Logs):
    chance = random.Random(5)
    async with logs.relay():
        await logs.record(*mixed("i-1", 300))
        async with logs.hub(preload_entries=1000, ring_bytes=1 << 24) as full, logs.hub(ring_bytes=TINY) as empty:
            one, other = await full.strand(logs.feed, "i-1"), await empty.strand(logs.feed, "i-1")
            for _ in range(60):
                chosen, limit = logs.feed.chosen(random_choice(chance)), chance.choice((1, 2, 10, 100, 1000))
                before = Cursor(chance.randrange(0, 301))
                from_ring = await full.page_before(one, before, limit, chosen)
                from_history = await empty.page_before(other, before, limit, chosen)
                assert plain(from_ring) == plain(from_history)
                assert (from_ring.before, from_ring.previous) == (from_history.before, from_history.previous)


async def test_back_a_search_that_looks_at_too_much_stops_and_says_where(logs: Logs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aftercommit.feed.strands.history.WINDOW", 10)
    monkeypatch.setattr("aftercommit.feed.strands.history.ROUNDS", 3)
    feed = log_feed(logs.outbox, "by-function", facets={"level": level_of}, filters=logs.feed.filters[:1])
    async with logs.relay():
        await logs.record(LogRecorded("i-1", 0, "ERROR"), *lines("i-1", range(1, 100)))
        async with logs.hub(feed, ring_bytes=TINY) as hub:
            strand, errors = await hub.strand(feed, "i-1"), feed.chosen({"minLevel": "ERROR"})
            questions = hub.questions

            page = await hub.page_before(strand, Cursor(100), 5, errors)

            assert hub.questions - questions == 3
            assert (list(page.entries), page.has_more) == ([], True)
            assert page.previous is not None
            assert page.previous.number == 70
            assert numbers_of(await back_from(hub, feed, "i-1", Cursor(100), 5, errors)) == [0]


@pytest.mark.contract("L5")
async def test_the_newest_page_that_could_not_look_at_everything_says_where_to_go_on_backwards(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("aftercommit.feed.strands.history.WINDOW", 10)
    monkeypatch.setattr("aftercommit.feed.strands.history.ROUNDS", 3)
    feed = log_feed(logs.outbox, "by-function", facets={"level": level_of}, filters=logs.feed.filters[:1])
    async with logs.relay():
        wanted = [LogRecorded("i-1", number, "ERROR") for number in range(2)]
        await logs.record(*wanted, *lines("i-1", range(2, 100)))
        async with logs.hub(feed, ring_bytes=TINY) as hub:
            strand, errors = await hub.strand(feed, "i-1"), feed.chosen({"minLevel": "ERROR"})

            page = await hub.page(strand, None, 5, errors)

            assert (list(page.entries), page.has_more, page.next and page.next.number) == ([], False, 100)
            assert page.previous is not None
            assert page.previous.number == 71
            assert numbers_of(await back_from(hub, feed, "i-1", page.previous, 5, errors)) == [0, 1]
            # Full, or with all there is: nobody has to be told where to go on.
            for limit, given in ((5, {"minLevel": "DEBUG"}), (100, {})):
                assert (await hub.page(strand, None, limit, feed.chosen(given))).previous is None


async def test_the_newest_page_of_large_events_says_where_the_older_ones_are(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("aftercommit.feed.strands.history.BYTES_AT_ONCE", 5000)
    async with logs.relay():
        await logs.record(*lines("i-1", range(20), message="x" * 1000))
        async with logs.hub(ring_bytes=TINY) as hub:
            page = await hub.page(await hub.strand(logs.feed, "i-1"), None, 10)

            assert 0 < len(page.entries) < 10
            assert page.previous is not None
            assert page.previous.number == page.entries[0].number
            older = await back_from(hub, logs.feed, "i-1", page.previous, 10, EVERYTHING)
            assert numbers_of([*older, *page.entries]) == list(range(20))


async def test_back_ends_at_the_oldest_that_is_kept_and_a_foreign_cursor_is_gone(logs: Logs):
    async with logs.relay(), logs.hub(ring_bytes=TINY) as hub:
        await logs.record(*lines("i-1", range(10)))
        strand = await hub.strand(logs.feed, "i-1")
        logs.rows("delete from log where position <= 5")

        page = await hub.page_before(strand, Cursor(8), 10)
        assert (numbers_of(page.entries), page.previous, page.has_more) == ([5, 6], None, False)
        for nothing_before in (Cursor(6), Cursor(3), Cursor(1), Cursor(0)):
            page = await hub.page_before(strand, nothing_before, 10)
            assert (list(page.entries), page.previous, page.has_more) == ([], None, False)
        for foreign in (Cursor(11), Cursor(7, datetime(2020, 1, 1, tzinfo=UTC))):
            with pytest.raises(CursorGone) as caught:
                await hub.page_before(strand, foreign, 10)
            assert caught.value.reason == "epoch"


async def test_back_from_a_cursor_of_a_process_that_is_ahead(logs: Logs):
    signals = Signals()
    async with logs.relay(), logs.hub() as ahead, logs.hub(signals=signals) as behind:
        await logs.record(*lines("i-1", range(3)))
        strand = await behind.strand(logs.feed, "i-1")
        await caught_up(behind, logs)
        hold = signals.hold("feed.read")
        await hold.wait()
        await logs.record(*lines("i-1", range(3, 6)))
        await caught_up(ahead, logs)
        newest = (await ahead.page(await ahead.strand(logs.feed, "i-1"), Cursor(0), 10)).next
        assert newest is not None

        page = await behind.page_before(strand, newest, 10)

        assert (strand.head, numbers_of(page.entries)) == (3, [0, 1, 2, 3, 4])
        hold.release()


@pytest.mark.parametrize("ring", [TINY, 1 << 20], ids=["from history", "from the ring"])
async def test_a_moment_is_the_place_behind_which_it_begins(logs: Logs, ring: int):
    async with logs.relay():
        for number in range(12):
            await logs.record(LogRecorded("i-1", number), LogRecorded("i-2", number), project_id=f"p-{number % 2}")
        logs.rows(
            "update log set ts = timestamptz '2025-11-12T10:00:00Z' + (position - 1) / 4 * interval '1 minute';"
            "update stream set ts = timestamptz '2025-11-12T10:05:00Z'; update head set ts = '2025-11-12T10:05:00Z'"
        )
        async with logs.hub(ring_bytes=ring) as hub:
            for feed, key in (("logs", "i-2"), ("stream", "i-1"), ("project", "p-1"), ("everything", "")):
                declared = logs.feeds[feed]
                walked = await Walker(declared, key, 1000).walk(hub)
                for moment in (
                    datetime(2025, 11, 12, 9, tzinfo=UTC),
                    *(
                        datetime(2025, 11, 12, 10, minute, second, tzinfo=UTC)
                        for minute in range(7)
                        for second in (0, 30)
                    ),
                    datetime(2100, 1, 1, tzinfo=UTC),
                ):
                    strand = await hub.strand(declared, key)
                    place = await hub.before_moment(strand, moment)
                    page = await hub.page(strand, place, 1000)
                    expected = [entry.number for entry in walked if entry.ts >= moment]
                    assert [entry.number for entry in page.entries] == expected, (feed, moment, place)


async def test_a_moment_is_told_by_a_place_of_the_strand_and_never_of_another(logs: Logs):
    async with logs.relay(), logs.hub(ring_bytes=TINY) as hub:
        for number in range(6):
            await logs.record(LogRecorded("i-1", number), project_id=f"p-{number % 2}")
        project = logs.feeds["project"]
        strand = await hub.strand(project, "p-1")
        own = await Walker(project, "p-1").walk(hub)

        places = {await hub.before_moment(strand, ts) for (ts,) in logs.rows("select ts from log")}

        assert {place.number for place in places} == {0, *(entry.number for entry in own[:-1])}


async def test_a_moment_before_all_that_is_kept_is_the_beginning(logs: Logs):
    async with logs.relay(), logs.hub(ring_bytes=TINY) as hub:
        await logs.record(*lines("i-1", range(10)))
        strand = await hub.strand(logs.feed, "i-1")
        logs.rows("delete from log where position <= 5")

        place = await hub.before_moment(strand, datetime(2001, 1, 1, tzinfo=UTC))

        assert place == Cursor(0)
        assert numbers_of((await hub.page(strand, place, 10)).entries) == [5, 6, 7, 8, 9]
        for key in ("nobody", "i-2"):
            empty = await hub.strand(logs.feed, key)
            assert await hub.before_moment(empty, datetime(2001, 1, 1, tzinfo=UTC)) == Cursor(0)
