"""The crowd at the end of a strand: everybody gets everything once and in order, whoever is slow, leaves or fails."""

import asyncio
import re
from datetime import UTC, datetime

import pytest

from aftercommit.feed import EVERYTHING, Chosen, Cursor, Feed
from aftercommit.feed.live.blocks import Blocks
from aftercommit.feed.live.crowd import AT_ONCE, Crowd, Group
from aftercommit.feed.strands.strand import Strand
from tests.unit.test_feed_strand import ERRORS, FEED, entry, strand_with

READERS = 2 * AT_ONCE + 10


class Clock:
    now = 7.0


class ReaderAtTheEnd(asyncio.WriteTransport):
    """A reader and its transport in one. It takes what it is given, until it is told not to."""

    def __init__(self, crowd: Crowd, place: Cursor) -> None:
        self.crowd = crowd
        self.own = place
        self.group: Group | None = None
        self.pieces: list[bytes] = []
        self.woken = 0
        self.cut_for: str | None = None
        self.held_back = 0
        self.is_lost = False
        self.join()

    @property
    def place(self) -> Cursor:
        return self.group.place if self.group is not None else self.own

    @property
    def numbers(self) -> list[int]:
        return [int(found) for piece in self.pieces for found in re.findall(rb"id: \S+#(\d+)", piece)]

    def join(self) -> None:
        self.group = self.crowd.join(self, self, self.own, self.own.number, Clock.now)

    def leave(self) -> None:
        if self.group is not None:
            self.own, group, self.group = self.group.place, self.group, None
            group.leave(self)

    def wake(self) -> None:
        self.woken += 1
        self.leave()

    def cut(self, reason: str) -> None:
        self.cut_for = reason
        self.leave()

    def is_closing(self) -> bool:
        return self.is_lost

    def get_write_buffer_size(self) -> int:
        return self.held_back

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))


@pytest.fixture
def feed() -> Feed:
    return FEED


def gathered(strand: Strand, count: int, chosen: Chosen = EVERYTHING) -> tuple[Crowd, list[ReaderAtTheEnd]]:
    crowd = Crowd(Blocks(strand, chosen), Clock())
    return crowd, [ReaderAtTheEnd(crowd, Cursor(strand.head, strand.head_ts)) for _ in range(count)]


def append(strand: Strand, *numbers: int, level: str = "INFO", size: int = 10) -> None:
    for number in numbers:
        strand.add(entry(number, level, size))
    strand.ring_bell()


async def settle(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_everybody_gets_the_same_piece_and_nobody_is_woken(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, readers = gathered(strand, READERS)

    append(strand, 2, 3)
    await settle()

    assert all(reader.numbers == [2, 3] and len(reader.pieces) == 1 for reader in readers)
    assert readers[0].pieces[0] is readers[1].pieces[0]
    assert sum(reader.woken for reader in readers) == 0


async def test_what_comes_in_the_middle_of_a_round_reaches_everybody_once(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, readers = gathered(strand, READERS)

    for number in range(2, 12):
        append(strand, number)
        # Not long enough for a round.
        await asyncio.sleep(0)
    await settle()

    assert all(reader.numbers == list(range(2, 12)) for reader in readers)


async def test_others_have_their_turn_during_a_round(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, readers = gathered(strand, READERS)
    append(strand, 2)
    served: list[int] = []
    while not all(reader.numbers for reader in readers):
        await asyncio.sleep(0)
        served.append(sum(bool(reader.numbers) for reader in readers))

    assert any(0 < count < READERS for count in served)


@pytest.mark.parametrize("trouble", ["held_back", "is_lost"])
async def test_who_takes_nothing_is_woken_before_the_event_and_the_others_are_not(feed: Feed, trouble: str):
    strand = strand_with(feed, entry(1))
    _, (slow, *others) = gathered(strand, 3)
    setattr(slow, trouble, 1)

    append(strand, 2)
    await settle()

    assert (slow.numbers, slow.woken, slow.place.number) == ([], 1, 1)
    assert all((reader.numbers, reader.woken, reader.place.number) == ([2], 0, 2) for reader in others)


async def test_who_has_read_everything_meanwhile_joins_the_others_again(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, (slow, other) = gathered(strand, 2)
    slow.held_back = 1
    append(strand, 2)
    # Its own task writes the event, when it takes bytes again.
    slow.held_back, slow.own = 0, Cursor(2)
    slow.join()

    append(strand, 3)
    await settle()

    assert slow.group is other.group
    assert (slow.numbers, other.numbers) == ([3], [2, 3])


async def test_who_leaves_and_comes_back_in_the_middle_of_a_round_gets_everything_once(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, readers = gathered(strand, READERS)
    append(strand, 2)
    early, late = readers[0], readers[-1]
    assert (early.numbers, late.numbers) == ([2], [])
    for reader in (early, late):
        reader.leave()
    assert (early.own.number, late.own.number) == (2, 1)
    early.join()
    # This one reads the event itself before it comes back.
    late.own = Cursor(2)
    late.join()

    append(strand, 3)
    await settle()

    assert (early.numbers, late.numbers) == ([2, 3], [3])
    assert all(reader.numbers == [2, 3] for reader in readers[1:-1])


async def test_a_reader_at_another_place_is_in_a_group_of_its_own(feed: Feed):
    strand = strand_with(feed, entry(1))
    crowd, (other,) = gathered(strand, 1)
    # Its cursor is of a process that has read more than this one.
    ahead = ReaderAtTheEnd(crowd, Cursor(3))
    assert ahead.group is not other.group

    append(strand, 2, 3)
    await settle()
    assert (ahead.numbers, other.numbers) == ([], [2, 3])
    append(strand, 4)
    await settle()
    assert (ahead.numbers, other.numbers) == ([4], [2, 3, 4])


async def test_no_reader_takes_over_the_time_in_the_cursor_of_another(feed: Feed):
    strand = strand_with(feed, entry(1))
    crowd = Crowd(Blocks(strand, EVERYTHING), Clock())
    wrong = datetime(1999, 1, 1, tzinfo=UTC)
    ahead = ReaderAtTheEnd(crowd, Cursor(2, wrong))
    strand.add(entry(2))

    # One cursor has milliseconds and the other has none: they are at the same event.
    other, without_time = ReaderAtTheEnd(crowd, Cursor(2, strand.head_ts)), ReaderAtTheEnd(crowd, Cursor(2))

    assert other.place == without_time.place == Cursor(2, strand.head_ts)
    assert other.group is without_time.group
    assert ahead.group is not other.group


async def test_a_reader_does_not_join_a_group_that_was_written_to_later_than_itself(feed: Feed):
    strand = strand_with(feed, entry(1))
    crowd, (other,) = gathered(strand, 1)
    append(strand, 2)
    assert other.group is not None
    assert (other.group.told, other.group.written_at, other.group.sent > 0) == (2, Clock.now, True)

    # Else its next heartbeat would be too late.
    assert crowd.join(ReaderAtTheEnd(crowd, Cursor(2)), None, Cursor(2), 2, Clock.now - 1) is not other.group


async def test_a_group_has_no_more_readers_than_are_written_to_at_once(feed: Feed):
    _, readers = gathered(strand_with(feed, entry(1)), READERS)

    assert sorted(len({reader: None for reader in readers if reader.group is group})
                  for group in {reader.group for reader in readers}) == [10, AT_ONCE, AT_ONCE]  # fmt: skip


async def test_what_does_not_fit_into_one_piece_is_for_the_readers_own_task(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, (reader,) = gathered(strand, 1)

    append(strand, *range(2, 12), size=20_000)
    await settle()

    assert reader.numbers == list(range(2, reader.place.number + 1))
    assert reader.place.number < strand.head
    assert reader.woken == 1


async def test_who_filters_everything_away_moves_on_asleep(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, (reader,) = gathered(strand, 1, ERRORS)

    append(strand, 2, 3)
    await settle()
    assert (reader.pieces, reader.woken, reader.place.number) == ([], 0, 3)
    append(strand, 4, level="ERROR")
    await settle()
    assert (reader.numbers, reader.woken, reader.place.number) == ([4], 0, 4)


async def test_everybody_is_woken_when_the_strand_is_given_up(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, readers = gathered(strand, READERS)

    strand.retire()
    await settle()

    assert all(reader.woken for reader in readers)


async def test_who_has_left_gets_nothing_and_a_strand_without_readers_is_free_to_go(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, (one, other) = gathered(strand, 2)
    assert strand.is_held

    one.leave()
    append(strand, 2)
    await settle()
    assert (one.numbers, other.numbers) == ([], [2])
    other.leave()
    other.leave()
    assert not strand.is_held

    one.own = Cursor(2)
    one.join()
    assert strand.is_held
    append(strand, 3)
    await settle()
    assert one.numbers == [3]


async def test_a_reader_that_fails_is_cut_and_the_others_get_everything(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, (broken, other) = gathered(strand, 2)
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def fail(data: bytes | bytearray | memoryview) -> None:
        raise RuntimeError("the handler is closed")

    broken.write = fail  # type: ignore[method-assign]
    append(strand, 2)
    append(strand, 3)
    await settle()

    assert len(failures) == 1
    assert (broken.cut_for, broken.place.number) == ("failed", 1)
    assert other.numbers == [2, 3]


async def test_a_reader_that_fails_to_wake_up_does_not_keep_the_others_asleep(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, (broken, other) = gathered(strand, 2)
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def fail() -> None:
        raise RuntimeError("no task")

    broken.wake = fail  # type: ignore[method-assign]
    strand.retire()
    await settle()

    assert (len(failures), other.woken) == (1, 1)
