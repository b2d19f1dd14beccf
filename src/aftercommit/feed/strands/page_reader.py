"""Reads pages of strands: from the ring where it reaches back far enough, otherwise from the database."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import msgspec

from aftercommit.feed.declaration.cursor import Cursor, same_moment
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.filters import EVERYTHING, Chosen
from aftercommit.feed.declaration.page import Page
from aftercommit.feed.strands.history import History
from aftercommit.feed.strands.kept_strands import KeptStrands
from aftercommit.feed.strands.strand import Strand
from aftercommit.feed.strands.tailer import Tailer
from aftercommit.outbox.declaration import Outbox


class PageReader:
    """Reads the pages of one hub's strands."""

    def __init__(
        self,
        kept: KeptStrands,
        history: History,
        tailers: Mapping[Outbox, Tailer],
        strand: Callable[[Feed, str], Awaitable[Strand]],
    ) -> None:
        """`strand` finds or loads a strand; it is that of the hub."""
        self._kept = kept
        self._history = history
        self._tailers = tailers
        self._strand = strand

    async def page(
        self, strand: Strand, after: Cursor | None, limit: int, chosen: Chosen = EVERYTHING, *, upto: int | None = None
    ) -> Page:
        """The matching entries after a cursor; without one, the newest that match. `upto` bounds the page by a head
        that was read before (that of an ETag).

        The ring answers, or the database for what is older. Raises CursorGone when the cursor is no longer valid.
        """
        while True:
            if not strand.current:
                strand = await self._strand(strand.feed, strand.key)
            end = strand.ring.cursor(strand.head if upto is None else min(upto, strand.head))
            end = end or Cursor(strand.head, strand.head_ts)
            found = self._in_ring(strand, after, end, limit, chosen)
            if found is None:
                found = await self._from_history(strand, self._older(strand, after, end, limit, chosen))
            if found is not None:
                return _page(strand, after, end, limit, found)

    def page_in_memory(self, strand: Strand, after: Cursor | None, limit: int, chosen: Chosen) -> Page | None:
        """The same page, if the ring has it; otherwise None."""
        ring = strand.ring
        end = Cursor(ring.head, ring.head_ts)
        found = ring.following(after, end, limit) if after is not None and not chosen.tests else None
        if found is None:
            found = self._in_ring(strand, after, end, limit, chosen)
        return _page(strand, after, end, limit, found) if found is not None else None

    async def page_before(self, strand: Strand, before: Cursor, limit: int, chosen: Chosen = EVERYTHING) -> Page:
        """The matching entries right before a cursor, down to the oldest that is kept.

        No head bounds the page: what lies before an event does not change. Raises CursorGone when the cursor is of
        another epoch of the log.
        """
        while True:
            if not strand.current:
                strand = await self._strand(strand.feed, strand.key)
            found = strand.ring.before(before.number, limit, chosen) if self._is_known(strand, before) else None
            if found is None:
                reading = self._history.before(strand.feed, strand.key, before, limit, chosen)
                found = await self._from_history(strand, reading)
            if found is not None:
                page = found.after_held()
                page.before, page.previous = before, page.looked if page.has_more else None
                page.limit, page.total, page.head = limit, strand.total, strand.head
                return page

    async def before_moment(self, strand: Strand, moment: datetime) -> Cursor:
        """The place after which a strand has the events of this moment and later."""
        while True:
            if not strand.current:
                strand = await self._strand(strand.feed, strand.key)
            if (place := strand.ring.before_moment(moment)) is not None:
                return place
            reading = self._history.before_moment(strand.feed, strand.key, moment)
            if (found := await self._from_history(strand, reading)) is not None:
                return found.looked

    def _in_ring(self, strand: Strand, after: Cursor | None, end: Cursor, limit: int, chosen: Chosen) -> Page | None:
        if after is None:
            return strand.ring.latest(limit, chosen, end.number)
        return strand.ring.page_after(after, end, limit, chosen) if self._is_known(strand, after) else None

    async def _older(self, strand: Strand, after: Cursor | None, end: Cursor, limit: int, chosen: Chosen) -> Page:
        if after is None:
            return await self._history.latest(strand.feed, strand.key, end, limit, chosen)
        found = await self._history.forward(strand.feed, strand.key, after, end, limit, chosen)
        if after.number > end.number:
            # The reader comes from a process that is ahead of this one, so there is news for the tailer.
            self._tailers[strand.feed.outbox].news.set()
            return msgspec.structs.replace(found, looked=after, has_more=False)
        return found

    async def _from_history(self, strand: Strand, reading: Awaitable[Page]) -> Page | None:
        """What the database answers; None, and the strand is dropped, when the log was restored meanwhile."""
        async with self._history.connections.answered():
            found = await reading
        if found.epoch == strand.epoch:
            return found
        self._kept.forget(strand)
        return None

    def _is_known(self, strand: Strand, place: Cursor) -> bool:
        """Whether memory alone can tell that a cursor is valid."""
        newest = strand.head if strand.feed.select.by_stream else self._tailers[strand.feed.outbox].position
        if place.number == 0 or place.number > max(newest, strand.head):
            return place.number == 0
        if place.ts is None:
            return True
        here = strand.ring.cursor(place.number)
        return here is not None and here.ts is not None and same_moment(here.ts, place.ts)


def _page(strand: Strand, after: Cursor | None, end: Cursor, limit: int, found: Page) -> Page:
    page = found if found.is_plain else found.before_held()
    page.after, page.limit, page.total, page.head = after, limit, strand.total, end.number
    return page
