"""Where a stream is in its strand, and what it writes next from there: history, the ring, or its place alone."""

from typing import Final

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.entry import HeldVersion
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.declaration.page import Page
from aftercommit.feed.live.blocks import Block, blocks_of
from aftercommit.feed.live.response import StreamResponse
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.feed.strands.strand import Strand
from aftercommit.http import sse

HISTORY_ENTRIES: Final = 200


class StreamPosition:
    """The place of one stream. Nobody else decides where it reads next.

    `place` is how far it looked, `told` the number in the last id that the reader got: filters keep the two apart.
    """

    __slots__ = ("_hub", "_response", "chosen", "place", "strand", "told")

    def __init__(self, hub: FeedHub, strand: Strand, chosen: Chosen, response: StreamResponse) -> None:
        self._hub = hub
        self._response = response
        self.strand = strand
        self.chosen = chosen
        self.place = Cursor(0)
        self.told = 0

    @property
    def is_untold(self) -> bool:
        """Whether filters have moved the place past the last event that the reader got."""
        return self.place.number > self.told

    async def begin(self, after: Cursor | None, limit: int) -> HeldVersion | None:
        """Write the first page. Reading it also checks that the cursor is valid.

        Returns the event that needs newer code, if there is no place before it to stay at.
        """
        page = await self._hub.page(self.strand, after, limit, self.chosen)
        if page.held is None or page.entries:
            await self._write_page(page)
        elif after is not None:
            self.place = after
        else:
            return page.held
        return None

    async def begin_anew(self) -> None:
        """The strand was dropped: go on at the same place in the one that is in memory now."""
        self.strand = await self._hub.strand(self.strand.feed, self.strand.key)
        await self.begin(self.place, HISTORY_ENTRIES)

    async def write_next(self, block: Block | None) -> HeldVersion | None:
        """Write the next events from the ring, or from history; or return the event that needs newer code."""
        if block is not None:
            if block.held is None:
                await self._write_block(block)
            return block.held
        page = await self._hub.page(self.strand, self.place, HISTORY_ENTRIES, self.chosen)
        if page.entries or page.held is None:
            await self._write_page(page)
            return None
        return page.held

    async def tell(self) -> None:
        """Write the place itself, so that the reader can come back to it."""
        self.told = self.place.number
        await self._response.write(sse.progress(self.strand.feed.cursor.format(self.place)))

    def catch_up(self, place: Cursor, told: int) -> None:
        """The crowd has written up to this place, and this number was the last in an id, if it wrote any."""
        self.place, self.told = place, max(self.told, told)

    def move(self, block: Block) -> None:
        """The reader was sent this block."""
        self.place = block.place
        if block.data:
            self.told = block.told

    async def _write_page(self, page: Page) -> None:
        looked = page.next or page.after or Cursor(page.head, self.strand.head_ts)
        for block in blocks_of(self.strand, page.entries, looked):
            await self._write_block(block)

    async def _write_block(self, block: Block) -> None:
        self.move(block)
        if block.data:
            await self._response.write(block.data)
