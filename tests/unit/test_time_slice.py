"""Long work in slices: others get their turn by the time that was spent, however much or little that made."""

import asyncio

import pytest

from aftercommit.feed.strands import time_slice
from aftercommit.feed.strands.time_slice import SLICE_SECONDS, TimeSlice


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time_slice, "time", found)
    return found


async def turns_of_others(clock: Clock, costs: list[float]) -> list[int]:
    """Behind which pieces of work somebody else had a turn."""
    had: list[int] = []
    done = 0

    async def another() -> None:
        seen = 0
        while True:
            await asyncio.sleep(0)
            if done != seen:
                had.append(done)
                seen = done

    other = asyncio.create_task(another())
    await asyncio.sleep(0)
    mine = TimeSlice()
    for cost in costs:
        if mine.is_over():
            await mine.give()
        clock.now += cost
        done += 1
    other.cancel()
    return had


async def test_short_pieces_share_a_slice(clock: Clock):
    assert await turns_of_others(clock, [0.3 * SLICE_SECONDS] * 12) == [4, 8]


async def test_behind_every_long_piece_the_others_have_their_turn(clock: Clock):
    assert await turns_of_others(clock, [5 * SLICE_SECONDS] * 4) == [1, 2, 3]


async def test_work_that_costs_nothing_is_not_interrupted(clock: Clock):
    assert await turns_of_others(clock, [0.0] * 1000) == []
