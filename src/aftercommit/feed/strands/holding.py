"""Where this process has to stop: an event that newer code has written cannot be read here, and nobody is led past it.

Pure. While old and new code run side by side, a reader gets that event from another process, or from this one when it
has been started anew.
"""

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.strands.history import Found


def ahead(found: Found) -> Found:
    """What can be read before the first such event; reading goes on right before it."""
    for place, entry in enumerate(found.entries):
        if entry.held is not None:
            last = found.entries[place - 1] if place else None
            looked = Cursor(last.number, last.ts) if last is not None else Cursor(0)
            return found._replace(entries=found.entries[:place], looked=looked, more=True, held=entry.held)
    return found


def back(found: Found) -> Found:
    """What can be read behind the last such event; reading back goes on right behind it."""
    for place in range(len(found.entries) - 1, -1, -1):
        entry = found.entries[place]
        if entry.held is not None:
            rest = found.entries[place + 1 :]
            looked = Cursor(rest[0].number, rest[0].ts) if rest else Cursor(0)
            return found._replace(entries=rest, looked=looked, more=True, held=entry.held)
    return found
