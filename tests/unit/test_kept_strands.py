"""The strands in memory, by the thousand: what one new strand costs, and who has a turn while all are dropped."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from aftercommit.feed.strands import kept_strands, time_slice
from aftercommit.feed.strands.entry_maker import EntryMaker
from aftercommit.feed.strands.history import History
from aftercommit.feed.strands.kept_strands import KeptStrands
from aftercommit.feed.strands.strand import Loaded, Strand
from aftercommit.service import wait_for_any
from tests.support.feeding import log_feed, log_outbox

FEED = log_feed(log_outbox())
NOTHING = Loaded(UUID(int=1), 0, None, 1, 0, [], 0)


def kept(most: int) -> KeptStrands:
    async def reach(point: str, **detail: Any) -> None:
        await asyncio.Event().wait()

    return KeptStrands([FEED], cast(History, None), EntryMaker(), 1 << 20, most, reach)


def load(strands: KeptStrands, *keys: str) -> list[Strand]:
    """Strands that are loaded, without a database."""
    found = []
    for key in keys:
        strand = strands.load(FEED, key, lambda loaded: True)
        assert strand.loading is not None
        strand.loading.cancel()
        strand.loading = None
        strand.fill(NOTHING)
        found.append(strand)
    return found


async def test_the_least_recently_used_strand_makes_room_for_a_new_one():
    strands = kept(3)
    one, two, three = load(strands, "1", "2", "3")
    assert strands.touch(one)

    load(strands, "4")

    assert (one.current, two.current, three.current, len(strands)) == (True, False, True, 3)
    assert not strands.touch(two)


async def test_a_strand_with_waiting_readers_is_kept_and_counts_as_used():
    strands = kept(3)
    one, two, _ = load(strands, "1", "2", "3")
    with one.held():
        load(strands, "4")
    assert (one.current, two.current) == (True, False)

    load(strands, "5")

    assert one.current


async def test_a_new_strand_looks_at_few_others_even_if_all_are_in_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_strands, "PASSED_OVER", 5)
    strands = kept(20)
    waiting = [asyncio.create_task(wait_for_any(600, each.changed())) for each in load(strands, *map(str, range(20)))]
    await asyncio.sleep(0)
    touched: list[Strand] = []
    touch = strands.touch

    def noted(strand: Strand) -> bool:
        touched.append(strand)
        return touch(strand)

    monkeypatch.setattr(strands, "touch", noted)

    load(strands, "new")

    assert (len(touched), len(strands)) == (5, 21)
    await strands.give_up(FEED.outbox)
    await asyncio.gather(*waiting)


async def test_given_up_strands_are_found_no_more_at_once_and_others_have_turns_while_they_go(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", 0.0)
    strands = kept(100)
    loaded = load(strands, *map(str, range(50)))

    going = asyncio.create_task(strands.give_up(FEED.outbox))
    await asyncio.sleep(0)

    assert len(strands) == 0
    assert 0 < sum(strand.current for strand in loaded) < 50
    (again,) = load(strands, "1")
    await going
    assert not any(strand.current for strand in loaded)
    assert strands.find(FEED, "1") is again
    assert again.current


async def test_idle_strands_are_dropped_and_used_ones_stay():
    strands = kept(100)
    idle, held, used = load(strands, "idle", "held", "used")
    idle.used_at = held.used_at = 0.0

    with held.held():
        await strands.drop_idle(0.001 + used.used_at / 2)

    assert (idle.current, held.current, used.current) == (False, True, True)
