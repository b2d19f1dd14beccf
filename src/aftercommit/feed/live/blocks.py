"""The bytes that readers of a strand get next, made once for all readers at one place with the same filters. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.entry import Entry, HeldVersion
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.declaration.page import place_of
from aftercommit.feed.strands.strand import Strand
from aftercommit.http import sse

# How much is written at once to a reader that lags: enough to be quick, and what a stalled reader costs in memory.
BLOCK_BYTES: Final = 65_536
BLOCK_ENTRIES: Final = 500
# Most readers are at the head, and the others at a few places before it.
KEPT: Final = 16


class Block(msgspec.Struct, frozen=True, gc=False):
    """Events as they go over the wire, and the place after them. Without data, the filters let none through.

    `told` is the number in the id of the last event. A block with `held` has no data and moves nobody: this process is
    too old to read the next event.
    """

    data: bytes
    place: Cursor
    told: int = 0
    held: HeldVersion | None = None


class Blocks:
    """The next blocks of a strand, for one choice of filters."""

    def __init__(self, strand: Strand, chosen: Chosen) -> None:
        self.strand = strand
        self._chosen = chosen
        self._made: dict[int, Block] = {}
        self._head = -1

    def after(self, number: int) -> Block | None:
        """The next block after a number; None when the ring does not reach back that far."""
        if self.strand.head != self._head or len(self._made) > KEPT:
            self._made.clear()
            self._head = self.strand.head
        block = self._made.get(number)
        if block is None:
            found = self.strand.after(number, BLOCK_ENTRIES, self._chosen)
            if found is None:
                return None
            found = found.before_held()
            if found.entries or found.held is None:
                block = next(blocks_of(self.strand, found.entries, found.looked))
            else:
                block = Block(b"", Cursor(number), held=found.held)
            self._made[number] = block
        return block


def blocks_of(strand: Strand, entries: Sequence[Entry], looked: Cursor) -> Iterator[Block]:
    """Entries in one block or more; the last one ends at the place up to which was looked.

    Before the first event of a new epoch the reader's place moves on: no number is missing between two epochs.
    """
    feed, ends = strand.feed, {high for _, high in strand.gaps}
    frames: list[bytes] = []
    size = 0
    for count, entry in enumerate(entries, 1):
        if ends and entry.number - 1 in ends:
            frames.append(sse.progress(feed.cursor.format(Cursor(entry.number - 1, entry.ts))))
        frame = sse.event(entry.body, name=feed.wire.event_name, identity=feed.cursor.format(entry))
        frames.append(frame)
        size += len(frame)
        if size >= BLOCK_BYTES and count < len(entries):
            yield Block(b"".join(frames), place_of(entry), entry.number)
            frames, size = [], 0
    yield Block(b"".join(frames), looked, entries[-1].number if entries else 0)
