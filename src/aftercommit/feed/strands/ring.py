"""Pages that the ring of a strand has; None where it does not reach back far enough. Pure.

Whether a cursor is good, the hub has seen to before.
"""

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.strands.history import Found
from aftercommit.feed.strands.strand import Strand


def newest(strand: Strand, end: Cursor, limit: int, chosen: Chosen) -> Found | None:
    """The newest entries up to the end."""
    window = strand.latest(limit, chosen, end.number)
    return Found(list(window.entries), end, False, strand.epoch) if window is not None else None


def behind(strand: Strand, after: Cursor, end: Cursor, limit: int, chosen: Chosen) -> Found | None:
    """What comes after a cursor, up to the end."""
    window = strand.after(after.number, limit, chosen, end.number)
    if window is None:
        return None
    looked = Cursor(window.looked_upto, window.ts)
    if len(window.entries) == limit and looked.number < end.number:
        next_one = strand.after(looked.number, 1, chosen, end.number)
        if next_one is not None and next_one.entries:
            return Found(list(window.entries), looked, True, strand.epoch)
        looked = end
    return Found(list(window.entries), looked, False, strand.epoch)


def before(strand: Strand, cursor: Cursor, limit: int, chosen: Chosen) -> Found | None:
    """What lies right before a cursor."""
    window = strand.before(cursor.number, limit, chosen)
    if window is None:
        return None
    looked = Cursor(window.entries[0].number, window.entries[0].ts) if window.more else Cursor(0)
    return Found(list(window.entries), looked, window.more, strand.epoch)
