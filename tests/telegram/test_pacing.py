"""Telegram's limits are kept, whenever a message arrives between its sending and its answer; waits are told exactly."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftercommit.contrib.telegram.outage import Outage
from aftercommit.contrib.telegram.pacing import GROUP_SECONDS, Pacing

# Seconds in sixteenths, which floats hold exactly; mostly none, so that many want to go at once.
idle = st.sampled_from([0.0, 0.0, 0.0, 1 / 16, 0.5, 2.0])
taking = st.integers(0, 40).map(lambda number: number / 16)
messages = st.lists(st.tuples(st.integers(1, 6), idle, taking, st.floats(0, 1)), min_size=1, max_size=60)


def most_in_a_second(arrivals: Iterable[float], seconds: float = 1.0) -> int:
    ordered = sorted(arrivals)
    return max(sum(begin <= each < begin + seconds for each in ordered) for begin in ordered)


def simulate(pacing: Pacing, wanted: list[tuple[int, float, float, float]]) -> list[tuple[int, float]]:
    """Chat and time of arrival of messages that want to go as soon as may be, some of them side by side.

    Each is (chat, idle before it, how long its answer takes, where in between it arrives).
    """
    now, arrivals = 0.0, []
    under_way: list[tuple[float, int]] = []
    for chat, idle, takes, where in wanted:
        now += idle
        while True:
            for each in sorted(under_way):
                if each[0] <= now:
                    under_way.remove(each)
                    pacing.answered(each[1], each[0])
            # The bot sends one at a time to a chat.
            if any(busy == chat for _, busy in under_way):
                now = min(end for end, busy in under_way if busy == chat)
                continue
            wait = pacing.chat_wait(chat, now) or pacing.overall_wait(now)
            if wait == 0:
                break
            now = min(end for end, _ in under_way) if wait is None else now + wait
        pacing.sent(chat)
        arrivals.append((chat, now + where * takes))
        under_way.append((now + takes, chat))
    return arrivals


@pytest.mark.contract("T11")
@given(messages)
def test_no_window_of_a_second_has_more_than_the_limits_allow(wanted):
    arrivals = simulate(Pacing(overall=2), wanted)
    assert most_in_a_second(at for _, at in arrivals) <= 2
    for chat in {chat for chat, _ in arrivals}:
        assert most_in_a_second(at for each, at in arrivals if each == chat) == 1


@pytest.mark.contract("T11")
def test_thirty_go_at_once_and_the_next_a_second_after_the_first_answer():
    pacing = Pacing()
    for chat in range(1, 31):
        assert pacing.overall_wait(0.0) == 0
        pacing.sent(chat)
    assert pacing.overall_wait(0.0) is None
    pacing.answered(1, 0.25)
    assert pacing.overall_wait(0.5) == 0.75
    assert pacing.overall_wait(1.25) == 0


def test_a_chat_waits_a_second_after_its_answer_and_a_group_three():
    pacing = Pacing()
    for chat, seconds in ((5, 1.0), (-5, GROUP_SECONDS)):
        pacing.sent(chat)
        pacing.answered(chat, 10.0)
        assert pacing.chat_wait(chat, 10.0) == seconds
        assert pacing.chat_wait(chat, 10.0 + seconds) == 0


@pytest.mark.contract("T11")
def test_a_chat_that_is_limited_waits_alone_and_two_at_a_time_mean_the_bot():
    pacing = Pacing()
    assert pacing.limited(1, 30.0, 0.0) is False
    assert pacing.chat_wait(1, 0.0) == 30
    assert pacing.overall_wait(0.0) == 0
    assert pacing.limited(2, 7.0, 1.0) is True
    assert pacing.overall_wait(1.0) == 7
    assert pacing.overall_wait(8.0) == 0
    assert pacing.chat_wait(1, 8.0) == 22


@pytest.mark.contract("T11")
def test_after_a_limit_of_the_bot_the_next_one_is_taken_for_the_same():
    pacing = Pacing()
    pacing.limited(1, 2.0, 0.0)
    pacing.limited(2, 2.0, 0.0)
    assert pacing.limited(3, 2.0, 10.0) is True
    assert pacing.overall_wait(10.0) == 2
    assert pacing.limited(3, 2.0, 100.0) is False


def test_two_limits_one_after_the_other_are_two_chats():
    pacing = Pacing()
    pacing.limited(1, 5.0, 0.0)
    assert pacing.limited(2, 5.0, 6.0) is False


def test_chats_that_wait_for_nothing_are_forgotten():
    pacing = Pacing()
    for chat in range(1, 5001):
        pacing.sent(chat)
        pacing.answered(chat, float(chat))
    assert len(pacing._ready) < 1100


def test_one_readers_failures_are_its_own_and_failures_of_all_are_an_outage():
    outage = Outage()
    for _ in range(5):
        outage.failed(0.0)
        outage.failed(0.0)
        assert not outage.is_on
        outage.succeeded()
    for _ in range(3):
        outage.failed(10.0)
    assert outage.is_on
    assert outage.wait(10.0) == 1
    for _ in range(20):
        outage.failed(10.5)
    assert outage.wait(10.5) == 1
    outage.failed(12.0)
    assert outage.wait(12.0) == 2
    outage.failed(14.0, asked_for=60.0)
    assert outage.wait(14.0) == 60
    outage.succeeded()
    assert outage.wait(14.0) == 0


def test_an_outage_of_a_year_waits_no_longer_than_one_of_a_minute():
    outage = Outage()
    for second in range(0, 100_000, 30):
        outage.failed(float(second))
    assert outage.wait(99_990.0) == 30
