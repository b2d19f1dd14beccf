"""Rate limits within one process: how many pass in any stretch of time, what the answer tells, and bounded memory."""

import asyncio
import time
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftercommit.access.key_count import Allowance, Rate
from aftercommit.access.rate_limiter import RateLimiter
from aftercommit.access.sliding_log import MOST_MOMENTS, SECOND, SlidingLog, stamp, tick_of
from aftercommit.errors import DeclarationError

MINUTE = Rate("user", 100, 60)


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 6_000_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def take(limiter: RateLimiter, times: int, rate: Rate = MINUTE, key: str = "ann") -> list[Allowance]:
    """So many requests. Nobody waits without a database, so no event loop is needed."""

    def one() -> Allowance:
        asked = limiter.take("user", key, rate)
        try:
            asked.send(None)
        except StopIteration as end:
            found: Allowance = end.value
            return found
        raise AssertionError("it waits for somebody")

    return [one() for _ in range(times)]


def most_in_any(moments: list[int], width: int) -> int:
    """The most that passed in any stretch of this width."""
    return max((place - bisect_right(moments, moment - width) + 1 for place, moment in enumerate(moments)), default=0)


@pytest.mark.contract("L9", "E6")
def test_as_many_pass_as_the_rate_says_and_the_next_is_told_when_to_come_back(clock):
    clock.now += 20
    found = take(RateLimiter(), 101)

    assert [each.allowed for each in found] == [True] * 100 + [False]
    assert found[0] == Allowance(allowed=True, limit=100, remaining=99, reset=60, retry_after=0)
    assert found[99] == Allowance(allowed=True, limit=100, remaining=0, reset=60, retry_after=0)
    assert found[100] == Allowance(allowed=False, limit=100, remaining=0, reset=60, retry_after=60)


@pytest.mark.contract("E6")
def test_whoever_asks_from_second_56_on_as_fast_as_allowed_gets_no_more_than_the_limit_in_any_minute(clock):
    limiter, passed = RateLimiter(), []
    clock.now += 56
    for _ in range(4 * 60 * 20):
        passed += [limiter._now() for each in take(limiter, 1) if each.allowed]
        clock.now += 0.05

    assert most_in_any(passed, 60 * SECOND) == 100
    assert len(passed) == 400


@pytest.mark.contract("E6")
def test_whoever_waits_as_long_as_told_gets_through_and_so_does_the_next_request(clock):
    limiter = RateLimiter()
    clock.now += 37.5
    for _ in range(100):
        take(limiter, 1)
        clock.now += 0.3

    for _ in range(200):
        take(limiter, 100)
        refused = take(limiter, 1)[0]
        assert not refused.allowed
        assert 0 < refused.retry_after <= 60
        clock.now += refused.retry_after
        assert [each.allowed for each in take(limiter, 2)] == [True, True]


@pytest.mark.contract("E6")
def test_a_limit_of_one_has_room_for_the_refused_request_alone(clock):
    limiter, one = RateLimiter(), Rate("user", 1, 60)
    assert take(limiter, 1, one)[0].allowed
    clock.now += 10
    for _ in range(3):
        refused = take(limiter, 1, one)[0]
        assert not refused.allowed
        clock.now += refused.retry_after
        assert [each.allowed for each in take(limiter, 2, one)] == [True, False]


@pytest.mark.thorough
@pytest.mark.contract("E6")
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 60)), max_size=30),
    st.integers(1, 50),
    st.integers(1, 40),
    st.floats(0, 40),
)
def test_in_no_stretch_of_time_does_more_pass_than_the_limit_and_nobody_within_it_is_refused(
    bursts, requests, seconds, start
):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        clock.now += start
        limiter, rate = RateLimiter(), Rate("user", requests, seconds)
        passed: list[int] = []
        for pause, count in bursts:
            clock.now += pause
            now = limiter._now()
            for each in take(limiter, count, rate):
                within = sum(moment > now - seconds * SECOND for moment in passed)
                assert each.allowed is (within < requests)
                assert each.remaining == max(0, requests - within - 1)
                assert 0 < each.reset <= seconds
                assert (each.retry_after == 0) is each.allowed
                if each.allowed:
                    passed.append(now)


@pytest.mark.thorough
@pytest.mark.contract("E6")
@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 20 * SECOND), max_size=20), st.integers(MOST_MOMENTS + 1, MOST_MOMENTS + 20))
def test_large_limits_are_kept_to_a_thousandth_of_the_window(pauses, limit):
    """Never more than the limit; and who leaves a thousandth more time is never refused. Moments stay few."""
    seconds = 60
    passed: list[int] = []
    log, now = SlidingLog(), 0
    for pause in pauses:
        now += pause
        log.slide(now - seconds * SECOND)
        for _ in range(limit // 3):
            recent = sum(moment > now - (seconds + 0.06) * SECOND for moment in passed)
            assert log.total < limit or recent >= limit
            if log.total < limit:
                log.add(stamp(now, tick_of(limit, seconds)))
                passed.append(now)
        assert sum(moment > now - seconds * SECOND for moment in passed) <= limit
        assert len(log.moments) <= MOST_MOMENTS + 1


def test_keys_names_and_lengths_of_time_are_counted_apart(clock):
    limiter = RateLimiter()
    take(limiter, 100)

    assert not take(limiter, 1)[0].allowed
    assert take(limiter, 1, key="bob")[0].allowed
    assert take(limiter, 1, Rate("user", 100, 61))[0].allowed


def test_a_rate_that_has_changed_counts_at_once_also_from_memory(clock):
    limiter = RateLimiter()
    counter = ("user", "ann", 60)

    def passes(rate: Rate) -> list[int] | None:
        passing = limiter.passing([(counter, rate)])
        return passing() if passing is not None else None

    assert [passes(MINUTE) for _ in range(3)] == [[99, 60], [98, 60], [97, 60]]
    assert passes(Rate("user", 3, 60)) is None
    # A limit above a thousand counts in thousandths of its window, here of 0.06 seconds.
    clock.now += 0.01
    assert passes(Rate("user", 2000, 60)) == [1996, 60]
    clock.now += 60.03
    assert passes(MINUTE) == [98, 60]
    clock.now += 0.03
    assert passes(MINUTE) == [98, 60]


@pytest.mark.parametrize("step", [-3600.0, -30.0, 3600.0])
def test_a_clock_that_is_set_neither_frees_nor_freezes(clock, step):
    """The database's clock is the one that counts, and may be set at any time."""
    limiter = RateLimiter()
    limiter._hear_clock(clock.now, clock.now)
    take(limiter, 100)
    limiter._hear_clock(clock.now + step, clock.now)

    refused = take(limiter, 1)[0]
    assert (refused.allowed, refused.retry_after) == (False, 60)
    clock.now += 60
    assert sum(each.allowed for each in take(limiter, 150)) == 100


def test_a_clock_is_believed_as_far_as_a_round_trip_can_tell(clock):
    limiter = RateLimiter()
    limiter._offset = 100.0
    asked_at, clock.now = clock.now, clock.now + 0.2
    # Between 99.9 and 100.1: nothing contradicts what is known.
    limiter._hear_clock(asked_at + 100.1, asked_at)
    assert limiter._offset == 100.0
    limiter._hear_clock(asked_at + 100.5, asked_at)
    assert limiter._offset == pytest.approx(100.3)


def test_what_is_refused_is_not_counted(clock):
    limiter = RateLimiter()
    take(limiter, 5000)
    clock.now += 60

    assert take(limiter, 1)[0].allowed


class Together:
    """The table that all processes write to, and its rule."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0

    def exchange(self, told: int, asked: int) -> int:
        self.total += told
        granted = max(0, min(asked, self.limit - self.total))
        self.total += granted
        return granted


class Process:
    """A process of which each step is taken apart: let through on one's own, ask, send, hear."""

    def __init__(self, table: Together, share: int) -> None:
        self.table, self.share = table, share
        self.known = self.pending = self.unsent = self.passed = self.waiting = 0
        self.sent: tuple[int, int, int] | None = None
        self.answer: tuple[int, int] | None = None

    def step(self, kind: str) -> None:
        if kind == "take":
            if self.known >= self.table.limit:
                return
            if self.pending < self.share:
                self.pending, self.unsent, self.known = self.pending + 1, self.unsent + 1, self.known + 1
                self.passed += 1
            else:
                self.waiting += 1
        elif kind == "send" and self.sent is None:
            self.sent, self.unsent, self.waiting = (self.unsent, self.waiting, self.pending), 0, 0
        elif kind == "add" and self.sent is not None and self.answer is None:
            granted = self.table.exchange(self.sent[0], self.sent[1])
            self.answer = granted, self.table.total
        elif kind == "hear" and self.sent is not None and self.answer is not None:
            self.passed += self.answer[0]
            self.known = self.answer[1] + self.unsent
            self.pending -= self.sent[2]
            self.sent = self.answer = None


@pytest.mark.thorough
@pytest.mark.contract("L9", "E6")
@settings(max_examples=500, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(2, 4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["take", "take", "send", "add", "hear"])), max_size=150),
)
def test_in_whatever_order_exchanges_meet_no_more_than_the_documented_bound_passes(limit, share, count, steps):
    table = Together(limit)
    processes = [Process(table, share) for _ in range(count)]
    for which, kind in steps:
        processes[which % count].step(kind)

    assert sum(each.passed for each in processes) <= limit + (count - 1) * share


def test_memory_is_bounded_however_many_keys_there_are(clock):
    limiter = RateLimiter(max_keys=100)
    for number in range(1000):
        take(limiter, 1, key=str(number))

    assert len(limiter._counts) <= 100
    assert len(limiter._active) <= 100


def test_memory_is_bounded_however_long_nobody_can_be_told(clock):
    limiter = RateLimiter()
    for _ in range(2000):
        take(limiter, 1)
        clock.now += 1

    assert len(limiter._counts["user", "ann", 60].unsent) <= 221


def test_keys_that_were_not_used_for_a_while_are_forgotten(clock):
    limiter = RateLimiter()
    take(limiter, 1, Rate("user", 1, 1))
    clock.now += 10
    take(limiter, 1, Rate("user", 1, 60), key="bob")
    limiter._drop_old()

    assert [key for _, key, _ in limiter._counts] == ["bob"]
    assert not limiter._active, "there is nobody to tell"


async def test_without_a_database_a_limiter_runs_and_stops():
    async with RateLimiter() as limiter:
        assert (await limiter.take("user", "ann", MINUTE)).allowed
        found = await asyncio.gather(*(limiter.take("user", "ann", MINUTE) for _ in range(150)))
        assert sum(each.allowed for each in found) == 99


@pytest.mark.parametrize(
    ("of", "requests", "seconds"),
    [
        ("planet", 1, 1),
        ("user", 0, 60),
        ("user", -1, 60),
        ("user", 1, 0),
        ("user", 1, 86_401),
        ("resource", 10**10, 60),
    ],
)
def test_a_rate_that_cannot_be_kept_is_refused(of, requests, seconds):
    with pytest.raises(DeclarationError, match="a rate of"):
        Rate(of, requests, seconds)


@pytest.mark.parametrize("options", [{"interval_seconds": 0.0}, {"interval_seconds": 61.0}, {"max_keys": 0}])
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(DeclarationError, match=next(iter(options))):
        RateLimiter(**options)
