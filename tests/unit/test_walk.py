"""How a list of events is cut into slices: when a turn that is out of time may end."""

from typing import Any

from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slices import SliceFailed, SliceResult
from aftercommit.consumer.walk import SlicePace, Walk


class Event:
    """What a walk looks at."""

    failure = None
    goes_alone = False

    def __init__(self, *, outside: bool = False) -> None:
        self.outside = outside


def walk_over(count: int, slice_size: int) -> Walk:
    items: Any = [Event() for _ in range(count)]
    return Walk(items, pace=SlicePace(slice_size))


def done(items: Any, *left: int, seconds: float) -> SliceResult:
    handled = [place for place in range(len(items)) if place not in left]
    return SliceResult(items, handled, left=left, seconds=seconds)


def test_a_turn_may_not_end_before_an_event_has_got_to_its_end():
    walk = walk_over(4, slice_size=2)

    assert not walk.may_rest
    walk.done(done(walk.segment(), seconds=1.0))

    assert walk.may_rest


def test_a_turn_may_not_end_while_it_knows_of_a_failure_that_is_not_recorded():
    walk = walk_over(6, slice_size=2)
    walk.done(done(walk.segment(), seconds=0.07))
    walk.failed(walk.segment(), SliceFailed(Failed(ValueError("the second one")), 1))

    assert not walk.may_rest
    walk.done(done(walk.segment(), seconds=0.07))
    assert walk.failure() is not None
    walk.take(strict=False)

    assert walk.may_rest


def test_what_a_slice_did_not_get_to_comes_next_and_the_next_slice_is_smaller():
    walk = walk_over(8, slice_size=4)
    first = walk.segment()
    walk.done(done(first, 2, 3, seconds=0.2))

    assert walk.segment() == first[2:]


def test_events_without_a_connection_share_a_slice_up_to_their_limit_and_never_with_others():
    items: Any = [*(Event(outside=True) for _ in range(5)), Event()]
    walk = Walk(items, pace=SlicePace(16), most_outside_calls=3)

    assert walk.segment() == items[:3]
    walk.done(done(items[:3], seconds=0.07))
    assert walk.segment() == items[3:5]
    walk.done(done(items[3:5], seconds=0.07))
    assert walk.segment() == items[5:]


def test_failures_that_a_slice_had_survived_are_not_forgotten_when_it_is_undone_after_all():
    walk = walk_over(4, slice_size=4)
    segment = walk.segment()
    walk.failed(segment, SliceFailed(Failed(ValueError("at COMMIT")), None, {1: Failed(ValueError("before"))}))

    assert [len(walk.segment()), walk.failure()] == [1, None]
    walk.done(done(walk.segment(), seconds=0.0))
    assert str(walk.failure()) == "before"
