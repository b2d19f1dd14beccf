"""The readers that have all of a strand and wait for more: a new event is written to all of them in one go.

Waking a task for each of a thousand readers costs more than what the task then does. So the crowd writes to the waiting
readers itself, with bytes that are made once for all. Their place is kept once for all of them, too: a write touches
nothing of a reader but its transport (decision 0035). A reader gets a task, or wakes the one it has, only where that
does not work: it does not take bytes now, its stream is to end, or something in between has to see every piece.
"""

import asyncio
from asyncio import WriteTransport
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.live.blocks import Block, Blocks
from aftercommit.http.asgi import chunk

# How many readers are written to before other work gets a turn: some milliseconds.
AT_ONCE: Final = 250


class Waiting(Protocol):
    """A reader at the head of a strand, asleep."""

    def wake(self) -> None:
        """Leave the group, and read on."""

    def cut(self, reason: str) -> None:
        """Leave the group, and end."""


class Clock(Protocol):
    """The clock of all streams."""

    now: float


class Group:
    """Some readers of a crowd that are all at one place, and what was written to them all.

    `told` is the number in the last id that was written, `written_at` when that was, and `sent` counts bytes of data.
    """

    __slots__ = ("_crowd", "place", "readers", "sent", "told", "written_at")

    def __init__(self, crowd: "Crowd", place: Cursor) -> None:
        self._crowd = crowd
        self.place = place
        self.told, self.sent, self.written_at = 0, 0, 0.0
        # Each with its transport, if bytes may be written to that directly.
        self.readers: dict[Waiting, WriteTransport | None] = {}

    def has_room(self, place: Cursor, told: int, written_at: float) -> bool:
        """Whether a reader may join: it is at the same place, and what was written to the group, it has or is past."""
        is_there = place == self.place and told >= self.told and written_at >= self.written_at
        return is_there and len(self.readers) < AT_ONCE

    def leave(self, reader: Waiting) -> None:
        """Stop writing to this reader, which is at the group's place."""
        self.readers.pop(reader, None)
        if not self.readers:
            self._crowd.drop(self)

    def write(self, data: bytes) -> None:
        """Write to all who take bytes. The others leave: they are at the place before."""
        piece = chunk(data)
        unready: list[Waiting] = []
        broken: list[Waiting] = []
        for reader, transport in self.readers.items():
            # A transport keeps bytes only while its client does not read.
            if transport is None or transport.is_closing() or transport.get_write_buffer_size():
                unready.append(reader)
                continue
            try:
                transport.write(piece)
            except Exception as problem:  # noqa: BLE001 - one reader must stop neither the others nor the tailer
                _tell(problem)
                broken.append(reader)
        wake_all(unready)
        for reader in broken:
            # Nobody knows how much of the piece it got.
            reader.cut("failed")
        self.sent += len(data)

    def move(self, block: Block, now: float) -> None:
        """All readers have this block."""
        self.place = block.place
        if block.data:
            self.told, self.written_at = block.told, now


class Crowd:
    """The readers that wait at the head of one strand with one choice of filters."""

    def __init__(self, blocks: Blocks, clock: Clock) -> None:
        self.blocks = blocks
        self._clock = clock
        self._groups: list[Group] = []
        self._round: Iterator[Group] | None = None
        self._again = False

    def join(
        self, reader: Waiting, transport: WriteTransport | None, place: Cursor, told: int, written_at: float
    ) -> Group:
        """Write new events to this reader, which is at this place: the group that it is in from now on.

        It must not have awaited anything since it compared its place with the head.
        """
        if not self._groups:
            self.blocks.strand.changed().listeners[self._hear] = None
        # The strand's own time of the place: no reader takes over what another one's cursor says.
        place = self.blocks.strand.ring.cursor(place.number) or place
        group = self._groups[-1] if self._groups else None
        if group is None or not group.has_room(place, told, written_at):
            group = Group(self, place)
            self._groups.append(group)
        group.readers[reader] = transport
        return group

    def drop(self, group: Group) -> None:
        """Forget a group that has no reader any more."""
        if group in self._groups:
            self._groups.remove(group)
        if not self._groups:
            # Stop listening, so that the strand counts as idle and can be dropped.
            self.blocks.strand.changed().listeners.pop(self._hear, None)

    def _hear(self) -> None:
        if self._round is not None:
            self._again = True
        else:
            self._begin_round()

    def _begin_round(self) -> None:
        self._again = False
        self._round = iter(tuple(self._groups))
        self._go_round()

    def _go_round(self) -> None:
        assert self._round is not None
        loop, written = asyncio.get_running_loop(), 0
        for group in self._round:
            written += len(group.readers)
            try:
                self._hand_to(group)
            except Exception as problem:  # noqa: BLE001 - one group must stop neither the others nor the tailer
                _tell(problem)
            if written >= AT_ONCE:
                loop.call_soon(self._go_round)
                return
        if self._again:
            loop.call_soon(self._begin_round)
        else:
            self._round = None

    def _hand_to(self, group: Group) -> None:
        strand, number = self.blocks.strand, group.place.number
        if strand.current and number >= strand.head:
            return
        block = self.blocks.after(number) if strand.current else None
        if block is not None and block.held is None:
            if block.data:
                group.write(block.data)
            group.move(block, self._clock.now)
            if block.place.number >= strand.head:
                return
        # The strand is dropped, there is more than one block, or the ring has none: that takes the readers' own tasks.
        wake_all(tuple(group.readers))


def wake_all(readers: Iterable[Waiting]) -> None:
    """Wake each of them, even if one fails."""
    for reader in readers:
        try:
            reader.wake()
        except Exception as problem:  # noqa: BLE001 - one reader must not stop the others
            _tell(problem)


def _tell(problem: Exception) -> None:
    told = {"message": "a reader could not be written to", "exception": problem}
    asyncio.get_running_loop().call_exception_handler(told)
