"""Those who have all of a strand and wait for more: what comes is handed to every one of them in one go.

To wake a task for each of a thousand readers costs more than what the task then does. So a reader that waits at the end
is written to from here, with bytes that are made once for all of them, and its task sleeps on. Only who cannot be
served so is woken to see for itself: it does not take what it has been given, it is to be ended, or it is reached
through something that wants to see every piece.
"""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.live.blocks import Block, Blocks
from aftercommit.http.asgi import chunk

# Readers written to before everybody else in this process has a turn: some milliseconds.
AT_ONCE: Final = 250


class Waiting(Protocol):
    """A reader at the end of a strand, asleep."""

    place: Cursor

    def take(self, block: Block, piece: bytes) -> None:
        """Write this piece, which is the block as it goes over the wire, or wake up to do it otherwise."""

    def wake(self) -> None:
        """Look for yourself."""


class Crowd:
    """Who waits at the end of one strand with one choice of filters."""

    def __init__(self, blocks: Blocks) -> None:
        """Nobody yet."""
        self.blocks = blocks
        self._waiting: dict[Waiting, None] = {}
        self._news: asyncio.Future[None] | None = None
        self._round: Iterator[Waiting] | None = None
        self._again = False

    def join(self, reader: Waiting) -> None:
        """From now on it gets what comes. Nothing may have been awaited since it looked at the head."""
        self._waiting[reader] = None
        if self._news is None:
            self._listen()

    def leave(self, reader: Waiting) -> None:
        """It will see for itself."""
        self._waiting.pop(reader, None)
        if not self._waiting and self._news is not None:
            # A strand for whose news nobody waits is dropped after a while.
            self.blocks.strand.changed().sleepers.discard(self._news)
            self._news = None

    def _listen(self) -> None:
        self._news = asyncio.get_running_loop().create_future()
        self._news.add_done_callback(self._hear)
        self.blocks.strand.changed().sleepers.add(self._news)

    def _hear(self, news: asyncio.Future[None]) -> None:
        self.blocks.strand.changed().sleepers.discard(news)
        if news is not self._news:
            return
        self._listen()
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
        try:
            self._hand_to(some)
        finally:
            # A round that did not end would be the last one.
            if len(some) == AT_ONCE:
                asyncio.get_running_loop().call_soon(self._go_round)
            elif self._again:
                self._begin_round()
            else:
                self._round = None

    def _hand_to(self, readers: tuple[Waiting, ...]) -> None:
        strand, made, block, piece = self.blocks.strand, -1, None, b""
        for reader in readers:
            number = reader.place.number
            if not strand.current:
                reader.wake()
                continue
            if number >= strand.head:
                continue
            # Nearly always all of them stand at the same place.
            if number != made:
                block = self.blocks.after(number)
                made, piece = number, chunk(block.data) if block is not None and block.data else b""
            if block is not None:
                reader.take(block, piece)
            if reader.place.number < strand.head:
                # There is more than one piece, or nothing in memory: for that it needs its task.
                reader.wake()
