"""Feeds by audience: each reader hears of what it should, of all of it, in order and once, and of nothing else."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from aftercommit.errors import CursorGone, UnknownStrand
from aftercommit.feed import EVERYTHING, Chosen, Cursor, Feed
from aftercommit.feed.strands import history as history_module
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.postgres.statements import Statements
from aftercommit.service import wait_for_any
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.signals import Signals
from tests.support.feeding import Walker
from tests.support.hearing import TaskArchived, TaskChanged, Tasks, changes, numbers_of, task_outbox

TINY = 1
READERS = ["ann", "ben", "cleo", "dan"]


@pytest.fixture
def tasks(postgres_server: PostgresServerForTests) -> Iterator[Tasks]:
    dsn = postgres_server.clone(postgres_server.template_for(task_outbox()))
    yield Tasks(dsn)
    postgres_server.drop(dsn)


def users(names: list[str]) -> list[str]:
    return [f"user:{name}" for name in names]


def expected(tasks: Tasks, reader: str, where: str = "true") -> list[int]:
    """The positions of which a reader hears, as the log has it."""
    return [
        row[0]
        for row in tasks.rows(f"select position from log where %s = any(audience) and {where} order by 1", [reader])
    ]


async def knows(hub: FeedHub, feed: Feed, key: str, head: int) -> None:
    """Until the hub has come to this head."""
    strand = await hub.strand(feed, key)
    async with asyncio.timeout(60):
        while strand.head < head:
            await wait_for_any(20, strand.changed())


@pytest.mark.contract("T3", "T4")
@pytest.mark.parametrize("ring", [TINY, 1 << 20], ids=["from history", "from the ring"])
@pytest.mark.parametrize(("feed", "key"), [("mine", "ann"), ("by_time", "user:ann")])
@pytest.mark.thorough
async def test_a_walk_is_complete_whatever_its_pages_and_shows_nothing_of_others(
    tasks: Tasks, feed: str, key: str, ring: int
):
    async with tasks.relay():
        for number in range(40):
            readers = [each for place, each in enumerate(READERS) if number % (place + 1) == 0]
            await tasks.record(TaskChanged(f"t-{number % 3}", number), audience=users(readers[number % 2 :]))
        mine = expected(tasks, "user:ann")
        assert mine == list(range(1, 41, 2))
        for limit in (1, 3, 50):
            async with tasks.hub(ring_bytes=ring, preload_entries=1 if ring == TINY else 100) as hub:
                walker = Walker(tasks.feeds[feed], key, limit)
                assert [entry.number for entry in await walker.walk(hub)] == mine
                again = Walker(tasks.feeds[feed], key, limit)
                again.cursor = Cursor(mine[9], walker.seen[9].ts if feed == "by_time" else None)
                assert [entry.number for entry in await again.walk(hub)] == mine[10:]


@pytest.mark.thorough
@pytest.mark.contract("T3", "T4", "T5")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_readers_who_poll_miss_nothing_while_writers_commit_out_of_order_and_relays_take_over(
    tasks: Tasks, seed: int
):
    """Transactions are open over each other, relays come and go, readers go from server process to server process."""
    chance, finished = random.Random(seed), asyncio.Event()
    async with AsyncExitStack() as stack:
        hubs = [
            await stack.enter_async_context(tasks.hub()),
            await stack.enter_async_context(tasks.hub(ring_bytes=5_000, preload_entries=3)),
        ]
        odd = tasks.feeds["filtered"].chosen({"parity": "odd"})
        walkers = [
            Walker(tasks.feeds[feed], name if feed != "by_time" else f"user:{name}", limit, chosen)
            for name in READERS
            for feed, limit, chosen in (("mine", 2, EVERYTHING), ("by_time", 50, EVERYTHING), ("filtered", 3, odd))
        ]

        async def poll(walker: Walker) -> None:
            while not finished.is_set():
                await walker.poll(chance.choice(hubs))
                await asyncio.sleep(0)

        polling = [asyncio.create_task(poll(walker)) for walker in walkers]
        carrying = asyncio.create_task(_relays_in_turns(tasks, finished))
        await _write_out_of_order(tasks, chance)
        await tasks.value_becomes("select count(*) from outbox", 0)
        for hub in hubs:
            for walker in walkers:
                where = "event_type = 'task.changed'" if walker.feed.name == "filtered" else "true"
                reader = walker.key if walker.feed.name == "by_time" else f"user:{walker.key}"
                await knows(hub, walker.feed, walker.key, max(expected(tasks, reader, where), default=0))
        finished.set()
        await asyncio.wait_for(asyncio.gather(*polling, carrying), 60)
        for walker in walkers:
            await walker.walk(hubs[1])

        for walker in walkers:
            reader = walker.key if walker.feed.name == "by_time" else f"user:{walker.key}"
            where = "true"
            if walker.chosen is odd:
                where = "event_type = 'task.changed' and (payload ->> 'number')::int % 2 = 1".replace("%", "%%")
            assert [entry.number for entry in walker.seen] == expected(tasks, reader, where)
    assert tasks.rows("select position, reader from audience order by 1, 2") == tasks.rows(
        'select position, reader from log, unnest(audience) reader order by 1, reader collate "C"'
    )


async def _relays_in_turns(tasks: Tasks, finished: asyncio.Event) -> None:
    """Two relays at a time, which lose their lanes to somebody who dies, leave, and are followed by others."""
    steal = Statements(tasks.outbox.shape)["kit_steal_lanes"].decode()
    for turn in itertools.count(1):
        async with tasks.relay(signals=Signals()), tasks.relay(signals=Signals()):
            for _ in range(3):
                # A little longer in each turn: on a slow machine too they have time for their work in the end.
                await asyncio.wait([asyncio.create_task(finished.wait())], timeout=0.1 * turn)
                if finished.is_set():
                    return
                await asyncio.to_thread(tasks.rows, steal)


async def _write_out_of_order(tasks: Tasks, chance: random.Random) -> None:
    for number in range(25):
        connections = [tasks.connect() for _ in range(3)]
        for each in connections:
            for _ in range(chance.randrange(1, 4)):
                kind: Callable[..., Any] = chance.choice([TaskChanged, TaskChanged, TaskArchived])
                readers = users(chance.sample(READERS, chance.randrange(len(READERS) + 1)))
                task = f"t-{chance.randrange(20)}"
                tasks.outbox.publish(each, kind(task, number), audience=readers)
        chance.shuffle(connections)
        for place, each in enumerate(connections):
            if place == 0 and number % 3 == 0:
                each.rollback()
            else:
                each.commit()
            each.close()
            await asyncio.sleep(0.002)


@pytest.mark.contract("T3")
async def test_a_late_commit_is_never_hidden_from_an_after_id_poller(tasks: Tasks):
    async with tasks.relay(), tasks.hub() as hub:
        walker = Walker(tasks.feeds["mine"], "ann")
        with tasks.connect() as slow:
            tasks.outbox.publish(slow, TaskChanged("t-1", 1), audience=["user:ann"])
            await tasks.record(TaskChanged("t-2", 2), audience=["user:ann", "user:ben"])
            await knows(hub, tasks.feeds["mine"], "ann", 1)
            assert numbers_of(await walker.walk(hub)) == [2]
            slow.commit()
        await knows(hub, tasks.feeds["mine"], "ann", 2)

        assert numbers_of(await walker.walk(hub)) == [2, 1]


async def test_what_everybody_hears_of_is_made_once_for_all_who_read(tasks: Tasks):
    made: list[int] = []

    def item(event: Any) -> dict[str, Any]:
        made.append(event.position)
        return {"number": event.payload.number}

    feed = tasks.feeds["mine"]
    feed.item = item
    async with tasks.relay(), tasks.hub(feed) as hub:
        strands = [await hub.strand(feed, name) for name in READERS]
        await tasks.record(TaskChanged("t-1"), audience=users([*READERS, "somebody who does not read"]))
        for name in READERS:
            await knows(hub, feed, name, 1)

    assert made == [1]
    assert len({id(strand.head_ts) for strand in strands}) == 1


async def test_a_warm_reader_costs_no_question_when_news_comes(tasks: Tasks):
    async with tasks.relay(), tasks.hub() as hub:
        feed = tasks.feeds["mine"]
        strand = await hub.strand(feed, "ann")
        asked = hub.questions
        for number in range(5):
            await tasks.record(TaskChanged("t-1", number), audience=users(["ann"]))
        await knows(hub, feed, "ann", 5)

        assert numbers_of((await hub.page(strand, Cursor(2), 10)).entries) == [2, 3, 4]
        assert hub.questions == asked


@pytest.mark.parametrize("ring", [TINY, 1 << 20], ids=["from history", "from the ring"])
@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"kind": "rare"}, lambda number: number % 50 == 7),
        ({"parity": "odd"}, lambda number: number % 2 == 1),
        ({"kind": "rare", "parity": "odd"}, lambda number: number % 50 == 7),
        ({"kind": "rare", "parity": "even"}, lambda number: False),
    ],
)
@pytest.mark.thorough
async def test_filters_find_what_matches_in_bounded_rounds_and_the_cursor_moves(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, ring: int, asked: dict[str, str], wanted: Callable[[int], bool]
):
    monkeypatch.setattr(history_module, "WINDOW", 10)
    monkeypatch.setattr(history_module, "ROUNDS", 50)
    feed = tasks.feeds["filtered"]
    chosen = feed.chosen(asked)
    async with tasks.relay():
        events = [TaskChanged("t-1", number, "rare" if number % 50 == 7 else "note") for number in range(200)]
        await tasks.record(*events, audience=users(["ann", "ben"]))
        await tasks.record(*changes("t-2", range(200, 220), kind="rare"), audience=users(["ben"]))
        await tasks.record(TaskArchived("t-2"), TaskChanged("t-1", 300), audience=users(["ann"]))
        async with tasks.hub(ring_bytes=ring, preload_entries=1 if ring == TINY else 300) as hub:
            walker = Walker(feed, "ann", 5, chosen)
            matching = [number for number in [*range(200), 300] if wanted(number)]
            assert numbers_of(await walker.walk(hub)) == matching
            assert walker.cursor is not None
            assert walker.cursor.number == 222
            newest = await hub.page(await hub.strand(feed, "ann"), None, 3, chosen)
            assert numbers_of(newest.entries) == matching[-3:]


async def test_a_search_that_looks_at_too_much_stops_and_says_where(tasks: Tasks, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history_module, "WINDOW", 10)
    monkeypatch.setattr(history_module, "ROUNDS", 2)
    feed = tasks.feeds["filtered"]
    async with tasks.relay(), tasks.hub(ring_bytes=TINY, preload_entries=1) as hub:
        await tasks.record(*changes("t-1", range(50)), audience=users(["ann"]))
        strand = await hub.strand(feed, "ann")

        page = await hub.page(strand, Cursor(0), 5, feed.chosen({"kind": "rare"}))

        assert (list(page.entries), page.has_more) == ([], True)
        assert page.next is not None
        assert page.next.number == 20


@pytest.mark.parametrize("ring", [TINY, 1 << 20], ids=["from history", "from the ring"])
@pytest.mark.thorough
async def test_one_reads_back_and_from_a_moment_on_too(tasks: Tasks, ring: int):
    feed = tasks.feeds["by_time"]
    async with tasks.relay(), tasks.hub(ring_bytes=ring, preload_entries=1 if ring == TINY else 100) as hub:
        for number in range(12):
            await tasks.record(TaskChanged("t-1", number), audience=users(["ann"] if number % 3 == 0 else ["ben"]))
        await knows(hub, feed, "user:ann", 10)
        strand = await hub.strand(feed, "user:ann")

        page = await hub.page_before(strand, Cursor(10), 2)
        assert numbers_of(page.entries) == [3, 6]
        ts = tasks.value("select ts from log where position = 6")
        place = await hub.before_moment(strand, ts)
        assert numbers_of((await hub.page(strand, place, 10)).entries) == [6, 9]


async def test_past_retention_and_after_a_restore_a_reader_is_told(tasks: Tasks):
    feed = tasks.feeds["by_time"]
    async with tasks.relay(), tasks.hub(ring_bytes=TINY, preload_entries=1) as hub:
        await tasks.record(*changes("t-1", range(10)), audience=users(["ann"]))
        strand = await hub.strand(feed, "user:ann")
        tasks.rows("delete from log where position <= 5")
        tasks.rows("delete from audience where position <= 5")

        with pytest.raises(CursorGone, match="the oldest is 6") as gone:
            await hub.page(strand, Cursor(3), 10)
        assert numbers_of((await hub.page(strand, gone.value.restart, 10)).entries) == [5, 6, 7, 8, 9]
        with pytest.raises(CursorGone) as another:
            await hub.page(strand, Cursor(8, datetime(2001, 1, 1, tzinfo=UTC)), 10)
        assert (gone.value.reason, another.value.reason) == ("retention", "epoch")


async def test_a_reader_of_whom_nobody_has_heard_has_an_empty_feed(tasks: Tasks):
    async with tasks.relay(), tasks.hub() as hub:
        await tasks.record(TaskChanged("t-1"), audience=["user:ann", "ann", "team:ann", "user:"])
        for key in ("nobody", "team:ann", "user:ann", "%", "an"):
            page = await hub.page(await hub.strand(tasks.feeds["mine"], key), Cursor(0), 10)
            assert (list(page.entries), page.next) == ([], None)
        for key in ("", "x" * 251, "\x00", "\ud800"):
            with pytest.raises(UnknownStrand):
                await hub.strand(tasks.feeds["mine"], key)


class TestModel:
    """Random publishes against a model: the audience of each event is the one it was published with."""

    @pytest.mark.thorough
    @pytest.mark.parametrize("seed", range(5))
    async def test_every_reader_hears_what_the_model_says(self, tasks: Tasks, seed: int):
        chance = random.Random(seed)
        names = [f"user:{chance.choice('äb c{}')}{number}" for number in range(30)]
        declared = tasks.outbox.registry.named("task.changed")
        model: dict[str, list[int]] = {name: [] for name in names}
        number = 0
        async with tasks.relay(), tasks.hub(ring_bytes=chance.choice([TINY, 3_000, 1 << 20]), preload_entries=3) as hub:
            for _ in range(30):
                shared, events = chance.choices(names, k=chance.randrange(6)), []
                for _ in range(chance.randrange(1, 5)):
                    number += 1
                    own = chance.choices(names, k=chance.randrange(10)) if chance.random() < 0.5 else None
                    # All of one publish are about one task, so that they stand in the log in this order.
                    payload = TaskChanged("t-1", number)
                    events.append(payload if own is None else declared.draft(payload, audience=own))
                    for name in set(shared if own is None else own):
                        model[name].append(number)
                await tasks.record(*events, audience=shared)
                await hub.strand(tasks.feeds["by_time"], chance.choice(names))
            for name in names:
                await knows(hub, tasks.feeds["by_time"], name, max(model[name], default=0))
                walker = Walker(tasks.feeds["by_time"], name, chance.randrange(1, 9), Chosen())
                assert numbers_of(await walker.walk(hub)) == model[name]
