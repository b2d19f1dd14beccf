"""A cache of encoded pages, for readers who send the same request while nothing changes. Bounded in bytes."""

from collections import OrderedDict
from operator import attrgetter
from typing import Final, Generic, TypeVar

import msgspec

from aftercommit.errors import FeedHeld
from aftercommit.feed.declaration.entry import HeldVersion
from aftercommit.feed.declaration.page import BareArray, Page
from aftercommit.feed.endpoints.query import Asked
from aftercommit.feed.strands.strand import Strand
from aftercommit.http.asgi import JSON
from aftercommit.http.from_memory import lines_of

MOST_BYTES: Final = 16 << 20
# The bytes of a page besides its body.
_AROUND: Final = 1000


Kept = TypeVar("Kept")
_Place = tuple[str, Asked]
_withheld: Final = attrgetter("withheld")
_LINES: Final = lines_of([JSON]) + b"content-length: %d\r\nx-has-more: %b\r\n"


class CachedPage(msgspec.Struct, frozen=True):
    """An encoded page, with the header lines that are the same for every reader.

    A page that is not whole lacks an item that another process or newer code can show. It gets no ETag, and caches must
    not keep it.
    """

    strand: Strand
    head: int
    body: bytes
    lines: bytes
    is_empty: bool
    is_closed: bool
    is_whole: bool
    held: HeldVersion | None


def cached_page(strand: Strand, page: Page, *, is_closed: bool) -> CachedPage:
    """Encode a page; one that `is_closed` never changes again. FeedHeld if there is nothing to show yet."""
    feed = strand.feed
    if not page.entries:
        check_held(page.held)
    is_whole = page.is_plain or (page.held is None and not any(map(_withheld, page.entries)))
    body = feed.wire.body.encode(page, feed.cursor)
    lines, is_empty = _lines(strand, page, len(body)), not page.entries
    return CachedPage(strand, page.head, body, lines, is_empty, is_closed and is_whole, is_whole, page.held)


def _lines(strand: Strand, page: Page, length: int) -> bytes:
    lines = _LINES % (length, b"true" if page.has_more else b"false")
    if page.total is not None:
        lines += b"x-total-count: %d\r\n" % page.total
    if strand.gaps and (never_given := _never_given(strand, page)):
        lines += b"x-never-given: %b\r\n" % never_given.encode()
    cursor, is_array = strand.feed.cursor, isinstance(strand.feed.wire.body, BareArray)
    # Other bodies have these cursors inside.
    if (is_array or not page.entries) and page.next is not None:
        lines += b"x-next-cursor: %b\r\n" % cursor.format(page.next).encode()
    if is_array and page.previous is not None:
        lines += b"x-previous-cursor: %b\r\n" % cursor.format(page.previous).encode()
    return lines


def _never_given(strand: Strand, page: Page) -> str:
    """Gaps before entries of this page: ranges of numbers that belong to no event."""
    numbers = {entry.number for entry in page.entries}
    return ", ".join(f"{low}-{high}" for low, high in strand.gaps if high + 1 in numbers)


def check_held(held: HeldVersion | None) -> None:
    """Raise FeedHeld if there is an event that this process is too old to read."""
    if held is not None:
        raise FeedHeld(held.event_type, held.version, held.known)


class _RecentlyUsed(Generic[Kept]):
    """The most recently used values, as many as their sizes allow."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._used = 0
        self._values: OrderedDict[_Place, tuple[Kept, int]] = OrderedDict()

    def get(self, place: _Place) -> Kept | None:
        found = self._values.get(place)
        if found is None:
            return None
        self._values.move_to_end(place)
        return found[0]

    def keep(self, place: _Place, value: Kept, size: int) -> None:
        """Keep a value at a place that has none."""
        self._values[place] = (value, size)
        self._used += size
        while self._used > self._most:
            self._used -= self._values.popitem(last=False)[1][1]

    def drop(self, place: _Place) -> bool:
        """Forget a value; whether there was one."""
        before = self._values.pop(place, None)
        self._used -= before[1] if before is not None else 0
        return before is not None


class PageCache:
    """The most recently used pages of one feed that were asked for twice.

    Most pages are read once, by a reader who catches up. They are not kept: sending them from the same memory again and
    again is faster, and they leave the room to pages that are read again.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._pages: _RecentlyUsed[CachedPage] = _RecentlyUsed(most_bytes)
        # Pages that would be among them if every page were kept.
        self._asked_once: _RecentlyUsed[None] = _RecentlyUsed(most_bytes)

    def find(self, strand: Strand, asked: Asked) -> CachedPage | None:
        """The cached page, if the strand has not changed since."""
        found = self._pages.get((strand.key, asked))
        if found is None or found.strand is not strand or found.head != strand.head or not strand.current:
            return None
        return found

    def make(self, strand: Strand, asked: Asked, page: Page) -> CachedPage:
        """Encode a page, and keep it for the next reader."""
        # Events are appended at the end only, so a full page that is not the last one never changes. The exception is a
        # page from number 0 on: it begins with the oldest event that is kept, and retention moves that.
        is_full = page.has_more and len(page.entries) == asked.limit
        cached = cached_page(strand, page, is_closed=is_full and asked.after is not None and asked.after.number > 0)
        place, size = (strand.key, asked), len(cached.body) + _AROUND
        if self._pages.drop(place) or self._asked_once.drop(place):
            self._pages.keep(place, cached, size)
        else:
            self._asked_once.keep(place, None, size)
        return cached
