"""The weak ETag of a page, made from the request, the reader and the newest event of the strand. Pure; no query.

The page's content is no part of it. Two responses with the same tag had the same head, so a client that has one of them
has everything that the same request can return. Another request, or another head, has another tag.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Final

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.strands.strand import Strand

# A poller repeats its request while there is nothing new.
REMEMBERED: Final = 4096


def tag_of(
    strand: Strand, after: Cursor | None, limit: int, chosen: Chosen, rights: str, head: int | None = None
) -> str:
    """The tag, as `W/"…"`. Compare it before the page is made; send the one made with `page.head` with the page.

    `rights` is a digest of what the reader may see. Without `head`, it is the strand's current head.
    """
    newest = strand.head if head is None else head
    feed = strand.feed
    about = (feed.outbox.schema, feed.name, feed.version, strand.key, strand.epoch.int, chosen.key, rights)
    return _tag(about, newest, after, limit)


@lru_cache(maxsize=REMEMBERED)
def _tag(about: tuple[str | int, ...], newest: int, after: Cursor | None, limit: int) -> str:
    place = (after.number, after.ts and after.ts.timestamp()) if after is not None else None
    text = repr((about, newest, place, limit))
    return f'W/"{blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()}"'
