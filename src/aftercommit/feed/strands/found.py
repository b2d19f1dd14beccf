"""The entries that a search in a strand found, whether memory or the database answered it. Pure."""

from operator import attrgetter
from typing import Final
from uuid import UUID

import msgspec

from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.entry import Entry, HeldVersion

_held: Final = attrgetter("held")


class Found(msgspec.Struct, frozen=True):
    """Matching entries in order, and how far the search looked: up to there, no other entry matches.

    `more` says that there are further matches in the direction of the search. `epoch` is that of the log, where the
    database answered. `previous` belongs to a search for the newest entries that stopped before it had found enough:
    how far back it looked. `held` is the event at which the entries end, because this process is too old to read it.
    With `is_plain`, no entry is withheld or held.
    """

    entries: list[Entry]
    looked: Cursor
    more: bool = False
    epoch: UUID | None = None
    previous: Cursor | None = None
    held: HeldVersion | None = None
    is_plain: bool = False

    def before_held(self) -> "Found":
        """The entries before the first one that needs newer code: no reader may skip it."""
        if self.is_plain or not any(map(_held, self.entries)):
            return self
        for index, entry in enumerate(self.entries):
            if entry.held is not None:
                return self._ended(entry.held, self.entries[:index], -1)
        return self

    def after_held(self) -> "Found":
        """The entries after the last one that needs newer code, for a reader who goes back."""
        for index in range(len(self.entries) - 1, -1, -1):
            held = self.entries[index].held
            if held is not None:
                return self._ended(held, self.entries[index + 1 :], 0)
        return self

    def _ended(self, held: HeldVersion, entries: list[Entry], last: int) -> "Found":
        looked = place_of(entries[last]) if entries else Cursor(0)
        return msgspec.structs.replace(self, entries=entries, looked=looked, more=True, held=held)


def place_of(entry: Entry) -> Cursor:
    """The cursor at an entry."""
    return Cursor(entry.number, entry.ts)
