"""Rate limits within one process: how many pass, what the answer tells, and that memory is bounded."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftercommit.errors import DeclarationError
from aftercommit.feed.access.rate_limit import Allowance, Rate, RateLimiter

MINUTE = Rate("user", 100, 60)


class Clock:
    """A clock that stands still until it is told to go on; windows begin at multiples of their length."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 6_000_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def take(limiter: RateLimiter, times: int, rate: Rate = MINUTE, key: str = "ann") -> list[Allowance]:
    return [limiter.take("user", key, rate) for _ in range(times)]


@pytest.mark.contract("L9")
def test_as_many_pass_as_the_rate_says_and_the_next_is_told_when_to_come_back(clock):
    clock.now += 20
    found = take(RateLimiter(), 101)

    assert [each.allowed for each in found] == [True] * 100 + [False]
    assert found[0] == Allowance(allowed=True, limit=100, remaining=99, reset=40, retry_after=0)
    assert found[99] == Allowance(allowed=True, limit=100, remaining=0, reset=40, retry_after=0)
    assert found[100] == Allowance(allowed=False, limit=100, remaining=0, reset=40, retry_after=41)


def test_whoever_waits_as_long_as_told_gets_through(clock):
    limiter = RateLimiter()
    clock.now += 37.5
    take(limiter, 100)

    for _ in range(200):
        refused = limiter.take("user", "ann", MINUTE)
        assert not refused.allowed
        clock.now += refused.retry_after
        assert limiter.take("user", "ann", MINUTE).allowed
        take(limiter, 100)


def test_the_turn_of_a_minute_gives_nobody_twice_the_limit_at_once(clock):
    limiter = RateLimiter()
    clock.now += 59.5
    take(limiter, 100)
    clock.now += 1.0

    passed = sum(each.allowed for each in take(limiter, 100))

    assert passed == 0
    clock.now += 30
    assert sum(each.allowed for each in take(limiter, 100)) == pytest.approx(50, abs=2)


def test_after_two_windows_everything_is_free_again(clock):
    limiter = RateLimiter()
    take(limiter, 100)
    clock.now += 120

    assert sum(each.allowed for each in take(limiter, 150)) == 100


def test_keys_names_and_lengths_of_time_are_counted_apart(clock):
    limiter = RateLimiter()
    take(limiter, 100)

    assert not limiter.take("user", "ann", MINUTE).allowed
    assert limiter.take("user", "bob", MINUTE).allowed
    assert limiter.take("logs", "ann", MINUTE).allowed
    assert limiter.take("user", "ann", Rate("user", 100, 61)).allowed


@pytest.mark.parametrize("step", [0.01, 30.0])
def test_a_clock_that_steps_back_over_the_turn_of_a_window_frees_nothing(clock, step):
    limiter = RateLimiter()
    take(limiter, 60)
    clock.now += 60
    take(limiter, 40)
    clock.now -= step
    found = take(limiter, 1)[0]
    clock.now += step

    assert not found.allowed
    assert 0 < found.reset <= 60
    assert not any(each.allowed for each in take(limiter, 10))


def test_a_clock_that_is_set_back_for_good_is_followed(clock):
    limiter = RateLimiter()
    take(limiter, 100)
    clock.now -= 3600

    assert take(limiter, 1)[0].allowed


def test_what_is_refused_is_not_counted(clock):
    limiter = RateLimiter()
    take(limiter, 5000)
    clock.now += 61

    assert limiter.take("user", "ann", MINUTE).allowed


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 60)), max_size=30),
    st.integers(1, 50),
    st.integers(1, 40),
    st.floats(0, 40),
)
def test_at_no_time_does_more_pass_than_the_limit_counted_by_windows(bursts, requests, seconds, start):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        clock.now += start
        limiter, rate = RateLimiter(), Rate("user", requests, seconds)
        passed: list[float] = []
        for pause, count in bursts:
            clock.now += pause
            for each in take(limiter, count, rate):
                assert 0 <= each.remaining <= each.limit
                assert 0 < each.reset <= seconds
                assert (each.retry_after == 0) is each.allowed
                if each.allowed:
                    passed.append(clock.now)
            number = math.floor(clock.now / seconds)
            assert sum(math.floor(moment / seconds) == number for moment in passed) <= requests


def test_what_passes_while_counts_are_exchanged_comes_on_top_of_the_sum(clock):
    limiter = RateLimiter()
    take(limiter, 5)
    ((window, _),) = limiter._unsent.items()
    limiter._unsent = {}
    take(limiter, 3)

    limiter._hear(window, 50, 0)

    assert limiter.take("user", "ann", MINUTE).remaining == 100 - 50 - 3 - 1


def test_a_sum_that_comes_after_the_turn_of_a_window_counts_for_the_one_before(clock):
    limiter = RateLimiter()
    take(limiter, 5)
    ((window, _),) = limiter._unsent.items()
    limiter._unsent = {}
    clock.now += 60
    take(limiter, 3)

    limiter._hear(window, 50, 0)

    assert limiter.take("user", "ann", MINUTE).remaining == 100 - 50 - 3 - 1


class Exchanging:
    """A process whose exchanges with a sum of all are taken apart: sent, added up, heard."""

    def __init__(self, total: list[int]) -> None:
        self.limiter, self.total = RateLimiter(), total
        self.passed = self.told = self.most = 0
        self.sent: dict[tuple[str, str, int, int], int] = {}
        self.answer: int | None = None

    def step(self, kind: str, rate: Rate) -> None:
        if kind == "take":
            self.passed += take(self.limiter, 1, rate)[0].allowed
        elif kind == "exchange":
            for each in ("send", "add", "hear"):
                self.step(each, rate)
        elif kind == "send" and not self.sent:
            self.sent, self.limiter._unsent = self.limiter._unsent, {}
        elif kind == "add" and self.sent and self.answer is None:
            self.total[0] += sum(self.sent.values())
            self.answer = self.total[0]
        elif kind == "hear" and self.answer is not None:
            self.most = max(self.most, self.passed - self.told)
            ((window, taken),) = self.sent.items()
            self.limiter._hear(window, self.answer, 0)
            self.told, self.sent, self.answer = self.told + taken, {}, None


STEPS = st.sampled_from(["take", "send", "add", "hear", "exchange"])


@pytest.mark.contract("L9")
@settings(max_examples=500, deadline=None)
@given(st.integers(1, 8), st.integers(2, 4), st.lists(st.tuples(st.integers(0, 3), STEPS), max_size=120))
def test_in_whatever_order_exchanges_meet_no_more_than_the_documented_bound_passes(limit, count, steps):
    with pytest.MonkeyPatch.context() as patch:
        Clock(patch)
        total, rate = [0], Rate("user", limit, 60)
        processes = [Exchanging(total) for _ in range(count)]
        for which, kind in steps:
            processes[which % count].step("take", rate)
            processes[which % count].step(kind, rate)

        most = max(max(each.most, each.passed - each.told) for each in processes)
        assert most <= limit
        assert sum(each.passed for each in processes) <= limit + (count - 1) * most


def test_memory_is_bounded_however_many_keys_there_are(clock):
    limiter = RateLimiter(most_keys=100)
    for number in range(1000):
        limiter.take("user", str(number), MINUTE)

    assert len(limiter._counters) <= 100
    assert len(limiter._unsent) <= 101


async def test_keys_that_were_not_used_for_a_while_are_forgotten():
    limiter = RateLimiter()
    limiter.take("user", "ann", Rate("user", 1, 1))
    limiter._offset += 10
    limiter.take("user", "bob", Rate("user", 1, 60))
    limiter._drop_old()

    assert [key for _, key, _ in limiter._counters] == ["bob"]


async def test_without_a_database_a_limiter_runs_and_stops():
    async with RateLimiter() as limiter:
        assert limiter.take("user", "ann", MINUTE).allowed


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


@pytest.mark.parametrize("options", [{"interval": 0.0}, {"interval": 61.0}, {"most_keys": 0}])
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(DeclarationError, match=next(iter(options))):
        RateLimiter(**options)
