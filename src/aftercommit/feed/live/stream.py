"""One open stream: from the reader's cursor through history and the ring to what is live, all from the same strand.

It holds a place and no queue. What it writes next it takes from the ring when it has written what was before, so a
reader that is slow costs what one write costs, and gets several events at once when it comes round again.
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
from aftercommit.feed.live.streams import Streams
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.feed.strands.strand import Strand
from aftercommit.http import sse
from aftercommit.http.asgi import (
    Header,
    Message,
    Receive,
    Scope,
    Send,
    ServerConnection,
    chunk,
    connection_of,
    innermost,
    lost,
)
from aftercommit.postgres.resilience import is_lost
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.feed")

HISTORY_ENTRIES: Final = 200
# Seconds without a look at the log after which a stream falls silent, and after which none is opened. The second is
# shorter than it takes a reader to find its stream silent and come back.
UNREAD_WITHOUT_BEAT: Final = 3.0
UNREAD_WITHOUT_STREAM: Final = 5.0
HEADERS: Final[list[Header]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # nginx would otherwise keep events until it has some kilobytes of them.
    (b"x-accel-buffering", b"no"),
]
_BEAT: Final = chunk(sse.HEARTBEAT)


class _Over(Exception):
    """The reader is gone, or was cut: nothing more can be said to it."""


class Stream:
    """A reader that is being written to."""

    __slots__ = (
        "_access",
        "_chosen",
        "_connection",
        "_direct",
        "_due",
        "_ending",
        "_feed",
        "_floor_from",
        "_gone",
        "_held",
        "_hub",
        "_last_write",
        "_loop",
        "_reader",
        "_rotate_at",
        "_send",
        "_sending_since",
        "_sent",
        "_sleeper",
        "_streams",
        "_task",
        "_told",
        "_waited",
        "place",
    )

    def __init__(
        self, streams: Streams, hub: FeedHub, access: Access, reader: Reader, chosen: Chosen, scope: Scope, send: Send
    ) -> None:
        """Belongs to the task that makes it."""
        self._streams, self._hub, self._access = streams, hub, access
        self._reader, self._chosen, self._send = reader, chosen, send
        self._feed: Feed | None = None
        self._connection = connection_of(scope)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        # How far was looked, and the number in the last id that the reader was given: filters keep the two apart.
        self.place = Cursor(0)
        self._told = 0
        # Where bytes may be put on the wire beside `send`.
        self._direct: ServerConnection | None = None
        self._due = False
        # Why nothing more can be said, and why a goodbye is.
        self._gone: str | None = None
        self._ending: str | None = None
        self._held: HeldVersion | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._last_write = now = streams.now
        self._sending_since: float | None = None
        # Bytes written and seconds waited for the reader; then both again, as they were at a moment.
        self._sent, self._waited = 0, 0.0
        self._floor_from = (now, 0, 0.0)
        self._rotate_at = now + streams.rotation()

    async def serve(
        self, strand: Strand, after: Cursor | None, limit: int, headers: list[Header], receive: Receive
    ) -> None:
        """Write until the reader is gone or the stream is ended; nothing is raised for either."""
        watcher = self._watch(receive)
        self._feed = strand.feed
        try:
            with self._streams.looked_after(self):
                await self._write_all(strand, after, limit, headers)
        except _Over:
            pass
        except asyncio.CancelledError:
            # Where nobody lets us drop the connection we cancel ourselves; any other cancellation is somebody else's.
            if self._gone is None or self._task is None:
                raise
            self._task.uncancel()
        finally:
            if self._connection is not None:
                self._connection.on_lost(None)
            if watcher is not None:
                watcher.cancel()
            self._streams.count_end(self._gone or self._ending or "failed")

    def look(self, now: float) -> None:
        """What the timer does, about twice a second."""
        times = self._streams.times
        if not self._access.still_valid(self._reader):
            self._leave("unauthorized")
        elif self._sending_since is not None:
            if now - self._sending_since > times.stall_seconds:
                self.cut("stalled")
        elif now >= self._rotate_at:
            self.end("rotation" if self._held is None else "held")
        elif self.place.number > self._told:
            if now - self._last_write >= times.progress_seconds:
                self._due = True
                self.wake()
        elif now - self._last_write >= times.heartbeat_seconds:
            self._keep_alive(now)
        self._check_floor(now)

    def _keep_alive(self, now: float) -> None:
        """Send a heartbeat, without a task where that is possible.

        A heartbeat says that events would come if there were any. While the log cannot be read that is not so.
        """
        if self._feed is None or self._hub.unread_for(self._feed) > UNREAD_WITHOUT_BEAT:
            return
        is_asleep = self._sleeper is not None and not self._sleeper.done()
        if is_asleep and self._direct is not None and self._direct.write(_BEAT):
            self._last_write = now
            self._sent += len(sse.HEARTBEAT)
        else:
            self._due = True
            self.wake()

    def end(self, reason: str) -> None:
        """Say goodbye and end, when what is being written is written."""
        self._ending = self._ending or reason
        self.wake()

    def cut(self, reason: str) -> None:
        """End now, without a word; what was not read is dropped."""
        if self._gone is not None:
            return
        self._gone = reason
        if self._connection is not None:
            self._connection.abort()
        elif self._task is not None:
            self._task.cancel()
        self.wake()

    def _leave(self, reason: str) -> None:
        # Whoever may not read any more does not get what it was too slow to take, either.
        if self._sending_since is not None:
            self.cut(reason)
        else:
            self.end(reason)

    def _check_floor(self, now: float) -> None:
        began, sent, waited = self._floor_from
        if now - began < self._streams.times.slow_seconds:
            return
        waiting = self._waited + (now - self._sending_since if self._sending_since is not None else 0.0)
        passed = now - began
        # A trickle keeps every single write just short of a stall. Slow is only who lets us wait most of the time.
        if waiting - waited > passed / 2 and self._sent - sent < self._streams.times.min_bytes_per_second * passed:
            self.cut("slow")
        self._floor_from = (now, self._sent, waiting)

    def _watch(self, receive: Receive) -> "asyncio.Task[None] | None":
        """Notice that the reader is gone; only where the server does not tell it takes a task to ask."""
        if self._connection is not None:
            self._connection.on_lost(self._lost)
            return None
        watcher = asyncio.create_task(lost(receive))
        watcher.add_done_callback(lambda _: self._lost())
        return watcher

    def _lost(self) -> None:
        self._gone = self._gone or "left"
        self.wake()

    def wake(self) -> None:
        """See what there is to do."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def take(self, block: Block, piece: bytes) -> None:
        """What comes next, from the crowd, while this stream's own task sleeps."""
        if self._sleeper is None or self._sleeper.done():
            # Already woken for something else, which may be its end.
            return
        if block.held is not None:
            self.wake()
            return
        if piece:
            if self._direct is None or not self._direct.write(piece):
                self.wake()
                return
            self._told = block.told
            self._last_write = self._streams.now
            self._sent += len(block.data)
        self.place = block.place

    async def _write_all(self, strand: Strand, after: Cursor | None, limit: int, headers: list[Header]) -> None:
        await self._open(headers)
        self._told = after.number if after is not None else 0
        try:
            await self._begin(strand, after, limit)
            if after is None and not self._told and self._ending is None:
                # Cut before its first event, it would have nothing to come back with.
                await self._tell_place(strand)
            while self._ending is None:
                with strand.held():
                    await self._follow(strand)
                if self._ending is None:
                    strand = await self._hub.strand(strand.feed, strand.key)
                    await self._begin(strand, self.place, HISTORY_ENTRIES)
            await self._write(bye(self._ending, self._streams.retry()))
        except _Over:
            raise
        except CursorGone as refusal:
            self._ending = "reset"
            restart = text_of(strand.feed.cursor, refusal.restart)
            await self._write(reset(refusal.reason, str(refusal), restart))
        except Exception as problem:  # noqa: BLE001 - an answer that has begun can only be ended
            self._ending = "unavailable"
            if not is_lost(problem) and not isinstance(problem, FeedsFailed):
                log_event(
                    logger, logging.ERROR, "stream_failed", problem, feed=strand.feed.name, error=repr(problem)[:300]
                )
            await self._write(bye(self._ending, self._streams.retry()))
        await self._hand({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, strand: Strand, after: Cursor | None, limit: int) -> None:
        """The first page checks the cursor: whether it is of this log's life, and what lies behind it still there."""
        page = await self._hub.page(strand, after, limit, self._chosen)
        if page.held is None or page.entries:
            await self._write_page(strand, page)
        elif after is not None:
            self.place = after
        else:
            # There is no place before it to stay at: the reader comes back, and is told the newest page anew.
            await self._write(hold(page.held))
            self._ending = "held"

    async def _follow(self, strand: Strand) -> None:
        """From the ring until the strand is another, or the end. Who has come to its end waits in the crowd."""
        crowd = self._streams.crowd(strand, self._chosen)
        while self._ending is None and strand.current:
            if self._gone is not None:
                raise _Over
            if strand.head > self.place.number:
                held = await self._write_next(strand, crowd.blocks.after(self.place.number))
                if held is not None:
                    await self._hold(strand, held)
            elif self._due:
                await self._beat(strand)
            else:
                # Nothing was awaited since the look, so no news can have come unseen.
                self._sleeper = self._loop.create_future()
                crowd.join(self)
                try:
                    await self._sleeper
                finally:
                    crowd.leave(self)

    async def _write_next(self, strand: Strand, block: Block | None) -> HeldVersion | None:
        """What comes next from the ring, or from history; instead, the event that this process is too old to read."""
        if block is not None:
            if block.held is None:
                await self._write_block(block)
            return block.held
        page = await self._read(strand)
        if page.entries or page.held is None:
            await self._write_page(strand, page)
            return None
        return page.held

    async def _hold(self, strand: Strand, held: HeldVersion) -> None:
        """Stay, and show signs of life. After a while the reader is sent to look whether another process knows more."""
        if self._held is None:
            self._held = held
            self._rotate_at = min(self._rotate_at, self._streams.now + self._streams.times.hold_seconds)
            await self._write(hold(held))
        elif self._due:
            await self._beat(strand)
        elif self._ending is None and self._gone is None and strand.current:
            self._sleeper = self._loop.create_future()
            await self._sleeper

    async def _read(self, strand: Strand) -> Page:
        return await self._hub.page(strand, self.place, HISTORY_ENTRIES, self._chosen)

    async def _write_page(self, strand: Strand, page: Page) -> None:
        looked = page.next or page.after or Cursor(page.head, strand.head_ts)
        for block in blocks_of(strand, page.entries, looked):
            await self._write_block(block)

    async def _write_block(self, block: Block) -> None:
        self.place = block.place
        if block.data:
            self._told = block.told
            await self._write(block.data)

    async def _beat(self, strand: Strand) -> None:
        """A sign of life: how far was looked, if that is news to a reader whose filters let nothing through."""
        self._due = False
        if self.place.number > self._told:
            await self._tell_place(strand)
        else:
            await self._write(sse.HEARTBEAT)

    async def _tell_place(self, strand: Strand) -> None:
        self._told = self.place.number
        await self._write(sse.progress(strand.feed.cursor.format(self.place)))

    async def _open(self, headers: list[Header]) -> None:
        beat = (b"x-heartbeat-interval", b"%g" % self._streams.times.heartbeat_seconds)
        await self._hand({"type": "http.response.start", "status": 200, "headers": [*HEADERS, beat, *headers]})
        connection = self._connection
        if connection is not None and connection.sends_by(innermost(self._send)):
            self._direct = connection
        await self._write(sse.opening(self._streams.retry()))

    async def _write(self, data: bytes) -> None:
        # The timer's own clock is exact enough for what it looks at.
        self._sending_since = began = self._streams.now
        await self._hand({"type": "http.response.body", "body": data, "more_body": True})
        self._last_write = now = self._streams.now
        self._sending_since = None
        self._sent += len(data)
        self._waited += now - began
        if self._gone is not None:
            raise _Over

    async def _hand(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as gone:
            # So a server may tell that the reader has left (ASGI 2.4). It is no error, and nobody is left to answer.
            self._lost()
            raise _Over from gone
