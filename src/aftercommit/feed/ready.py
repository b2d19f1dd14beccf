"""Pages as they were last made, for those who ask for the same while nothing has changed. Bounded in bytes."""

from collections import OrderedDict
from typing import Final

import msgspec

from aftercommit.feed.asking import Asked
from aftercommit.feed.page import BareArray, Page
from aftercommit.feed.strand import Strand

MOST_BYTES: Final = 16 << 20
# What a page costs beside its body.
_AROUND: Final = 1000


class Ready(msgspec.Struct, frozen=True):
    """A page as it leaves: the body, and what its headers say. `next` and `previous`: None where the body says it."""

    strand: Strand
    head: int
    body: bytes
    has_more: bool
    total: int | None
    next: str | None
    previous: str | None
    is_empty: bool
    is_closed: bool


class ReadyPages:
    """The pages of one feed that were asked for last."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Empty."""
        self._most = most_bytes
        self._used = 0
        self._pages: OrderedDict[tuple[str, Asked], Ready] = OrderedDict()

    def find(self, strand: Strand, asked: Asked) -> Ready | None:
        """The page, if the strand is still what it was."""
        found = self._pages.get((strand.key, asked))
        if found is None or found.strand is not strand or found.head != strand.head or not strand.current:
            return None
        self._pages.move_to_end((strand.key, asked))
        return found

    def make(self, strand: Strand, asked: Asked, page: Page) -> Ready:
        """A page in its final form, which is kept for the next who asks."""
        feed = strand.feed
        # Otherwise it is in the body.
        is_array = isinstance(feed.wire.body, BareArray)
        by_header = is_array or not page.entries
        ready = Ready(
            strand,
            page.head,
            feed.wire.body.encode(page, feed.cursor),
            page.has_more,
            page.total,
            feed.cursor.format(page.next) if page.next is not None and by_header else None,
            feed.cursor.format(page.previous) if page.previous is not None and is_array else None,
            not page.entries,
            # Nothing can come before what is there. A page that is full and not the last is the same for ever; but one
            # from number 0 on begins with the oldest event that is kept, and retention moves that.
            asked.after is not None and asked.after.number > 0 and page.has_more and len(page.entries) == asked.limit,
        )
        self._keep((strand.key, asked), ready)
        return ready

    def _keep(self, key: tuple[str, Asked], ready: Ready) -> None:
        before = self._pages.pop(key, None)
        self._used += len(ready.body) + _AROUND - (len(before.body) + _AROUND if before is not None else 0)
        self._pages[key] = ready
        while self._used > self._most:
            _, oldest = self._pages.popitem(last=False)
            self._used -= len(oldest.body) + _AROUND
