"""The weak ETag of a page: what was asked for, by whom, and the newest event there was. Pure, and made without a query.

It is never made of a page's content. Two answers with one tag were bounded by the same head, so whoever holds it has
been given everything that the same request could give; a tag of another request or of another head is another tag.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Final

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.strands.strand import Strand

# Who polls asks for the same again and again while nothing is new.
REMEMBERED: Final = 4096


def tag_of(
    strand: Strand, after: Cursor | None, limit: int, chosen: Chosen, rights: str, head: int | None = None
) -> str:
    """The tag, as `W/"…"`. Compare before the page is made; send the one made with `page.head` along with the page.

    `rights` is a digest of what the reader may see. Without `head` it is the strand's at this moment, read once.
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
