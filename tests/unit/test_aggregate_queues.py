"""Queues per aggregate: what a slice may take, what the checkpoint is, and who waits for whom."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aftercommit.consumer.queues import AggregateQueues


class Record:
    """What the queues look at."""

    def __init__(self, aggregate: str) -> None:
        self.aggregate = ("order", aggregate)
        self.payload = b"1234"


class Item:
    """An event."""

    def __init__(self, aggregate: str, position: int) -> None:
        self.record = Record(aggregate)
        self.position = position


def queues_of(text: str) -> tuple[AggregateQueues, list[Any]]:
    """One event per letter of the text, which names its aggregate."""
    items: list[Any] = [Item(name, place) for place, name in enumerate(text, 1)]
    queues = AggregateQueues()
    queues.add(items)
    return queues, items


def positions(items: list[Any]) -> list[int]:
    return [item.position for item in items]


def test_an_aggregate_is_at_work_in_one_slice_and_the_others_go_on():
    queues, _ = queues_of("aabab")

    assert positions(queues.take(2, 1, slow=False)) == [1, 2]
    assert positions(queues.take(10, 1, slow=False)) == [3, 5]
    assert queues.take(10, 1, slow=False) == []


def test_the_checkpoint_is_before_the_first_event_that_is_not_handled():
    queues, _ = queues_of("abb")
    first, rest = queues.take(1, 1, slow=False), queues.take(5, 1, slow=False)
    queues.give_back(rest, [])
    assert [queues.lowest] == [1]
    queues.give_back(first, [])
    assert [queues.lowest, queues.events, queues.payload_bytes, queues.ready] == [None, 0, 0, 0]


def test_what_a_slice_did_not_get_to_comes_first_again():
    queues, items = queues_of("aaa")
    taken = queues.take(2, 1, slow=False)
    queues.give_back(taken, [items[1]])
    assert positions(queues.take(5, 1, slow=False)) == [2, 3]


def test_a_slow_aggregate_has_slices_of_its_own_until_it_is_quick_again():
    queues, _ = queues_of("ab")
    first = queues.take(1, 1, slow=False)
    queues.note_pace([("order", "a")], [("order", "a")])
    queues.give_back(first, [])
    later: list[Any] = [Item("a", 3), Item("c", 4)]
    queues.add(later)

    assert positions(queues.take(9, 1, slow=False)) == [2, 4]
    slow = queues.take(9, 1, slow=True)
    assert positions(slow) == [3]
    queues.note_pace([("order", "a")], [])
    queues.give_back(slow, [])
    again: list[Any] = [Item("a", 5)]
    queues.add(again)
    assert positions(queues.take(9, 1, slow=False)) == [5]


def test_where_there_is_a_slot_for_each_aggregate_none_shares_a_slice():
    queues, _ = queues_of("abab")
    assert positions(queues.take(9, 2, slow=False)) == [1, 3]
    assert positions(queues.take(9, 1, slow=False)) == [2, 4]


def test_an_aggregate_claimed_for_its_letters_is_left_alone_until_it_is_released():
    queues, _ = queues_of("aab")
    assert queues.claim(("order", "a"))
    assert not queues.claim(("order", "a"))
    assert queues.ready == 1
    more: list[Any] = [Item("a", 4)]
    queues.add(more)
    taken = queues.take(9, 1, slow=False)
    assert positions(taken) == [3]
    assert not queues.claim(("order", "b"))
    queues.release([("order", "a")])
    assert positions(queues.take(9, 1, slow=False)) == [1, 2, 4]


def test_new_events_of_an_aggregate_that_became_letters_are_gone_from_the_queue():
    queues, items = queues_of("aab")
    assert queues.claim(("order", "a"))
    assert queues.waiting(("order", "a")) == items[:2]
    queues.withdraw(("order", "a"))
    # A later event has to look for the letters, and not wait here for events that are gone.
    assert not queues.has(("order", "a"))
    assert (queues.events, queues.lowest) == (1, 3)
    queues.release([("order", "a")])
    assert positions(queues.take(9, 1, slow=False)) == [3]


def test_an_aggregate_has_events_here_until_the_last_one_is_handled():
    queues, _ = queues_of("ab")
    assert [queues.has(("order", name)) for name in "abc"] == [True, True, False]

    taken = queues.take(1, 1, slow=False)
    assert queues.has(("order", "a"))
    queues.give_back(taken, taken)
    assert queues.has(("order", "a"))
    queues.give_back(queues.take(9, 1, slow=False), [])
    assert [queues.has(("order", name)) for name in "ab"] == [False, False]


@given(st.text("abcd", max_size=40), st.data())
def test_each_event_is_taken_once_and_in_the_order_of_its_aggregate(text: str, data: st.DataObject):
    queues, items = queues_of(text)
    handled: list[Any] = []
    running: list[list[Any]] = []
    claimed: set[tuple[str, str]] = set()
    flip: Any = st.booleans()
    while queues.events:
        if data.draw(flip):
            aggregate = ("order", data.draw(st.sampled_from("abcd")))
            if aggregate in claimed:
                claimed.discard(aggregate)
                queues.release([aggregate])
            elif queues.claim(aggregate):
                claimed.add(aggregate)
        if running and (data.draw(flip) or not queues.ready):
            taken = running.pop(data.draw(st.integers(0, len(running) - 1)))
            kept = data.draw(st.integers(0, len(taken) - 1))
            done = taken[: len(taken) - kept]
            handled += done
            aggregates = {item.record.aggregate for item in taken}
            queues.note_pace(aggregates, aggregates if data.draw(flip) else ())
            queues.give_back(taken, taken[len(done) :])
            missing = [item.position for item in items if item not in handled]
            assert queues.lowest == (min(missing) if missing else None)
        else:
            taken = queues.take(data.draw(st.integers(1, 5)), 1, slow=data.draw(flip))
            assert not claimed & {item.record.aggregate for item in taken}
            running += [taken] if taken else []
    assert sorted(positions(handled)) == positions(items)
    for name in "abcd":
        mine = [item.position for item in handled if item.record.aggregate[1] == name]
        assert mine == sorted(mine)
    assert (queues.payload_bytes, queues.ready, queues.lowest) == (0, 0, None)
