"""One open stream: from the reader's cursor through history and the ring to live events, all of the same strand.

A stream holds a place and no queue. It takes what it writes next from the ring when the write before is done. So a slow
reader costs the memory of one write, and gets several events at once when it is ready again.
"""

import asyncio
import logging
from typing import Final

from aftercommit.access.reader import Access, Reader
from aftercommit.errors import CursorGone, FeedsFailed
from aftercommit.feed.declaration.cursor import Cursor, text_of
from aftercommit.feed.declaration.entry import HeldVersion
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.declaration.page import Page
from aftercommit.feed.live.blocks import Block, blocks_of
from aftercommit.feed.live.endings import bye, hold, reset
from aftercommit.feed.live.response import ReaderGone, StreamResponse
from aftercommit.feed.live.streams import Streams
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.feed.strands.strand import Strand
from aftercommit.http import sse
from aftercommit.http.asgi import Header, Receive, Scope, Send, chunk
from aftercommit.postgres.resilience import is_lost
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.feed")

HISTORY_ENTRIES: Final = 200
# Seconds without a look at the log after which streams send no heartbeats, and after which none is opened. The second
# is shorter than it takes a reader to find its stream silent and come back.
UNREAD_WITHOUT_BEAT: Final = 3.0
UNREAD_WITHOUT_STREAM: Final = 5.0
_BEAT: Final = chunk(sse.HEARTBEAT)


class Stream:
    """A reader that is being written to."""

    __slots__ = (
        "_access",
        "_chosen",
        "_due",
        "_ending",
        "_feed",
        "_held",
        "_hub",
        "_reader",
        "_response",
        "_rotate_at",
        "_sleeper",
        "_streams",
        "_told",
        "place",
    )

    def __init__(
        self, streams: Streams, hub: FeedHub, access: Access, reader: Reader, chosen: Chosen, scope: Scope, send: Send
    ) -> None:
        self._streams, self._hub, self._access, self._reader, self._chosen = streams, hub, access, reader, chosen
        self._feed: Feed | None = None
        self._response = StreamResponse(streams, scope, send)
        # How far was looked, and the number in the last id that the reader was given: filters keep the two apart.
        self.place = Cursor(0)
        self._told = 0
        # A heartbeat, or the place, has to be written by the stream's own task.
        self._due = False
        # Why the stream says goodbye, once it has to.
        self._ending: str | None = None
        self._held: HeldVersion | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._rotate_at = streams.now + streams.rotation()

    async def serve(
        self, strand: Strand, after: Cursor | None, limit: int, headers: list[Header], receive: Receive
    ) -> None:
        """Write until the reader is gone or the stream is ended; neither raises."""
        self._feed = strand.feed
        try:
            with self._response.watched(receive, self.wake), self._streams.looked_after(self):
                await self._write_all(strand, after, limit, headers)
        finally:
            self._streams.ended[self._response.gone or self._ending or "failed"] += 1

    def look(self, now: float) -> None:
        """Do what is due; the timer calls this about twice a second."""
        times, response = self._streams.times, self._response
        if not self._access.still_valid(self._reader):
            # A reader who may not read any more does not get what it was too slow to take, either.
            leave = self.end if response.sending_since is None else self.cut
            leave("unauthorized")
        elif response.sending_since is not None:
            if now - response.sending_since > times.stall_seconds:
                self.cut("stalled")
        elif now >= self._rotate_at:
            self.end("rotation" if self._held is None else "held")
        elif self.place.number > self._told:
            if now - response.last_write >= times.progress_seconds:
                self._due = True
                self.wake()
        elif now - response.last_write >= times.heartbeat_seconds:
            self._keep_alive()
        if response.is_slow(now):
            self.cut("slow")

    def end(self, reason: str) -> None:
        """Say goodbye and end, after the write that is under way."""
        self._ending = self._ending or reason
        self.wake()

    def cut(self, reason: str) -> None:
        """End now, without a goodbye."""
        self._response.cut(reason)
        self.wake()

    def wake(self) -> None:
        """Wake the stream's own task to see what there is to do."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def take(self, block: Block, piece: bytes) -> None:
        """Write what comes next, from the crowd, while the stream's own task sleeps."""
        if self._sleeper is None or self._sleeper.done():
            # Already woken for something else, which may be its end.
            return
        if block.held is not None:
            self.wake()
            return
        if piece:
            if not self._response.put(piece, len(block.data)):
                self.wake()
                return
            self._told = block.told
        self.place = block.place

    def _keep_alive(self) -> None:
        """Send a heartbeat, without waking the task where that is possible."""
        # A heartbeat says that events would come if there were any. While the log cannot be read, that is not so.
        if self._feed is None or self._hub.unread_for(self._feed) > UNREAD_WITHOUT_BEAT:
            return
        is_asleep = self._sleeper is not None and not self._sleeper.done()
        if not is_asleep or not self._response.put(_BEAT, len(sse.HEARTBEAT)):
            self._due = True
            self.wake()

    async def _write_all(self, strand: Strand, after: Cursor | None, limit: int, headers: list[Header]) -> None:
        await self._response.open(headers)
        self._told = after.number if after is not None else 0
        try:
            await self._begin(strand, after, limit)
            if after is None and not self._told and self._ending is None:
                # Without it, a reader that is cut before its first event would have no id to come back with.
                await self._tell_place(strand)
            while self._ending is None:
                with strand.held():
                    await self._follow(strand)
                if self._ending is None:
                    strand = await self._hub.strand(strand.feed, strand.key)
                    await self._begin(strand, self.place, HISTORY_ENTRIES)
            await self._response.write(bye(self._ending, self._streams.retry()))
        except ReaderGone:
            raise
        except CursorGone as refusal:
            self._ending = "reset"
            restart = text_of(strand.feed.cursor, refusal.restart)
            await self._response.write(reset(refusal.reason, str(refusal), restart))
        except Exception as problem:  # noqa: BLE001 - an answer that has begun can only be ended
            self._ending = "unavailable"
            if not is_lost(problem) and not isinstance(problem, FeedsFailed):
                fields = {"feed": strand.feed.name, "error": repr(problem)[:300]}
                log_event(logger, logging.ERROR, "stream_failed", problem, **fields)
            await self._response.write(bye(self._ending, self._streams.retry()))
        await self._response.finish()

    async def _begin(self, strand: Strand, after: Cursor | None, limit: int) -> None:
        """Write the first page. Reading it also checks that the cursor is valid."""
        page = await self._hub.page(strand, after, limit, self._chosen)
        if page.held is None or page.entries:
            await self._write_page(strand, page)
        elif after is not None:
            self.place = after
        else:
            # There is no place before the held event to stay at: the reader comes back for the newest page.
            await self._response.write(hold(page.held))
            self._ending = "held"

    async def _follow(self, strand: Strand) -> None:
        """Write from the ring until the strand is dropped or the stream ends. At the head, wait in the crowd."""
        crowd = self._streams.crowd(strand, self._chosen)
        while self._ending is None and strand.current:
            if self._response.gone is not None:
                raise ReaderGone
            if strand.head > self.place.number:
                held = await self._write_next(strand, crowd.blocks.after(self.place.number))
                if held is not None:
                    await self._hold(strand, held)
            elif self._due:
                await self._beat(strand)
            else:
                # Nothing was awaited since the head was compared, so no news was missed.
                self._sleeper = asyncio.get_running_loop().create_future()
                crowd.join(self)
                try:
                    await self._sleeper
                finally:
                    crowd.leave(self)

    async def _write_next(self, strand: Strand, block: Block | None) -> HeldVersion | None:
        """Write the next events from the ring, or from history; or return the event that needs newer code."""
        if block is not None:
            if block.held is None:
                await self._write_block(block)
            return block.held
        page = await self._hub.page(strand, self.place, HISTORY_ENTRIES, self._chosen)
        if page.entries or page.held is None:
            await self._write_page(strand, page)
            return None
        return page.held

    async def _hold(self, strand: Strand, held: HeldVersion) -> None:
        """Stay open with heartbeats. After `hold_seconds` the reader is sent away: another process may know more."""
        if self._held is None:
            self._held = held
            self._rotate_at = min(self._rotate_at, self._streams.now + self._streams.times.hold_seconds)
            await self._response.write(hold(held))
        elif self._due:
            await self._beat(strand)
        elif self._ending is None and self._response.gone is None and strand.current:
            self._sleeper = asyncio.get_running_loop().create_future()
            await self._sleeper

    async def _write_page(self, strand: Strand, page: Page) -> None:
        looked = page.next or page.after or Cursor(page.head, strand.head_ts)
        for block in blocks_of(strand, page.entries, looked):
            await self._write_block(block)

    async def _write_block(self, block: Block) -> None:
        self.place = block.place
        if block.data:
            self._told = block.told
            await self._response.write(block.data)

    async def _beat(self, strand: Strand) -> None:
        """Send the place, if filters have moved it past the last event that the reader got; else a heartbeat."""
        self._due = False
        if self.place.number > self._told:
            await self._tell_place(strand)
        else:
            await self._response.write(sse.HEARTBEAT)

    async def _tell_place(self, strand: Strand) -> None:
        self._told = self.place.number
        await self._response.write(sse.progress(strand.feed.cursor.format(self.place)))
