"""The readers that have all of a strand and wait for more: a new event is written to all of them in one go.

Waking a task for each of a thousand readers costs more than what the task then does. So the crowd writes to the waiting
readers itself, with bytes that are made once for all. A reader has a task, or wakes the one it has, only where that
does not work: it does not take bytes now, its stream is to end, or something in between has to see every piece.
"""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.live.blocks import Block, Blocks
from aftercommit.http.asgi import chunk

# How many readers are written to before other work gets a turn: some milliseconds.
AT_ONCE: Final = 250


class Placed(Protocol):
    """Knows how far a reader has come."""

    place: Cursor


class Waiting(Protocol):
    """A reader at the head of a strand, asleep."""

    @property
    def position(self) -> Placed:
        """Where it is."""

    def take(self, block: Block, piece: bytes) -> None:
        """Write this piece, which is the block as HTTP frames it; or wake up and write the block."""

    def wake(self) -> None:
        """Wake up and read on."""


class Crowd:
    """The readers that wait at the head of one strand with one choice of filters."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self._waiting: dict[Waiting, None] = {}
        self._round: Iterator[Waiting] | None = None
        self._again = False

    def join(self, reader: Waiting) -> None:
        """Write new events to this reader. It must not have awaited anything since it compared its place."""
        if not self._waiting:
            self.blocks.strand.changed().listeners[self._hear] = None
        self._waiting[reader] = None

    def leave(self, reader: Waiting) -> None:
        """Stop writing to this reader."""
        self._waiting.pop(reader, None)
        if not self._waiting:
            # Stop listening, so that the strand counts as idle and can be dropped.
            self.blocks.strand.changed().listeners.pop(self._hear, None)

    def _hear(self) -> None:
        if self._round is not None:
            self._again = True
        else:
            self._begin_round()

    def _begin_round(self) -> None:
        self._again = False
        self._round = iter(tuple(self._waiting))
        self._go_round()

    def _go_round(self) -> None:
        assert self._round is not None
        some = tuple(islice(self._round, AT_ONCE))
        loop = asyncio.get_running_loop()
        try:
            self._hand_to(some)
        except Exception as problem:  # noqa: BLE001 - one reader must stop neither the others nor the tailer
            loop.call_exception_handler({"message": "a reader could not be written to", "exception": problem})
        if len(some) == AT_ONCE:
            loop.call_soon(self._go_round)
        elif self._again:
            loop.call_soon(self._begin_round)
        else:
            self._round = None

    def _hand_to(self, readers: tuple[Waiting, ...]) -> None:
        strand, waiting = self.blocks.strand, self._waiting
        if not strand.current:
            for reader in readers:
                reader.wake()
            return
        head, number, block, piece, is_all = strand.head, -1, None, b"", False
        for reader in readers:
            # Nearly always, all of them are at the same place.
            place = reader.position.place
            if place.number != number:
                number = place.number
                block = self.blocks.after(number) if number < head else None
                piece = chunk(block.data) if block is not None and block.data else b""
                is_all = number >= head if block is None else block.place.number >= head
            if reader not in waiting:
                continue
            if block is not None:
                reader.take(block, piece)
            if not is_all:
                # There is more than one block, or the ring has none: that takes the reader's own task.
                reader.wake()
