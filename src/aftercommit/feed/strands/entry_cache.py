"""The entries that history made last: an event that is read again is not decoded and redacted again. No I/O.

The database is asked for every page, so an event that is gone is in no page. A kept entry counts only for the event
that it was made from, compared field by field, and for the rules of redaction that it was made with. Entries do not
depend on the reader: the endpoint decides who may read a strand before it asks for a page.
"""

from collections import OrderedDict
from typing import Final, NamedTuple
from uuid import UUID

from aftercommit.feed.declaration.entry import Entry, StoredEvent
from aftercommit.feed.declaration.feed import Feed

MOST_BYTES: Final = 32 << 20
# The memory of an entry and its event besides body and payload.
_AROUND: Final = 1500


class _Made(NamedTuple):
    rules: str
    stored: StoredEvent
    entry: Entry
    size: int


class EntryCache:
    """The most recently read entries of one hub, bounded in bytes."""

    def __init__(self, max_bytes: int = MOST_BYTES) -> None:
        self._most = max_bytes
        self._made: OrderedDict[tuple[Feed, UUID], _Made] = OrderedDict()
        self.used = 0

    def find(self, feed: Feed, stored: StoredEvent) -> Entry | None:
        """The entry that was made from this event with today's rules."""
        place = feed, stored.record.event_id
        made = self._made.get(place)
        if made is None:
            return None
        if made.rules != feed.version or made.stored != stored:
            self._drop(place)
            return None
        self._made.move_to_end(place)
        return made.entry

    def keep(self, feed: Feed, stored: StoredEvent, entry: Entry, rules: str) -> None:
        """Keep an entry that was made with these rules. One that could not be made is tried again the next time."""
        if entry.withheld or entry.held is not None:
            return
        place = feed, stored.record.event_id
        if place in self._made:
            self._drop(place)
        size = len(entry.body) + len(stored.record.payload) + _AROUND
        self._made[place] = _Made(rules, stored, entry, size)
        self.used += size
        while self.used > self._most:
            self.used -= self._made.popitem(last=False)[1].size

    def _drop(self, place: tuple[Feed, UUID]) -> None:
        self.used -= self._made.pop(place).size
