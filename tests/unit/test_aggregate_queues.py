"""Queues per aggregate: what a slice may take, what the checkpoint is, and who waits for whom."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from aftercommit.consumer.queues import AggregateQueues

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Record:
    """What the queues look at."""

    def __init__(self, aggregate: str, position: int) -> None:
        self.aggregate = ("order", aggregate)
        self.event_id = UUID(int=1000 + position)
        self.payload = b"1234"


class Item:
    """An event, or with `due_at` a dead letter."""

    def __init__(self, aggregate: str, position: int, *, letter: bool = False) -> None:
        self.record = Record(aggregate, position)
        self.position = position
        self.due_at = NOW if letter else None


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

    assert positions(queues.take(2, slow=False)) == [1, 2]
    assert positions(queues.take(10, slow=False)) == [3, 5]
    assert queues.take(10, slow=False) == []


def test_the_checkpoint_is_before_the_first_event_that_is_not_handled():
    queues, _ = queues_of("abb")
    slow, quick = queues.take(1, slow=False), queues.take(5, slow=False)
    queues.give_back(quick, [])
    assert [queues.lowest] == [1]
    queues.give_back(slow, [])
    assert [queues.lowest, queues.events, queues.bytes, queues.ready] == [None, 0, 0, 0]


def test_what_a_slice_did_not_get_to_comes_first_again():
    queues, items = queues_of("aaa")
    taken = queues.take(2, slow=False)
    queues.give_back(taken, [items[1]])
    assert positions(queues.take(5, slow=False)) == [2, 3]


def test_a_slow_aggregate_has_slices_of_its_own_until_it_is_quick_again():
    queues, _ = queues_of("ab")
    queues.give_back(queues.take(1, slow=False), [])
    queues.note_pace({("order", "a")}, {("order", "a")})
    later: list[Any] = [Item("a", 3), Item("c", 4)]
    queues.add(later)

    assert positions(queues.take(9, slow=False)) == [2, 4]
    slow = queues.take(9, slow=True)
    assert positions(slow) == [3]
    queues.note_pace({("order", "a")}, set())
    queues.give_back(slow, [])
    again: list[Any] = [Item("a", 5)]
    queues.add(again)
    assert positions(queues.take(9, slow=False)) == [5]


def test_letters_come_before_new_events_of_their_aggregate_and_never_share_a_slice_with_them():
    queues, _ = queues_of("ab")
    letters: list[Any] = [Item("a", -2, letter=True), Item("a", -1, letter=True)]
    queues.add_letters(letters)

    taken = queues.take(9, slow=False)
    assert positions(taken) == [-2, -1]
    queues.give_back(taken, letters[1:])
    assert queues.letters == {}
    assert positions(queues.take(9, slow=False)) == [2, 1]


def test_letters_that_a_slice_gives_back_are_not_overtaken_by_later_ones_of_their_aggregate():
    queues, _ = queues_of("")
    letters: list[Any] = [Item("a", -3, letter=True), Item("a", -2, letter=True), Item("b", -1, letter=True)]
    queues.add_letters(letters)

    taken = queues.take(1, slow=False)
    assert positions(taken) == [-3]
    queues.give_back(taken, taken)
    assert positions(queues.take(9, slow=False)) == [-1]


def test_where_there_is_a_slot_for_each_aggregate_none_shares_a_slice():
    queues, _ = queues_of("abab")
    assert positions(queues.take(9, slow=False, slots=2)) == [1, 3]
    assert positions(queues.take(9, slow=False, slots=1)) == [2, 4]


def test_an_aggregate_has_new_events_until_the_last_one_is_handled():
    queues, items = queues_of("ab")
    letters: list[Any] = [Item("c", -1, letter=True)]
    queues.add_letters(letters)
    assert [queues.has_new(("order", name)) for name in "abc"] == [True, True, False]

    taken = queues.take(1, slow=False)
    assert queues.has_new(("order", "a"))
    queues.give_back(taken, taken)
    assert queues.has_new(("order", "a"))
    queues.give_back(queues.take(9, slow=False), [])
    assert [queues.has_new(("order", name)) for name in "ab"] == [False, False]
    assert items


@given(st.text("abcd", max_size=40), st.data())
def test_each_event_is_taken_once_and_in_the_order_of_its_aggregate(text: str, data: st.DataObject):
    queues, items = queues_of(text)
    handled: list[Any] = []
    running: list[list[Any]] = []
    flip: Any = st.booleans()
    while queues.events:
        if running and (data.draw(flip) or not queues.ready):
            taken = running.pop(data.draw(st.integers(0, len(running) - 1)))
            kept = data.draw(st.integers(0, len(taken) - 1))
            done = taken[: len(taken) - kept]
            handled += done
            all_slow = data.draw(flip)
            slow = {item.record.aggregate for item in taken if all_slow}
            queues.note_pace({item.record.aggregate for item in taken}, slow)
            queues.give_back(taken, taken[len(done) :])
            missing = [item.position for item in items if item not in handled]
            assert queues.lowest == (min(missing) if missing else None)
        else:
            taken = queues.take(data.draw(st.integers(1, 5)), slow=data.draw(flip))
            running += [taken] if taken else []
    assert sorted(positions(handled)) == positions(items)
    for name in "abcd":
        mine = [item.position for item in handled if item.record.aggregate[1] == name]
        assert mine == sorted(mine)
    assert (queues.bytes, queues.ready, queues.lowest) == (0, 0, None)
