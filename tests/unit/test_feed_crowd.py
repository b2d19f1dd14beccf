"""The crowd at the end of a strand: everybody gets everything once and in order, whoever is slow, leaves or fails."""

import asyncio
import re

import pytest

from aftercommit.feed import EVERYTHING, Chosen, Cursor, Feed
from aftercommit.feed.live.blocks import Block, Blocks
from aftercommit.feed.live.crowd import AT_ONCE, Crowd
from aftercommit.feed.strands.strand import Strand
from tests.unit.test_feed_strand import ERRORS, FEED, entry, strand_with

READERS = 2 * AT_ONCE + 10


class ReaderAtTheEnd:
    """Takes what it is given, until it is told not to."""

    def __init__(self, place: Cursor) -> None:
        self.place = place
        self.position = self
        self.pieces: list[bytes] = []
        self.woken = 0
        self.takes = True

    @property
    def numbers(self) -> list[int]:
        return [int(found) for piece in self.pieces for found in re.findall(rb"id: \S+#(\d+)", piece)]

    def take(self, block: Block, piece: bytes) -> None:
        if not self.takes:
            self.wake()
            return
        if piece:
            self.pieces.append(piece)
        self.place = block.place

    def wake(self) -> None:
        self.woken += 1


@pytest.fixture
def feed() -> Feed:
    return FEED


def gathered(strand: Strand, count: int, chosen: Chosen = EVERYTHING) -> tuple[Crowd, list[ReaderAtTheEnd]]:
    crowd = Crowd(Blocks(strand, chosen))
    readers = [ReaderAtTheEnd(Cursor(strand.head, strand.head_ts)) for _ in range(count)]
    for reader in readers:
        crowd.join(reader)
    return crowd, readers


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


async def test_who_takes_nothing_is_woken_and_the_others_are_not(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, (slow, *others) = gathered(strand, 3)
    slow.takes = False

    append(strand, 2)
    await settle()

    assert (slow.numbers, slow.woken > 0) == ([], True)
    assert all((reader.numbers, reader.woken) == ([2], 0) for reader in others)


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
    crowd, (one, other) = gathered(strand, 2)
    assert strand.is_held

    crowd.leave(one)
    append(strand, 2)
    await settle()
    assert (one.numbers, other.numbers) == ([], [2])
    crowd.leave(other)
    crowd.leave(other)
    assert not strand.is_held

    crowd.join(one)
    assert strand.is_held
    append(strand, 3)
    await settle()
    assert one.numbers == [2, 3]


async def test_a_reader_that_fails_does_not_stop_the_rounds(feed: Feed):
    strand = strand_with(feed, entry(1))
    _, (broken, other) = gathered(strand, 2)
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def fail(block: Block, piece: bytes) -> None:
        raise RuntimeError("the handler is closed")

    broken.take = fail  # type: ignore[method-assign]
    append(strand, 2)
    await settle()
    del broken.take
    append(strand, 3)
    await settle()

    assert len(failures) == 1
    assert (broken.numbers, other.numbers) == ([2, 3], [2, 3])
