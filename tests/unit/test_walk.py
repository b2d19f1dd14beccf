"""How a list of events is cut into slices, and what becomes of them when one fails."""

from typing import Any

from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slice import Slice
from aftercommit.consumer.slices import SliceFailed
from aftercommit.consumer.walk import FIRST_GUARD, SlicePace, Walk


class Item:
    """What a walk looks at."""

    def __init__(self, *, outside: bool = False, alone: bool = False, failure: Failed | None = None) -> None:
        self.outside = outside
        self.alone = alone
        self.failure = failure


def walk_over(*items: Any, slice_size: int, **options: Any) -> Walk:
    return Walk(items, pace=SlicePace(slice_size), **options)


def plain(count: int) -> list[Any]:
    return [Item() for _ in range(count)]


def lengths(walk: Walk) -> list[int]:
    """The sizes of the slices, each done in a time that changes nothing."""
    found = []
    while walk.waiting:
        work = walk.next()
        found.append(len(work.items))
        walk.done(work, seconds=0.07)
    return found


def test_a_turn_may_not_end_before_an_event_has_got_to_its_end():
    walk = walk_over(*plain(4), slice_size=2)

    assert not walk.may_rest
    walk.done(walk.next(), seconds=1.0)

    assert walk.may_rest


def test_a_turn_may_not_end_while_it_knows_of_a_failure_that_is_not_recorded():
    walk = walk_over(*plain(6), slice_size=2)
    walk.done(walk.next(), seconds=0.07)
    walk.failed(walk.next(), SliceFailed(Failed(ValueError("the second one")), 1))

    assert not walk.may_rest
    walk.done(walk.next(), seconds=0.07)

    assert walk.may_rest


def test_a_failed_event_goes_with_its_slice_again_under_guard_and_its_failure_is_known():
    walk = walk_over(*plain(4), slice_size=4)
    walk.failed(walk.next(), SliceFailed(Failed(ValueError("the second one")), 1))

    again = walk.next()

    assert (len(again.items), list(again.failures), again.guard_events) == (4, [1], FIRST_GUARD)


def test_without_an_inbox_a_failed_event_has_a_slice_of_its_own_and_no_slice_is_guarded():
    walk = walk_over(*plain(4), slice_size=4, apart=True)
    walk.failed(walk.next(), SliceFailed(Failed(ValueError("the second one")), 1))

    assert walk.next().guard_events == 0
    assert lengths(walk) == [1, 1, 2]


def test_events_whose_handlers_act_outside_share_slices_among_themselves_up_to_the_limit():
    outside = [Item(outside=True) for _ in range(5)]
    walk = walk_over(*plain(2), *outside, Item(alone=True), Item(alone=True), slice_size=100, most_outside_calls=3)

    assert lengths(walk) == [2, 3, 2, 1, 1]


def test_after_a_failure_without_a_culprit_the_events_of_the_slice_go_one_by_one():
    walk = walk_over(*plain(5), slice_size=3)
    walk.failed(walk.next(), SliceFailed(Failed(ValueError("at commit")), None))

    assert lengths(walk) == [1, 1, 1, 2]


def test_the_guard_goes_when_a_guarded_slice_had_no_failure():
    pace = SlicePace(100, guard_events=8)
    pace.done(Slice(plain(100), guard_events=64), 0.07)
    assert pace.guard_events == 0
