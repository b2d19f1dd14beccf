"""Feeds below HTTP: what a hub serves from its rings and from history, that both say the same, and what it costs."""

import asyncio
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from aftercommit.errors import DatabaseUnavailable, UnknownStrand
from aftercommit.feed import EVERYTHING, Cursor
from aftercommit.feed.endpoints.etag import tag_of
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.service import wait_for_any
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.signals import Signals
from tests.support.feeding import (
    LEVELS,
    Closed,
    LogRecorded,
    Logs,
    Walker,
    all_feeds,
    caught_up,
    lines,
    log_outbox,
    numbers_of,
    until,
)

TINY = 1


@pytest.fixture
def logs(postgres_server: PostgresServerForTests) -> Iterator[Logs]:
    outbox = log_outbox()
    all_feeds(outbox)
    dsn = postgres_server.clone(postgres_server.template_for(outbox))
    yield Logs(dsn)
    postgres_server.drop(dsn)


@pytest.mark.contract("L3")
async def test_without_a_cursor_come_the_newest_in_order(logs: Logs):
    async with logs.relay(), logs.hub() as hub:
        await logs.record(*lines("i-1", range(30)))
        strand = await hub.strand(logs.feed, "i-1")

        page = await hub.page(strand, None, 10)

        assert numbers_of(page.entries) == list(range(20, 30))
        assert (page.has_more, page.total, page.head) == (False, 30, 30)
        assert page.next == Cursor(30, page.entries[-1].ts)


@pytest.mark.contract("L3", "L5", "T4")
@pytest.mark.parametrize("ring", [TINY, 1 << 20], ids=["from history", "from the ring"])
@pytest.mark.parametrize(("feed", "key"), [("logs", "i-1"), ("stream", "i-1"), ("project", "p-1"), ("everything", "")])
@pytest.mark.thorough
async def test_a_walk_is_complete_whatever_its_pages(logs: Logs, feed: str, key: str, ring: int):
    async with logs.relay():
        await logs.record(*lines("i-1", range(50)))
        await logs.record(*lines("i-2", range(5)), project_id="p-2")
        await logs.record(*lines("i-1", range(50, 101)))
        expected = [*range(50), *(range(5) if feed == "everything" else ()), *range(50, 101)]
        async with logs.hub(ring_bytes=ring) as hub:
            for limit in (1, 7, 100, 1000):
                walker = Walker(logs.feeds[feed], key, limit)
                entries = await walker.walk(hub)

                assert numbers_of(entries) == expected
                assert [entry.number for entry in entries] == sorted({entry.number for entry in entries})
                assert walker.last is not None
                assert walker.last.has_more is False
                again = await walker.poll(hub)
                assert (list(again.entries), again.next, again.has_more) == ([], None, False)


@pytest.mark.contract("L5")
async def test_a_strand_without_events_has_an_empty_page_and_no_cursor(logs: Logs):
    async with logs.hub() as hub:
        strand = await hub.strand(logs.feed, "nobody")

        for after in (None, Cursor(0)):
            page = await hub.page(strand, after, 10)
            assert (list(page.entries), page.next, page.has_more, page.total) == ([], None, False, 0)


@pytest.mark.contract("L7")
async def test_a_warm_strand_costs_no_query_for_head_tag_or_new_events(logs: Logs):
    async with logs.relay(), logs.hub() as hub:
        await logs.record(*lines("i-1", range(10)))
        strand = await hub.strand(logs.feed, "i-1")
        page = await hub.page(strand, None, 10)
        asked = hub.questions
        tag = tag_of(strand, page.next, 10, EVERYTHING, "reader")

        for _ in range(5):
            strand = await hub.strand(logs.feed, "i-1")
            assert tag_of(strand, page.next, 10, EVERYTHING, "reader") == tag
        await logs.record(*lines("i-1", range(10, 15)))
        await caught_up(hub, logs)
        strand = await hub.strand(logs.feed, "i-1")
        assert tag_of(strand, page.next, 10, EVERYTHING, "reader") != tag
        page = await hub.page(strand, page.next, 10)

        assert numbers_of(page.entries) == list(range(10, 15))
        assert hub.questions == asked == 1


@pytest.mark.contract("L6")
async def test_events_between_tag_and_page_are_in_the_page_but_never_only_in_the_tag(logs: Logs):
    """Whoever holds the tag that came with a page has everything that the tag covers."""
    async with logs.relay(), logs.hub() as hub:
        await logs.record(*lines("i-1", range(3)))
        strand = await hub.strand(logs.feed, "i-1")
        seen = tag_of(strand, Cursor(0), 10, EVERYTHING, "r")
        bound = strand.head
        await logs.record(LogRecorded("i-1", 3))
        await caught_up(hub, logs)

        bounded = await hub.page(strand, Cursor(0), 10, upto=bound)
        assert numbers_of(bounded.entries) == [0, 1, 2]
        assert tag_of(strand, Cursor(0), 10, EVERYTHING, "r", bounded.head) == seen
        assert tag_of(strand, Cursor(0), 10, EVERYTHING, "r") != seen
        free = await hub.page(strand, Cursor(0), 10)
        assert numbers_of(free.entries) == [0, 1, 2, 3]
        assert tag_of(strand, Cursor(0), 10, EVERYTHING, "r", free.head) != seen


async def test_an_event_appended_while_a_strand_is_loaded_is_there_once(logs: Logs):
    for point in ("feed.loading", "feed.loaded"):
        signals = Signals()
        async with logs.relay(), logs.hub(signals=signals) as hub:
            await signals.wait("feed.idle")
            key = f"by {point}"
            before = logs.appended
            await logs.record(*lines(key, range(3)))
            hold = signals.hold(point)
            loading = asyncio.create_task(hub.strand(logs.feed, key))
            await hold.wait()
            tailed = signals.totals["feed.tailed"]
            await logs.record(*lines(key, range(3, 6)))
            await signals.wait_total("feed.tailed", max(tailed, logs.appended - before))
            hold.release()
            strand = await loading

            assert numbers_of((await hub.page(strand, Cursor(0), 10)).entries) == list(range(6))
            assert (strand.head, strand.total) == (6, 6)
            await logs.record(LogRecorded(key, 6))
            await caught_up(hub, logs, key=key, head=7)
            assert numbers_of((await hub.page(strand, Cursor(0), 10)).entries) == list(range(7))


async def test_many_who_ask_for_a_new_strand_cost_one_query(logs: Logs):
    async with logs.relay(), logs.hub() as hub:
        await logs.record(*lines("i-1", range(3)))

        strands = await asyncio.gather(*(hub.strand(logs.feed, "i-1") for _ in range(50)))

        assert len({id(strand) for strand in strands}) == 1
        assert hub.questions == 1


async def test_one_who_gives_up_waiting_for_a_strand_takes_it_from_nobody(logs: Logs):
    signals = Signals()
    async with logs.hub(signals=signals) as hub:
        hold = signals.hold("feed.loading")
        impatient = asyncio.create_task(hub.strand(logs.feed, "i-1"))
        patient = asyncio.create_task(hub.strand(logs.feed, "i-1"))
        await hold.wait()
        impatient.cancel()
        await asyncio.sleep(0)
        hold.release()

        assert (await patient).head == 0
        with pytest.raises(asyncio.CancelledError):
            await impatient


@pytest.mark.thorough
@pytest.mark.contract("T3", "T4")
async def test_pollers_through_two_processes_see_everything_once_in_whatever_order_writers_commit(logs: Logs):
    """Writers hold their transactions open over each other; pollers of all kinds go from hub to hub."""
    rounds, chance = 30, random.Random(3)
    async with logs.relay(), logs.hub() as one, logs.hub(ring_bytes=20_000, preload_entries=5) as other:
        hubs = (one, other)
        errors = logs.feed.chosen({"minLevel": "ERROR"})
        walkers = [
            Walker(logs.feeds[feed], key, limit, chosen)
            for feed, key in (("logs", "i-1"), ("project", "p-1"), ("everything", ""))
            for limit, chosen in ((1, EVERYTHING), (3, errors), (50, EVERYTHING), (7, errors))
        ]
        finished = asyncio.Event()

        async def poll(walker: Walker) -> None:
            while not finished.is_set():
                await walker.poll(chance.choice(hubs))
                await asyncio.sleep(0)
            await walker.walk(chance.choice(hubs))

        polling = [asyncio.create_task(poll(walker)) for walker in walkers]
        count = await _write_out_of_order(logs, rounds, chance)
        await logs.signals.wait_total("relay.appended", count)
        for hub in hubs:
            await caught_up(hub, logs, "everything", "", count)
            await caught_up(hub, logs, "logs", "i-1", count)
        finished.set()
        await asyncio.wait_for(asyncio.gather(*polling), 60)

        for walker in walkers:
            column = "stream_seq" if walker.feed.select.by_stream else "position"
            wanted = " where payload->>'level' = 'ERROR'" if walker.chosen is errors else ""
            expected = [row[0] for row in logs.rows(f"select {column} from log{wanted} order by {column}")]
            assert [entry.number for entry in walker.seen] == expected


async def _write_out_of_order(logs: Logs, rounds: int, chance: random.Random) -> int:
    """Transactions that begin in one order and commit in another; some roll back. Returns how many events there are."""
    for number in range(rounds):
        connections = [logs.connect() for _ in range(3)]
        for each in connections:
            events = [
                LogRecorded("i-1", number, chance.choice(LEVELS), message="x" * chance.randrange(50))
                for _ in range(chance.randrange(1, 4))
            ]
            logs.outbox.publish(each, events, project_id="p-1")
        chance.shuffle(connections)
        for place, each in enumerate(connections):
            if place == 0 and number % 3 == 0:
                each.rollback()
            else:
                each.commit()
            each.close()
            await asyncio.sleep(0.002)
    return int(logs.rows("select (select count(*) from outbox) + (select count(*) from log)")[0][0])


@pytest.mark.contract("T3")
async def test_a_late_commit_gets_a_number_behind_all_that_was_seen(logs: Logs):
    async with logs.relay(), logs.hub() as hub:
        walker = Walker(logs.feed, "i-1")
        with logs.connect() as slow:
            logs.outbox.publish(slow, LogRecorded("i-1", 1), project_id="p-1")
            await logs.record(LogRecorded("i-1", 2))
            await caught_up(hub, logs, head=1)
            assert numbers_of(await walker.walk(hub)) == [2]
            slow.commit()
        logs.appended += 1
        await logs.signals.wait_total("relay.appended", 2)
        await caught_up(hub, logs, head=2)

        assert numbers_of(await walker.walk(hub)) == [2, 1]


@pytest.mark.contract("L4")
async def test_neither_a_skewed_clock_nor_a_late_arrival_hides_an_event_behind_a_cursor(logs: Logs):
    """The producers' clocks are hours apart; the log's own time and numbers rise together all the same."""
    recorded = logs.outbox.registry.named("log.recorded")
    async with logs.relay(), logs.hub() as hub:
        walker = Walker(logs.feed, "i-1", 2)
        for number, hours in enumerate((0, -48, 48, -1, 100)):
            moment = datetime.now(UTC) + timedelta(hours=hours)
            await logs.record(recorded.draft(LogRecorded("i-1", number), occurred_at=moment))
            await caught_up(hub, logs)
            await walker.walk(hub)

        assert numbers_of(walker.seen) == [0, 1, 2, 3, 4]
        places = [(entry.ts, entry.number) for entry in walker.seen]
        assert places == sorted(places)
        cursors = [logs.feed.cursor.format(entry) for entry in walker.seen]
        assert cursors == sorted(cursors)


async def test_a_cursor_from_a_process_that_is_ahead_is_not_gone(logs: Logs):
    signals = Signals()
    async with logs.relay(), logs.hub() as ahead, logs.hub(signals=signals) as behind:
        await logs.record(LogRecorded("i-1", 0))
        await behind.strand(logs.feed, "i-1")
        await caught_up(behind, logs)
        hold = signals.hold("feed.read")
        await hold.wait()
        await logs.record(LogRecorded("i-1", 1), LogRecorded("i-1", 2))
        walker = Walker(logs.feed, "i-1", 2)
        await caught_up(ahead, logs)
        await walker.walk(ahead)
        assert numbers_of(walker.seen) == [0, 1, 2]

        page = await walker.poll(behind)
        assert (list(page.entries), page.next, page.has_more, page.head) == ([], None, False, 1)
        hold.release()
        await caught_up(behind, logs)
        assert (await walker.poll(behind)).next is None
        await logs.record(LogRecorded("i-1", 3))
        await caught_up(behind, logs)

        assert numbers_of((await walker.poll(behind)).entries) == [3]


async def test_events_of_other_types_in_a_stream_are_passed_by(logs: Logs):
    async with logs.relay(), logs.hub() as hub:
        await logs.record(LogRecorded("i-1", 0), Closed("i-1"), LogRecorded("i-1", 1))
        cold = await hub.strand(logs.feed, "i-1")
        assert (cold.head, cold.total) == (3, 2)
        await logs.record(Closed("i-1"), LogRecorded("i-1", 2))
        await caught_up(hub, logs, head=5)

        assert (cold.head, cold.total) == (5, 3)
        page = await hub.page(cold, Cursor(0), 10)
        assert [entry.number for entry in page.entries] == [1, 3, 5]
        everything = await hub.strand(logs.feeds["stream"], "i-1")
        assert (everything.head, everything.total) == (5, 5)


async def test_a_key_that_cannot_be_one_is_unknown(logs: Logs):
    async with logs.hub() as hub:
        for feed, key in (
            ("logs", ""),
            ("logs", "x" * 256),
            ("logs", "a\x00"),
            ("logs", "\ud800"),
            ("everything", "x"),
        ):
            with pytest.raises(UnknownStrand):
                await hub.strand(logs.feeds[feed], key)
        assert hub.strands == 0


async def test_strands_that_nobody_asks_for_are_dropped_and_those_who_wait_keep_theirs(logs: Logs):
    async with logs.relay(), logs.hub(idle_seconds=0.2) as hub:
        await logs.record(*lines("i-1", range(3)), *lines("i-2", range(3)))
        waited = await hub.strand(logs.feed, "i-1")
        # Before anything else is waited for: as soon as nobody asks for them, both could be dropped.
        waiting = asyncio.create_task(wait_for_any(600, waited.changed()))
        held = await hub.strand(logs.feed, "i-3")
        with held.held():
            idle = await hub.strand(logs.feed, "i-2")
            await until(lambda: not idle.current)
            assert waited.current
            assert held.current
            assert hub.strands == 2
        await logs.record(LogRecorded("i-1", 3))
        await asyncio.wait_for(waiting, 60)

        assert numbers_of((await hub.page(idle, Cursor(2), 10)).entries) == [2]


async def test_there_are_never_more_strands_than_allowed(logs: Logs):
    async with logs.hub(max_strands=10) as hub:
        first = await hub.strand(logs.feed, "i-0")
        for number in range(1, 50):
            await hub.strand(logs.feed, f"i-{number}")
            await hub.strand(logs.feed, "i-0")

        assert hub.strands == 10
        assert first.current


async def test_without_its_database_a_hub_serves_what_it_has_and_says_what_it_cannot(
    logs: Logs, postgres_server: PostgresServerForTests
):
    async with logs.relay():
        await logs.record(*lines("i-1", range(3)))
    async with logs.hub() as hub:
        strand = await hub.strand(logs.feed, "i-1")
        name = logs.rows("select current_database()")[0][0]
        with psycopg.connect(postgres_server.dsn, autocommit=True) as operator:
            operator.execute(f'alter database "{name}" allow_connections false'.encode())
            operator.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", [name])
            await until(lambda: not hub.is_following)

            assert numbers_of((await hub.page(strand, Cursor(0), 10)).entries) == [0, 1, 2]
            with pytest.raises(DatabaseUnavailable):
                await hub.strand(logs.feed, "i-2")
            operator.execute(f'alter database "{name}" allow_connections true'.encode())
        async with logs.relay():
            await logs.record(LogRecorded("i-1", 3))
        await caught_up(hub, logs)
        assert hub.is_following
        assert strand.current
        assert (await hub.strand(logs.feed, "i-2")).head == 0


async def test_a_strand_that_is_overtaken_while_it_is_loaded_is_loaded_anew(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("aftercommit.feed.strands.strand.PENDING_BYTES", 2000)
    signals = Signals()
    async with logs.relay(), logs.hub(signals=signals) as hub:
        await signals.wait("feed.idle")
        await logs.record(*lines("i-1", range(3)))
        hold = signals.hold("feed.loaded")
        loading = asyncio.create_task(hub.strand(logs.feed, "i-1"))
        await hold.wait()
        overtaken = hub._kept.find(logs.feed, "i-1")
        assert overtaken is not None
        await logs.record(*lines("i-1", range(3, 20)))
        await signals.wait_total("feed.tailed", 17)
        hold.release()

        strand = await loading

        assert not overtaken.current
        assert strand is not overtaken
        assert numbers_of((await hub.page(strand, Cursor(0), 100)).entries) == list(range(20))
        await logs.record(LogRecorded("i-1", 20))
        await caught_up(hub, logs)


async def test_an_error_beside_the_tailers_ends_a_hub_and_is_raised(logs: Logs, monkeypatch: pytest.MonkeyPatch):
    async def broken(hub: FeedHub) -> None:
        raise RuntimeError("strands cannot be dropped")

    monkeypatch.setattr(FeedHub, "_drop_idle", broken)
    hub = FeedHub(logs.database, [logs.feed])
    await hub.start()
    with pytest.raises(RuntimeError, match="strands cannot be dropped"):
        await hub.wait()
