"""How long to wait before the next attempt."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftercommit.backoff import ByError, Constant, Exponential, Never
from aftercommit.errors import DeclarationError

ERROR = RuntimeError("down")


def test_without_jitter_each_wait_is_a_factor_longer_up_to_the_maximum():
    backoff = Exponential(base=1, factor=2, maximum=10, jitter=0)

    assert [backoff(attempt, ERROR) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(("random", "wait"), [(0.0, 8.0), (0.5, 6.0), (1.0, 4.0)])
def test_jitter_only_ever_shortens_the_wait(random, wait):
    assert Exponential(base=8, jitter=0.5, random=lambda: random)(1, ERROR) == wait


@settings(deadline=None)
@given(st.integers(min_value=1, max_value=10**9))
def test_any_attempt_has_a_wait_within_bounds(attempt):
    wait = Exponential(base=0.5, factor=3, maximum=60, jitter=0.5)(attempt, ERROR)

    assert wait is not None
    assert 0.25 <= wait <= 60


def test_a_large_factor_and_many_attempts_do_not_overflow():
    assert Exponential(factor=1000, maximum=5, jitter=0)(10**6, ERROR) == 5


@pytest.mark.parametrize(
    "settings",
    [
        {"base": 0},
        {"base": -1},
        {"factor": 0.5},
        {"base": 10, "maximum": 5},
        {"jitter": -0.1},
        {"jitter": 1.1},
    ],
)
def test_numbers_that_cannot_work_are_refused(settings):
    with pytest.raises(DeclarationError, match="not a usable backoff"):
        Exponential(**settings)


def test_a_constant_wait_is_constant():
    assert [Constant(2.5)(attempt, ERROR) for attempt in (1, 50)] == [2.5, 2.5]


def test_never_gives_up_at_once():
    assert Never()(1, ERROR) is None


def test_the_policy_of_the_nearest_ancestor_of_the_error_is_used():
    backoff = ByError({OSError: Constant(1), ConnectionError: Constant(2), ValueError: Never()}, otherwise=Constant(9))

    assert backoff(1, ConnectionResetError()) == 2
    assert backoff(1, FileNotFoundError()) == 1
    assert backoff(1, UnicodeDecodeError("utf-8", b"", 0, 1, "bad")) is None
    assert backoff(1, KeyError()) == 9


def test_a_large_factor_and_many_attempts_end_at_the_maximum_and_do_not_overflow():
    assert Exponential(base=1, factor=1e300, maximum=60, jitter=0)(1000, ValueError()) == 60


@pytest.mark.parametrize("numbers", [{"base": float("nan")}, {"factor": float("inf")}, {"maximum": float("inf")}])
def test_numbers_that_are_not_finite_are_refused(numbers):
    with pytest.raises(DeclarationError, match="usable backoff"):
        Exponential(**numbers)
