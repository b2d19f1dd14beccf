"""Pages as they were last made, for those who ask for the same while nothing has changed. Bounded in bytes."""

from collections import OrderedDict
from typing import Final

import msgspec

from aftercommit.errors import FeedHeld
from aftercommit.feed.declaration.entry import HeldVersion
from aftercommit.feed.declaration.page import BareArray, Page
from aftercommit.feed.endpoints.query import Asked
from aftercommit.feed.strands.strand import Strand

MOST_BYTES: Final = 16 << 20
# What a page costs beside its body.
_AROUND: Final = 1000


class CachedPage(msgspec.Struct, frozen=True):
    """A page as it leaves: the body, and what its headers say. `next` and `previous`: None where the body says it.

    A page that is not `whole` lacks something that another process, or newer code, can show: it gets no tag, and nobody
    keeps it.
    """

    strand: Strand
    head: int
    body: bytes
    has_more: bool
    total: int | None
    next: str | None
    previous: str | None
    is_empty: bool
    is_closed: bool
    is_whole: bool
    held: HeldVersion | None
    never_given: str = ""


def cached_page(strand: Strand, page: Page, *, is_closed: bool) -> CachedPage:
    """A page in its final form; one that is closed is the same for ever. FeedHeld when there is nothing to show yet."""
    feed = strand.feed
    if not page.entries:
        check_held(page.held)
    is_whole = page.held is None and not any(entry.withheld for entry in page.entries)
    is_array = isinstance(feed.wire.body, BareArray)
    # Otherwise they are in the body.
    following = page.next if is_array or not page.entries else None
    previous = page.previous if is_array else None
    return CachedPage(
        strand,
        page.head,
        feed.wire.body.encode(page, feed.cursor),
        page.has_more,
        page.total,
        feed.cursor.format(following) if following is not None else None,
        feed.cursor.format(previous) if previous is not None else None,
        not page.entries,
        is_closed and is_whole,
        is_whole,
        page.held,
        _never_given(strand, page),
    )


def _never_given(strand: Strand, page: Page) -> str:
    """Ranges of numbers before entries of this page that were never given: nothing is missing there."""
    if not strand.gaps:
        return ""
    numbers = {entry.number for entry in page.entries}
    return ", ".join(f"{low}-{high}" for low, high in strand.gaps if high + 1 in numbers)


def check_held(held: HeldVersion | None) -> None:
    """FeedHeld, if there is an event that this process is too old to read."""
    if held is not None:
        raise FeedHeld(held.event_type, held.version, held.known)


class PageCache:
    """The pages of one feed that were asked for last."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Empty."""
        self._most = most_bytes
        self._used = 0
        self._pages: OrderedDict[tuple[str, Asked], CachedPage] = OrderedDict()

    def find(self, strand: Strand, asked: Asked) -> CachedPage | None:
        """The page, if the strand is still what it was."""
        found = self._pages.get((strand.key, asked))
        if found is None or found.strand is not strand or found.head != strand.head or not strand.current:
            return None
        self._pages.move_to_end((strand.key, asked))
        return found

    def make(self, strand: Strand, asked: Asked, page: Page) -> CachedPage:
        """A page in its final form, which is kept for the next who asks."""
        # Nothing can come before what is there. A page that is full and not the last is the same for ever; but one from
        # number 0 on begins with the oldest event that is kept, and retention moves that.
        is_full = page.has_more and len(page.entries) == asked.limit
        cached = cached_page(strand, page, is_closed=is_full and asked.after is not None and asked.after.number > 0)
        self._keep((strand.key, asked), cached)
        return cached

    def _keep(self, key: tuple[str, Asked], cached: CachedPage) -> None:
        before = self._pages.pop(key, None)
        self._used += len(cached.body) + _AROUND - (len(before.body) + _AROUND if before is not None else 0)
        self._pages[key] = cached
        while self._used > self._most:
            _, oldest = self._pages.popitem(last=False)
            self._used -= len(oldest.body) + _AROUND
