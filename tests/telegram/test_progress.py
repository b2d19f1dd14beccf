"""How far updates were read: nothing is confirmed before it is dealt with, and nothing that is slow hides the rest."""

from hypothesis import given
from hypothesis import strategies as st

from aftercommit.contrib.telegram.progress import UpdateProgress


def test_what_is_dealt_with_is_confirmed_from_the_front_on():
    progress = UpdateProgress(7)
    assert progress.offset() == 7
    assert progress.unknown([7, 8, 9]) == {7, 8, 9}
    for number in (7, 8, 9):
        progress.begin(number, must=False)
    progress.done(8)
    assert progress.offset() == 7
    # Telegram tells all of them again: only what is new counts.
    assert progress.unknown([7, 8, 9, 10]) == {10}
    progress.done(7)
    assert progress.offset() == 9
    progress.done(9)
    assert progress.offset() == 10
    assert not progress.is_open


def test_what_must_not_be_lost_is_not_given_up_for_others_until_it_is_done():
    progress = UpdateProgress(0)
    progress.begin(1, must=False)
    progress.begin(2, must=True)
    assert not progress.give_way()
    assert progress.offset() == 1
    progress.effected(2)
    assert progress.give_way()
    assert progress.offset() == 3
    # Whatever comes of those that were given up: it changes nothing.
    progress.done(1)
    progress.effected(2)
    assert progress.offset() == 3


def test_numbers_may_begin_anew():
    """After a week without updates Telegram chooses the next number as it likes."""
    progress = UpdateProgress(5000)
    assert progress.unknown([12]) == {12}
    progress.begin(12, must=True)
    assert progress.offset() == 12
    progress.done(12)
    assert progress.offset() == 13


@given(st.permutations(range(10)))
def test_in_whatever_order_they_end_nothing_open_is_confirmed(order: list[int]):
    progress = UpdateProgress(0)
    for number in range(10):
        progress.begin(number, must=number % 2 == 0)
    for ended, number in enumerate(order, start=1):
        progress.done(number)
        unfinished = order[ended:]
        assert progress.offset() == (min(unfinished) if unfinished else 10)
        assert progress.unknown(unfinished) == set()
