"""Strands: the ring, the head and the budget, held against a model that forgets nothing."""

import asyncio
import gc
import sys
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from aftercommit.feed import EVERYTHING, Chosen, Cursor, Entry, Feed
from aftercommit.feed.endpoints.etag import tag_of
from aftercommit.feed.strands.ring import ENTRY_BYTES, Budget
from aftercommit.feed.strands.strand import Loaded, Strand
from aftercommit.service import wait_for_any
from tests.support.feeding import log_feed, log_outbox

START = datetime(2025, 11, 12, tzinfo=UTC)
ERRORS = Chosen(((0, frozenset({"ERROR"})),), "errors")
EPOCH = UUID(int=1)
FEED = log_feed(log_outbox())


@pytest.fixture(scope="module")
def feed() -> Feed:
    return log_feed(log_outbox())


def entry(number: int, level: str = "INFO", size: int = 10) -> Entry:
    ts = START + timedelta(milliseconds=number)
    return Entry(number, number * 10, ts, f"{number}", b"x" * size, (level, "backend", "api"))


def strand_with(feed: Feed, *entries: Entry, budget: Budget | None = None, first: int = 1, floor: int = 0) -> Strand:
    strand = Strand(feed, "i-1", budget or Budget(1 << 20))
    head = entries[-1] if entries else None
    loaded = Loaded(EPOCH, head.number if head else 0, head.ts if head else None, first, len(entries), entries, floor)
    strand.fill(loaded)
    return strand


def test_what_comes_while_a_strand_is_loaded_is_merged_by_number(feed: Feed):
    strand = Strand(feed, "i-1", Budget(1 << 20))
    for number in (3, 4, 5):
        assert strand.wants(number)
        assert strand.add(entry(number)) is False
    strand.fill(Loaded(EPOCH, 4, START, 1, 4, [entry(2), entry(3), entry(4)], 1))

    assert [each.number for each in strand.ring.entries] == [2, 3, 4, 5]
    assert (strand.head, strand.total, strand.ring.floor) == (5, 5, 1)
    assert strand.head_ts == entry(5).ts
    assert not strand.wants(5)
    assert strand.add(entry(5)) is False


def test_a_window_says_how_far_it_looked(feed: Feed):
    strand = strand_with(feed, *(entry(n, "ERROR" if n % 4 == 0 else "INFO") for n in range(1, 11)))

    window = strand.after(2, 3, EVERYTHING)
    assert window is not None
    assert ([e.number for e in window.entries], window.looked) == ([3, 4, 5], Cursor(5, entry(5).ts))
    window = strand.after(2, 3, ERRORS)
    assert window is not None
    assert ([e.number for e in window.entries], window.looked.number) == ([4, 8], 10)
    window = strand.after(2, 1, ERRORS)
    assert window is not None
    assert ([e.number for e in window.entries], window.looked.number) == ([4], 4)
    window = strand.after(8, 5, ERRORS)
    assert window is not None
    assert (list(window.entries), window.looked) == ([], Cursor(10, entry(10).ts))


def test_a_window_ends_at_the_head_that_was_given(feed: Feed):
    strand = strand_with(feed, *map(entry, range(1, 11)))

    window = strand.ring.after(5, 100, EVERYTHING, upto=7)
    assert window is not None
    assert ([e.number for e in window.entries], window.looked.number) == ([6, 7], 7)
    newest = strand.ring.latest(3, EVERYTHING, upto=7)
    assert newest is not None
    assert [e.number for e in newest.entries] == [5, 6, 7]


def test_the_ring_does_not_answer_for_what_it_has_dropped(feed: Feed):
    strand = strand_with(feed, *map(entry, range(1, 6)))
    strand.ring.drop_oldest()
    strand.ring.drop_oldest()

    assert strand.after(1, 10, EVERYTHING) is None
    assert strand.after(2, 10, EVERYTHING) is not None
    assert strand.ring.latest(3, EVERYTHING) is not None
    assert strand.ring.latest(4, EVERYTHING) is None
    assert strand.ring.entry(2) is None
    assert strand.ring.cursor(5) == Cursor(5, entry(5).ts)


def test_all_rings_together_stay_within_the_budget_and_the_oldest_go_first(feed: Feed):
    size = 10 + ENTRY_BYTES
    budget = Budget(6 * size)
    one, two = strand_with(feed, budget=budget), strand_with(feed, budget=budget)
    for number in range(1, 5):
        one.add(entry(number))
    for number in range(1, 5):
        two.add(entry(number))

    assert [each.number for each in one.ring.entries] == [3, 4]
    assert [each.number for each in two.ring.entries] == [1, 2, 3, 4]
    assert budget.used == 6 * size
    assert (one.head, one.total) == (4, 4)


def test_an_entry_that_is_too_large_for_the_budget_is_passed_by(feed: Feed):
    strand = strand_with(feed, budget=Budget(1000))

    assert strand.add(entry(1, size=5000)) is True

    assert (list(strand.ring.entries), strand.head, strand.ring.floor) == ([], 1, 1)
    window = strand.after(1, 10, EVERYTHING)
    assert window is not None
    assert window.looked.number == 1


def test_a_strand_that_goes_gives_back_what_it_held_and_wakes_who_waits(feed: Feed):
    budget = Budget(1 << 20)
    kept = strand_with(feed, entry(1), budget=budget)
    for _ in range(5000):
        strand_with(feed, *map(entry, range(1, 4)), budget=budget).retire()

    assert budget.used == 10 + ENTRY_BYTES
    assert budget.arrivals < 5000
    assert kept.current


async def test_everybody_who_waits_is_woken_once_and_nobody_who_comes_later(feed: Feed):
    strand = strand_with(feed)
    waiters = [asyncio.create_task(wait_for_any(600, strand.changed())) for _ in range(100)]
    await asyncio.sleep(0)
    assert strand.is_held

    strand.add(entry(1))
    strand.ring_bell()
    await asyncio.wait_for(asyncio.gather(*waiters), 60)

    assert not strand.changed().is_set()
    assert not strand.is_held
    late = asyncio.create_task(wait_for_any(600, strand.changed()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not late.done()
    strand.retire()
    await asyncio.wait_for(late, 60)


def test_a_strand_is_held_while_somebody_says_so(feed: Feed):
    strand = strand_with(feed)

    with strand.held():
        assert strand.is_held
    assert not strand.is_held


def test_an_idle_strand_is_small(feed: Feed):
    budget = Budget(1 << 20)
    strand = strand_with(feed, budget=budget)
    ring = strand.ring
    parts = (strand, ring, ring.head, ring.first, ring.floor, ring._entries, strand.used_at)

    assert sum(map(sys.getsizeof, parts)) < 700


def test_the_garbage_collector_visits_no_strand(feed: Feed):
    """It would stop everything for milliseconds to walk through fifty thousand of them."""
    strand = strand_with(feed, entry(1))

    assert not gc.is_tracked(strand)
    assert not gc.is_tracked(strand.ring)
    assert not gc.is_tracked(strand.ring.entries[0])


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(
    some.lists(
        some.tuples(some.sampled_from(["one", "two"]), some.integers(1, 3), some.booleans(), some.integers(0, 900)),
        max_size=60,
    ),
    some.integers(500, 6000),
    some.integers(0, 120),
    some.integers(1, 20),
    some.booleans(),
)
def test_whatever_was_dropped_the_ring_says_the_truth_or_nothing(arrivals, most, after, limit, filtered):
    """Two strands share a small budget; each is compared with the list of all that came."""
    budget = Budget(most)
    strands = {name: strand_with(FEED, budget=budget) for name in ("one", "two")}
    model: dict[str, list[Entry]] = {"one": [], "two": []}
    for name, step, is_error, size in arrivals:
        number = strands[name].head + step
        new = entry(number, "ERROR" if is_error else "INFO", size)
        model[name].append(new)
        assert strands[name].add(new)
    chosen = ERRORS if filtered else EVERYTHING
    assert budget.used <= most
    assert budget.used == sum(len(e.body) + ENTRY_BYTES for strand in strands.values() for e in strand.ring.entries)
    for name, strand in strands.items():
        everything = model[name]
        assert list(strand.ring.entries) == everything[len(everything) - len(strand.ring.entries) :]
        matching = [each for each in everything if chosen.matches(each)]
        behind = [each for each in matching if each.number > after]
        window = strand.after(after, limit, chosen)
        if window is None:
            assert strand.ring.floor > after
        else:
            assert list(window.entries) == behind[:limit]
            full = len(window.entries) == limit
            assert window.looked.number == (window.entries[-1].number if full else max(after, strand.head))
        newest = strand.ring.latest(limit, chosen)
        assert newest is None or list(newest.entries) == matching[-limit:]


@pytest.mark.contract("L6")
def test_a_tag_differs_in_whatever_could_change_the_answer(feed: Feed):
    strand, other = strand_with(feed, entry(1)), strand_with(feed, entry(1), entry(2))
    elsewhere = Strand(feed, "i-2", Budget(1 << 20))
    elsewhere.fill(Loaded(EPOCH, 1, entry(1).ts, 1, 1, [], 1))
    restored = Strand(feed, "i-1", Budget(1 << 20))
    restored.fill(Loaded(UUID(int=2), 1, entry(1).ts, 1, 1, [], 1))
    tags = [
        tag_of(strand, None, 100, EVERYTHING, "r"),
        tag_of(other, None, 100, EVERYTHING, "r"),
        tag_of(elsewhere, None, 100, EVERYTHING, "r"),
        tag_of(restored, None, 100, EVERYTHING, "r"),
        tag_of(strand, Cursor(1, START), 100, EVERYTHING, "r"),
        tag_of(strand, Cursor(2, START), 100, EVERYTHING, "r"),
        tag_of(strand, Cursor(1, START + timedelta(seconds=1)), 100, EVERYTHING, "r"),
        tag_of(strand, None, 99, EVERYTHING, "r"),
        tag_of(strand, None, 100, ERRORS, "r"),
        tag_of(strand, None, 100, EVERYTHING, "other rights"),
    ]

    assert len(set(tags)) == len(tags)
    assert tag_of(other, None, 100, EVERYTHING, "r", head=1) == tags[0]
    assert all(tag.startswith('W/"') and tag.endswith('"') for tag in tags)


def test_a_tag_is_the_same_in_every_process(feed: Feed):
    again = strand_with(log_feed(log_outbox()), entry(1))

    assert tag_of(again, None, 100, ERRORS, "r") == tag_of(strand_with(feed, entry(1)), None, 100, ERRORS, "r")


def test_back_from_a_number_come_those_before_it_and_whether_there_are_more(feed: Feed):
    strand = strand_with(feed, *(entry(n, "ERROR" if n % 4 == 0 else "INFO") for n in range(1, 11)))

    def back(number: int, limit: int, chosen: Chosen = EVERYTHING) -> tuple[list[int], bool] | None:
        found = strand.ring.before(number, limit, chosen)
        return ([each.number for each in found.entries], found.has_more) if found is not None else None

    assert back(5, 3) == ([2, 3, 4], True)
    assert back(4, 3) == ([1, 2, 3], False)
    assert back(1, 3) == back(0, 3) == ([], False)
    assert back(99, 2) == ([9, 10], True)
    assert back(9, 1, ERRORS) == ([8], True)
    assert back(8, 1, ERRORS) == ([4], False)


def test_back_beyond_the_ring_it_takes_the_database_to_tell(feed: Feed):
    strand = strand_with(feed, *(entry(n) for n in range(5, 11)), floor=4)

    found = strand.ring.before(9, 3, EVERYTHING)
    assert found is not None
    assert ([each.number for each in found.entries], found.has_more) == ([6, 7, 8], True)
    # The ring has as many as are wanted, and cannot say whether there are more.
    assert strand.ring.before(8, 3, EVERYTHING) is None
    assert strand.ring.before(9, 3, ERRORS) is None


def test_a_moment_lies_behind_the_last_entry_before_it(feed: Feed):
    strand = strand_with(feed, *(entry(n) for n in range(1, 6)))

    def place(milliseconds: float) -> int | None:
        found = strand.ring.before_moment(START + timedelta(milliseconds=milliseconds))
        return found.number if found is not None else None

    assert [place(at) for at in (-1, 1, 1.5, 3, 5, 5.5, 9999)] == [0, 0, 1, 2, 4, 5, 5]
    assert strand.ring.before_moment(entry(3).ts) == Cursor(2, entry(2).ts)
    assert strand_with(feed).ring.before_moment(START) == Cursor(0)
    partly = strand_with(feed, entry(4), entry(5), floor=3)
    assert partly.ring.before_moment(entry(4).ts) is None
    assert partly.ring.before_moment(entry(5).ts) == Cursor(4, entry(4).ts)


def test_a_moment_among_entries_of_the_same_time_lies_before_all_of_them(feed: Feed):
    same = [Entry(n, n, START, f"{n}", b"x", ("INFO", "backend", "api")) for n in (2, 3, 4)]
    strand = strand_with(feed, Entry(1, 1, START - timedelta(seconds=1), "1", b"x", ()), *same)

    assert strand.ring.before_moment(START) == Cursor(1, START - timedelta(seconds=1))


def test_what_a_strand_sets_aside_while_it_is_loaded_is_bounded(feed: Feed, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aftercommit.feed.strands.strand.PENDING_BYTES", 3 * (ENTRY_BYTES + 100))
    strand = Strand(feed, "i-1", Budget(1 << 20))
    for number in (1, 2, 3):
        strand.add(entry(number, size=100))
        assert strand.current

    assert strand.add(entry(4, size=100)) is False

    assert not strand.current
    assert strand.pending is not None
    assert strand.pending.entries == []
