"""The bytes that readers of a strand get next, made once for all who stand at one place and chose the same. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.entry import Entry, HeldVersion
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.strands.strand import EntryWindow, Strand
from aftercommit.http import sse

# Of a reader that lags, this much is written at once: enough to be quick, and what a stalled one costs in memory.
BLOCK_BYTES: Final = 65_536
BLOCK_ENTRIES: Final = 500
# Readers are mostly at the head, and the others at some few places behind it.
KEPT: Final = 16


class Block(msgspec.Struct, frozen=True, gc=False):
    """Some events as they go over the wire, and the place behind them. Without data all of them were filtered away.

    `told` is the number that the last event carries; beyond it the filters let nothing through. One that is `held` has
    no data: this process is too old to read what comes next, and nobody moves to its place.
    """

    data: bytes
    place: Cursor
    told: int = 0
    held: HeldVersion | None = None


class Blocks:
    """What comes next in a strand, for one choice of filters."""

    def __init__(self, strand: Strand, chosen: Chosen) -> None:
        """Nothing is made yet."""
        self.strand = strand
        self._chosen = chosen
        self._made: dict[int, Block] = {}
        self._head = -1

    def after(self, number: int) -> Block | None:
        """The next block behind a number, or None when the ring does not reach back that far."""
        if self.strand.head != self._head or len(self._made) > KEPT:
            self._made.clear()
            self._head = self.strand.head
        block = self._made.get(number)
        if block is None:
            window = self.strand.after(number, BLOCK_ENTRIES, self._chosen)
            if window is None:
                return None
            block = self._made[number] = self._made_of(window, number)
        return block

    def _made_of(self, window: EntryWindow, number: int) -> Block:
        entries, place = window.entries, Cursor(window.looked_upto, window.ts)
        stop = next((index for index, entry in enumerate(entries) if entry.held is not None), None)
        if stop == 0:
            return Block(b"", Cursor(number), held=entries[0].held)
        if stop is not None:
            entries, place = entries[:stop], Cursor(entries[stop - 1].number, entries[stop - 1].ts)
        return next(blocks_of(self.strand, entries, place))


def blocks_of(strand: Strand, entries: Sequence[Entry], looked: Cursor) -> Iterator[Block]:
    """Entries in as many blocks as it takes, one at least; the last ends where was looked.

    Before the first event of a life of the log its reader's place moves: nothing is missing between the two lives.
    """
    feed, ends = strand.feed, {high for _, high in strand.gaps}
    frames: list[bytes] = []
    size = 0
    for place, entry in enumerate(entries, 1):
        if ends and entry.number - 1 in ends:
            frames.append(sse.progress(feed.cursor.format(Cursor(entry.number - 1, entry.ts))))
        frame = sse.event(entry.body, name=feed.wire.event_name, identity=feed.cursor.format(entry))
        frames.append(frame)
        size += len(frame)
        if size >= BLOCK_BYTES and place < len(entries):
            yield Block(b"".join(frames), Cursor(entry.number, entry.ts), entry.number)
            frames, size = [], 0
    yield Block(b"".join(frames), looked, entries[-1].number if entries else 0)
