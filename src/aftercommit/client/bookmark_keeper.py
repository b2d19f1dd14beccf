"""Saves a follower's place in its bookmark: now and then, and at the end. Never ahead of what is done."""

import asyncio
import logging
import time

from aftercommit.client.bookmark import Bookmark
from aftercommit.errors import BookmarkError
from aftercommit.telemetry import log_event
from aftercommit.text import readable

logger = logging.getLogger("aftercommit.client")


class BookmarkKeeper:
    """The place of one follower, and its bookmark."""

    def __init__(self, bookmark: Bookmark, save_every_seconds: float) -> None:
        """`save_every_seconds` is the minimum time between two saves while events keep coming."""
        self._bookmark = bookmark
        self._every = save_every_seconds
        self._done: str | None = None
        self._saved: str | None = None
        self._saved_at = float("-inf")

    async def load(self) -> str | None:
        """The place that was saved last. Raises BookmarkError."""
        self._done = self._saved = await asyncio.to_thread(self._bookmark.load)
        return self._saved

    def origin(self, cursor: str | None) -> str | None:
        """A description of the bookmark, if it holds this cursor."""
        if cursor is None or cursor != self._saved:
            return None
        names_itself = type(self._bookmark).__str__ is not object.__str__
        return str(self._bookmark) if names_itself else type(self._bookmark).__name__

    async def done(self, cursor: str | None) -> None:
        """Everything up to this place is done."""
        self._done = cursor
        if time.monotonic() - self._saved_at >= self._every:
            await self.save()

    async def save(self) -> None:
        """Save the place now. A failure is logged: reading on is safe, and the next save may succeed."""
        try:
            await self._save()
        except BookmarkError as problem:
            log_event(logger, logging.WARNING, "bookmark_failed", problem, error=readable(problem))

    async def close(self) -> None:
        """Save the place and close the bookmark. Raises BookmarkError."""
        try:
            await self._save()
        finally:
            await asyncio.to_thread(self._bookmark.close)

    async def _save(self) -> None:
        cursor = self._done
        # A reset may leave no place to save; the saved one leads to the same reset again.
        if cursor is not None and cursor != self._saved:
            self._saved_at = time.monotonic()
            await asyncio.to_thread(self._bookmark.save, cursor)
            self._saved = cursor
