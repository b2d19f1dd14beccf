"""How a list of events is cut into slices: when a turn that is out of time may end."""

from typing import Any

from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slices import SliceFailed
from aftercommit.consumer.walk import Walk


class Event:
    """What a walk looks at."""

    failure = None
    goes_alone = False


def walk_over(count: int, slice_size: int) -> Walk:
    items: Any = [Event() for _ in range(count)]
    return Walk(items, slice_size=slice_size)


def test_a_turn_may_not_end_before_an_event_has_got_to_its_end():
    walk = walk_over(4, slice_size=2)

    assert not walk.may_rest
    walk.done(walk.segment(), seconds=1.0)

    assert walk.may_rest


def test_a_turn_may_not_end_while_it_knows_of_a_failure_that_is_not_recorded():
    walk = walk_over(6, slice_size=2)
    walk.done(walk.segment(), seconds=0.07)
    walk.failed(walk.segment(), SliceFailed(Failed(ValueError("the second one")), 1))

    assert not walk.may_rest
    walk.done(walk.segment(), seconds=0.07)
    assert walk.failure() is not None
    walk.take(strict=False)

    assert walk.may_rest
