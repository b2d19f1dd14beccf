"""One open stream: from the reader's cursor through history and the ring to live events, all of the same strand.

A stream holds a place and no queue. It takes what it writes next from the ring when the write before is done. So a slow
reader costs the memory of one write, and gets several events at once when it is ready again.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, NamedTuple

from aftercommit.access.reader import Access, Reader
from aftercommit.errors import CursorGone, FeedsFailed
from aftercommit.feed.declaration.cursor import Cursor, text_of
from aftercommit.feed.declaration.entry import HeldVersion
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.live.endings import bye, hold, reset
from aftercommit.feed.live.response import ReaderGone, StreamResponse
from aftercommit.feed.live.stream_position import StreamPosition
from aftercommit.feed.live.stream_sleep import StreamSleep
from aftercommit.feed.live.streams import Room, Streams
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.feed.strands.strand import Strand
from aftercommit.http import sse
from aftercommit.http.asgi import Header, Receive, Scope, Send, chunk
from aftercommit.postgres.resilience import is_lost
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.feed")

# Seconds without a look at the log after which streams send no heartbeats, and after which none is opened. The second
# is shorter than it takes a reader to find its stream silent and come back.
UNREAD_WITHOUT_BEAT: Final = 3.0
UNREAD_WITHOUT_STREAM: Final = 5.0
_BEAT: Final = chunk(sse.HEARTBEAT)


class StreamSource(NamedTuple):
    """What the streams of one address have in common."""

    streams: Streams
    hub: FeedHub
    access: Access


class Stream:
    """A reader that is being written to.

    While it has everything, the crowd writes to it. It then has no task, if the server allows that, or one that sleeps.
    """

    __slots__ = (
        "_due",
        "_ending",
        "_held",
        "_reader",
        "_response",
        "_room",
        "_rotate_at",
        "_sleep",
        "_source",
        "position",
    )

    def __init__(
        self, source: StreamSource, strand: Strand, reader: Reader, chosen: Chosen, room: Room, scope: Scope, send: Send
    ) -> None:
        self._source, self._reader, self._room = source, reader, room
        self._response = StreamResponse(source.streams, scope, send)
        self.position = StreamPosition(source.hub, strand, chosen, self._response)
        # A heartbeat, or the place, has to be written by a task of the stream's own.
        self._due = False
        # Why the stream says goodbye, once it has to.
        self._ending: str | None = None
        self._held: HeldVersion | None = None
        self._sleep = StreamSleep(self.position, self._response)
        self._rotate_at = source.streams.now + source.streams.rotation()

    async def serve(self, after: Cursor | None, limit: int, headers: list[Header], receive: Receive) -> None:
        """Write until the reader is gone or the stream is ended; neither raises. Or until it needs no task."""
        self._response.watch(receive, self.wake)
        self._source.streams.look_after(self)
        await self._run(self._open(after, limit, headers))

    def look(self, now: float) -> None:
        """Do what is due; the timer calls this about twice a second."""
        times, response = self._source.streams.times, self._response
        self._sleep.catch_up()
        if not self._source.access.still_valid(self._reader):
            # A reader who may not read any more does not get what it was too slow to take, either.
            leave = self.end if response.sending_since is None else self.cut
            leave("unauthorized")
        elif response.sending_since is not None:
            if now - response.sending_since > times.stall_seconds:
                self.cut("stalled")
        elif now >= self._rotate_at:
            self.end("rotation" if self._held is None else "held")
        elif self.position.is_untold:
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
        """Have a task of the stream's own see what there is to do."""
        if self._sleep.end(self):
            if self._response.gone is None:
                self._source.streams.run_task(self._run())
            else:
                self._close()

    def _keep_alive(self) -> None:
        """Send a heartbeat, without a task where that is possible."""
        # A heartbeat says that events would come if there were any. While the log cannot be read, that is not so.
        if self._source.hub.unread_for(self.position.strand.feed) > UNREAD_WITHOUT_BEAT:
            return
        if not self._sleep.is_on or not self._response.put(_BEAT, len(sse.HEARTBEAT)):
            self._due = True
            self.wake()

    async def _run(self, first: Awaitable[None] | None = None) -> None:
        """Write until the stream is over, or until the crowd has taken it over from this task."""
        is_over = True
        try:
            is_over = await self._write_all(first)
        except ReaderGone:
            pass
        except asyncio.CancelledError:
            if not self._response.was_cut():
                raise
        finally:
            if is_over:
                self._close()

    def _close(self) -> None:
        self._response.unwatch()
        self._source.streams.forget(self, self._response.gone or self._ending or "failed")
        self._room.leave()

    async def _open(self, after: Cursor | None, limit: int, headers: list[Header]) -> None:
        await self._response.open(headers)
        position = self.position
        position.told = after.number if after is not None else 0
        held = await position.begin(after, limit)
        if held is not None:
            # The reader comes back for the newest page.
            await self._response.write(hold(held))
            self._ending = "held"
        elif after is None and not position.told:
            # Without it, a reader that is cut before its first event would have no id to come back with.
            await position.tell()

    async def _write_all(self, first: Awaitable[None] | None) -> bool:
        """Whether the stream is over. If not, the crowd writes to it from now on."""
        streams, feed = self._source.streams, self.position.strand.feed
        try:
            if first is not None:
                await first
            while self._ending is None:
                with self.position.strand.held():
                    if not await self._follow():
                        return False
                if self._ending is None:
                    await self.position.begin_anew()
            await self._response.write(bye(self._ending, streams.retry()))
        except ReaderGone:
            raise
        except CursorGone as refusal:
            self._ending = "reset"
            await self._response.write(reset(refusal.reason, str(refusal), text_of(feed.cursor, refusal.restart)))
        except Exception as problem:  # noqa: BLE001 - an answer that has begun can only be ended
            self._ending = "unavailable"
            if not is_lost(problem) and not isinstance(problem, FeedsFailed):
                log_event(logger, logging.ERROR, "stream_failed", problem, feed=feed.name, error=repr(problem)[:300])
            await self._response.write(bye(self._ending, streams.retry()))
        await self._response.finish()
        return True

    async def _follow(self) -> bool:
        """Write from the ring until the strand is dropped or the stream ends. At the head, wait in the crowd.

        False if the crowd has taken the stream over, and no task is needed for it.
        """
        position, strand = self.position, self.position.strand
        crowd = self._source.streams.crowd(strand, position.chosen)
        while self._ending is None and strand.current:
            if self._response.gone is not None:
                raise ReaderGone
            if strand.head > position.place.number:
                held = await position.write_next(crowd.blocks.after(position.place.number))
                if held is not None:
                    await self._hold(held)
            elif self._due:
                await self._beat()
            else:
                # Nothing was awaited since the head was compared, so no news was missed.
                self._sleep.join(crowd, self)
                if self._response.detach():
                    return False
                await self._sleep.wait(self)
        return True

    async def _hold(self, held: HeldVersion) -> None:
        """Stay open with heartbeats. After `hold_seconds` the reader is sent away: another process may know more."""
        streams = self._source.streams
        if self._held is None:
            self._held = held
            self._rotate_at = min(self._rotate_at, streams.now + streams.times.hold_seconds)
            await self._response.write(hold(held))
        elif self._due:
            await self._beat()
        elif self._ending is None and self._response.gone is None and self.position.strand.current:
            await self._sleep.wait(self)

    async def _beat(self) -> None:
        """Send the place, if the reader does not know it; else a heartbeat."""
        self._due = False
        if self.position.is_untold:
            await self.position.tell()
        else:
            await self._response.write(sse.HEARTBEAT)
