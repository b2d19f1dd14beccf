"""What is older than the ring: the database answers as the ring would, and says what is gone for good."""

import random
from collections.abc import Iterator

import pytest

from aftercommit.errors import CursorGone, DatabaseUnavailable
from aftercommit.feed import Cursor, LogEvent, Page
from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.feeding import (
    LEVELS,
    Closed,
    LogRecorded,
    Logs,
    Walker,
    all_feeds,
    caught_up,
    lines,
    log_feed,
    log_outbox,
    numbers_of,
)

TINY = 1


@pytest.fixture
def logs(postgres_server: PostgresServerForTests) -> Iterator[Logs]:
    outbox = log_outbox()
    all_feeds(outbox)
    dsn = postgres_server.clone(postgres_server.template_for(outbox))
    yield Logs(dsn)
    postgres_server.drop(dsn)


def mixed(investigation: str, count: int, seed: int = 1) -> list[LogRecorded]:
    """Lines of all levels, sources and services."""
    chance = random.Random(seed)
    return [
        LogRecorded(
            investigation,
            number,
            chance.choices(LEVELS, (50, 40, 8, 2))[0],
            chance.choice(("frontend", "backend")),
            chance.choice(("api", "worker", "react-app")),
        )
        for number in range(count)
    ]


@pytest.mark.contract("L5")
@pytest.mark.parametrize("ring", [TINY, 1 << 20], ids=["from history", "from the ring"])
async def test_a_filtered_page_says_how_far_it_looked(logs: Logs, ring: int):
    async with logs.relay():
        levels = ["INFO", "ERROR", "INFO", "INFO", "ERROR", "INFO"]
        await logs.record(*(LogRecorded("i-1", number, level) for number, level in enumerate(levels)))
        async with logs.hub(ring_bytes=ring) as hub:
            strand = await hub.strand(logs.feed, "i-1")
            errors = logs.feed.chosen({"minLevel": "ERROR"})

            page = await hub.page(strand, Cursor(0), 1, errors)
            assert (numbers_of(page.entries), page.has_more) == ([1], True)
            assert page.next is not None
            assert page.next.number == 2
            page = await hub.page(strand, page.next, 1, errors)
            # The last one there is: looked to the end, where there is nothing more.
            assert (numbers_of(page.entries), page.has_more, page.next) == ([4], False, Cursor(6, strand.head_ts))
            page = await hub.page(strand, Cursor(5), 10, errors)
            assert (list(page.entries), page.has_more, page.next) == ([], False, Cursor(6, strand.head_ts))
            page = await hub.page(strand, Cursor(6), 10, errors)
            assert (list(page.entries), page.has_more, page.next) == ([], False, None)


@pytest.mark.thorough
@pytest.mark.parametrize("window", [8, 1000], ids=["in many rounds", "in few rounds"])
async def test_ring_and_history_answer_alike_whatever_is_asked(
    logs: Logs, window: int, monkeypatch: pytest.MonkeyPatch
):
    """The same questions to a hub that has everything in memory and to one that has nothing there."""
    monkeypatch.setattr("aftercommit.feed.strands.history.WINDOW", window)
    monkeypatch.setattr("aftercommit.feed.strands.history.ROUNDS", 1000)
    chance = random.Random(7)
    async with logs.relay():
        await logs.record(*mixed("i-1", 400))
        await logs.record(Closed("i-1"))
        await logs.record(*mixed("i-1", 200, seed=2))
        async with (
            logs.hub(preload_entries=1000, ring_bytes=1 << 24) as full,
            logs.hub(ring_bytes=TINY) as empty,
        ):
            for feed, key in (("logs", "i-1"), ("stream", "i-1"), ("project", "p-1"), ("everything", "")):
                declared = logs.feeds[feed]
                one, other = await full.strand(declared, key), await empty.strand(declared, key)
                assert (one.head, one.head_ts, one.total, one.epoch) == (
                    other.head,
                    other.head_ts,
                    other.total,
                    other.epoch,
                )
                asked = full.questions
                for _ in range(60):
                    given = random_choice(chance)
                    chosen = declared.chosen(given)
                    after = None if chance.random() < 0.3 else Cursor(chance.randrange(0, 602))
                    limit = chance.choice((1, 2, 10, 100, 1000))
                    upto = chance.choice((None, one.head, chance.randrange(300, 601)))

                    from_ring = await full.page(one, after, limit, chosen, upto=upto)
                    from_history = await empty.page(other, after, limit, chosen, upto=from_ring.head)

                    if from_history.head == from_ring.head:
                        assert plain(from_ring) == plain(from_history), (feed, given, after, limit, upto)
                assert full.questions == asked


def plain(page: Page) -> tuple[object, ...]:
    return (
        [entry.number for entry in page.entries],
        page.has_more,
        page.next,
        page.total,
        [e.body for e in page.entries],
    )


@pytest.mark.thorough
async def test_filters_by_function_are_answered_from_history_too(logs: Logs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aftercommit.feed.strands.history.WINDOW", 16)
    monkeypatch.setattr("aftercommit.feed.strands.history.ROUNDS", 50)
    feed = log_feed(logs.outbox, "by-function", facets={"source": "source", "service": "service", "level": level_of})
    async with logs.relay():
        published = mixed("i-1", 300)
        await logs.record(*published)
        async with logs.hub(feed, ring_bytes=TINY) as hub:
            for given in ({"minLevel": "ERROR"}, {"minLevel": "INFO"}, {"minLevel": "WARN", "source": "frontend"}):
                allowed = LEVELS[LEVELS.index(given["minLevel"]) :]
                expected = [
                    each.number
                    for each in published
                    if each.level in allowed and given.get("source", each.source) == each.source
                ]
                walker = Walker(feed, "i-1", 3, feed.chosen(given))
                assert numbers_of(await walker.walk(hub)) == expected
                for limit in (5, 1000):
                    newest = await hub.page(await hub.strand(feed, "i-1"), None, limit, walker.chosen)
                    assert numbers_of(newest.entries) == expected[-limit:]


def level_of(event: LogEvent[LogRecorded]) -> str:
    return event.payload.level


async def test_a_search_that_looks_at_too_much_stops_and_says_where(logs: Logs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aftercommit.feed.strands.history.WINDOW", 10)
    monkeypatch.setattr("aftercommit.feed.strands.history.ROUNDS", 3)
    feed = log_feed(logs.outbox, "by-function", facets={"level": level_of}, filters=logs.feed.filters[:1])
    async with logs.relay():
        await logs.record(*lines("i-1", range(99)), LogRecorded("i-1", 99, "ERROR"))
        async with logs.hub(feed, ring_bytes=TINY) as hub:
            walker = Walker(feed, "i-1", 5, feed.chosen({"minLevel": "ERROR"}))

            page = await walker.poll(hub)

            assert (list(page.entries), page.has_more) == ([], True)
            assert page.next is not None
            assert page.next.number == 30
            assert numbers_of(await walker.walk(hub)) == [99]


async def test_a_cursor_beyond_the_end_of_the_log_is_gone(logs: Logs):
    async with logs.relay(), logs.hub() as hub:
        await logs.record(*lines("i-1", range(3)))
        for feed, key in (("logs", "i-1"), ("project", "p-1"), ("everything", ""), ("logs", "nobody")):
            strand = await hub.strand(logs.feeds[feed], key)
            with pytest.raises(CursorGone, match="the newest event is") as caught:
                await hub.page(strand, Cursor(1000), 10)
            assert caught.value.reason == "epoch"
            # Who has seen more than there is has seen all there is.
            assert caught.value.restart.number == (0 if key == "nobody" else 3)


async def test_a_cursor_beyond_the_end_of_a_log_whose_next_life_is_due_is_to_be_tried_again(logs: Logs):
    async with logs.relay(), logs.hub() as hub:
        await logs.record(*lines("i-1", range(3)))
        logs.rows("update life set timeline = 4711")
        for feed, key in (("logs", "i-1"), ("everything", "")):
            strand = await hub.strand(logs.feeds[feed], key)
            with pytest.raises(DatabaseUnavailable, match="was restored or lags behind"):
                await hub.page(strand, Cursor(1000), 10)


async def test_a_cursor_with_a_time_is_led_to_the_last_event_that_its_reader_can_have_seen(logs: Logs):
    """Nobody noticed the restore, and other events have been written since."""
    async with logs.relay(), logs.hub() as hub:
        await logs.record(*lines("i-1", range(2)))
        seen = (await hub.page(await hub.strand(logs.feed, "i-1"), Cursor(0), 10)).entries[-1].ts
        await logs.record(*lines("i-1", range(2, 5)))
        strand = await hub.strand(logs.feed, "i-1")
        with pytest.raises(CursorGone) as caught:
            await hub.page(strand, Cursor(1000, seen), 10)

        assert caught.value.restart.number == 2


@pytest.mark.parametrize("ring", [TINY, 1 << 20], ids=["from history", "from the ring"])
async def test_a_cursor_whose_time_is_not_that_of_its_event_is_gone(logs: Logs, ring: int):
    async with logs.relay(), logs.hub(ring_bytes=ring) as hub:
        await logs.record(*lines("i-1", range(3)))
        strand = await hub.strand(logs.feed, "i-1")
        cursor = (await hub.page(strand, Cursor(0), 2)).next
        assert cursor is not None
        assert cursor.ts is not None
        foreign = Cursor(2, cursor.ts.replace(year=2020))

        with pytest.raises(CursorGone, match="does not have the time") as caught:
            await hub.page(strand, foreign, 10)

        assert caught.value.reason == "epoch"
        assert numbers_of((await hub.page(strand, caught.value.restart, 10)).entries) == [0, 1, 2]
        assert numbers_of((await hub.page(strand, cursor, 10)).entries) == [2]


@pytest.mark.parametrize("warm", [True, False], ids=["while the strand is kept", "before it is loaded"])
async def test_what_retention_has_dropped_is_said_and_one_can_go_on_from_the_oldest(logs: Logs, warm: bool):
    async with logs.relay(), logs.hub(ring_bytes=TINY) as hub:
        await logs.record(*lines("i-1", range(10)))
        before = await Walker(logs.feed, "i-1", 3).poll(hub) if warm else None
        logs.rows("delete from log where position <= 5")
        strand = await hub.strand(logs.feed, "i-1")

        stale = before.next if before is not None else Cursor(3)
        with pytest.raises(CursorGone, match="events after 3 are no longer kept: the oldest is 6") as caught:
            await hub.page(strand, stale, 10)
        assert caught.value.reason == "retention"
        text = logs.feed.cursor.format(caught.value.restart)
        page = await hub.page(strand, logs.feed.cursor.parse(text), 10)
        assert numbers_of(page.entries) == [5, 6, 7, 8, 9]
        # From the beginning means from the oldest there is, and nobody who has seen nothing has missed anything.
        assert numbers_of((await hub.page(strand, Cursor(0), 10)).entries) == [5, 6, 7, 8, 9]
        assert numbers_of((await hub.page(strand, Cursor(5), 10)).entries) == [5, 6, 7, 8, 9]


async def test_a_stream_of_which_nothing_is_kept_still_knows_its_last_number(logs: Logs):
    async with logs.relay():
        await logs.record(*lines("i-1", range(4)))
        logs.rows("delete from log")
        async with logs.hub() as hub:
            strand = await hub.strand(logs.feed, "i-1")
            assert (strand.head, strand.total, list(strand.ring.entries)) == (4, 0, [])
            assert (await hub.page(strand, Cursor(4), 10)).next is None
            with pytest.raises(CursorGone):
                await hub.page(strand, Cursor(3), 10)

            await logs.record(LogRecorded("i-1", 4))
            await caught_up(hub, logs, head=5)
            assert numbers_of((await hub.page(strand, Cursor(4), 10)).entries) == [4]


async def test_a_page_of_large_items_is_cut_before_it_fills_the_memory(logs: Logs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aftercommit.feed.strands.history.BYTES_AT_ONCE", 50_000)
    async with logs.relay(), logs.hub(ring_bytes=TINY) as hub:
        await logs.record(*lines("i-1", range(30), message="x" * 10_000))
        walker = Walker(logs.feed, "i-1", 30)

        page = await walker.poll(hub)

        assert 1 < len(page.entries) < 10
        assert page.has_more
        assert numbers_of(await walker.walk(hub)) == list(range(30))


def random_choice(chance: random.Random) -> dict[str, str]:
    """Filters, some of them or none."""
    given = {}
    if chance.random() < 0.6:
        given["minLevel"] = chance.choice(LEVELS)
    if chance.random() < 0.4:
        given["source"] = chance.choice(("frontend", "backend"))
    if chance.random() < 0.4:
        given["service"] = chance.choice(("api", "worker", "nowhere"))
    return given
