"""A page of a strand, and the forms of its JSON body. Pure: entries are encoded already, and are joined here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Protocol, cast
from uuid import UUID

import msgspec

from aftercommit.feed.declaration.cursor import Cursor, CursorFormat, text_of
from aftercommit.feed.declaration.entry import Entry, HeldVersion


class Page(msgspec.Struct):
    """Matching entries in order, and how far the search looked: up to there, no other entry matches.

    A page after a cursor has `after`, and continues at `next`. A page read backwards has `before` instead, and
    continues at `previous`: how far back the search looked, None at the beginning. `has_more` says that there are
    further matches in this direction. A page with neither cursor has `previous` if it is not full although older
    entries may match. `total` is None where counting would cost too much. No entry is above `head`: an ETag made from
    it covers no event that the page could not have.

    `held` is the event at which the page had to end, because this process is too old to read it. With `is_plain`, no
    entry is withheld or held. `epoch` is that of the log, where the database answered.
    """

    entries: Sequence[Entry]
    looked: Cursor
    has_more: bool = False
    epoch: UUID | None = None
    previous: Cursor | None = None
    held: HeldVersion | None = None
    is_plain: bool = False
    after: Cursor | None = None
    before: Cursor | None = None
    limit: int = 0
    total: int | None = None
    head: int = 0

    @property
    def next(self) -> Cursor | None:
        """The last entry of a full page, otherwise the head, even if filters let nothing through.

        None if there was nothing after `after`.
        """
        if self.before is not None or self.looked.number <= (self.after.number if self.after is not None else 0):
            return None
        return self.looked

    def before_held(self) -> "Page":
        """The entries before the first one that needs newer code: no reader may skip it."""
        if self.is_plain or not any(map(_held, self.entries)):
            return self
        for index, entry in enumerate(self.entries):
            if entry.held is not None:
                return self._ended(entry.held, self.entries[:index], -1)
        return self

    def after_held(self) -> "Page":
        """The entries after the last one that needs newer code, for a reader who goes back."""
        for index in range(len(self.entries) - 1, -1, -1):
            held = self.entries[index].held
            if held is not None:
                return self._ended(held, self.entries[index + 1 :], 0)
        return self

    def _ended(self, held: HeldVersion, entries: Sequence[Entry], last: int) -> "Page":
        looked = place_of(entries[last]) if entries else Cursor(0)
        return msgspec.structs.replace(self, entries=entries, looked=looked, has_more=True, held=held)


class Body(Protocol):
    """The JSON form of a page."""

    def encode(self, page: Page, cursor: CursorFormat) -> bytes:
        """The body of the response."""

    def withheld(self, entry: Entry, cursor: CursorFormat, reason: str) -> Mapping[str, Any]:
        """The note that takes the place of an item that cannot be shown."""

    def schema(self, item: dict[str, Any]) -> dict[str, Any]:
        """JSON Schema of the body, for OpenAPI."""


@dataclass(frozen=True, slots=True)
class PagedBody:
    """`{"logs": […], "pagination": {…}}`, with the list under the given name."""

    items: str

    def encode(self, page: Page, cursor: CursorFormat) -> bytes:
        """Items and pagination. At the end there is no next cursor in the body; a header has it."""
        following = page.next if page.entries or page.has_more else None
        pagination = b'"afterCursor":%b,"nextCursor":%b,"hasMore":%b,"limit":%d,"returned":%d' % (
            _json_of(cursor, page.after),
            _json_of(cursor, following),
            b"true" if page.has_more else b"false",
            page.limit,
            len(page.entries),
        )
        if page.before is not None:
            pagination += b',"beforeCursor":%b' % _json_of(cursor, page.before)
        if page.before is not None or page.previous is not None:
            pagination += b',"previousCursor":%b' % _json_of(cursor, page.previous)
        return _array(page.entries, b"{%b:" % _name(self.items), b',"pagination":{%b}}' % pagination)

    def withheld(self, entry: Entry, cursor: CursorFormat, reason: str) -> Mapping[str, Any]:
        """A note with the cursor fields of an item, so that numbers have no gap."""
        return {"event_id": entry.event_id, **cursor.fields(entry), "withheld": reason}

    def schema(self, item: dict[str, Any]) -> dict[str, Any]:
        """An object with the items and the pagination."""
        cursor = {"type": ["string", "null"]}
        pagination = {
            "afterCursor": cursor,
            "nextCursor": cursor,
            "hasMore": {"type": "boolean"},
            "limit": {"type": "integer"},
            "returned": {"type": "integer"},
        }
        return {
            "type": "object",
            "required": [self.items, "pagination"],
            "properties": {
                self.items: {"type": "array", "items": item},
                "pagination": {
                    "type": "object",
                    "required": list(pagination),
                    "properties": {**pagination, "beforeCursor": cursor, "previousCursor": cursor},
                },
            },
        }


@dataclass(frozen=True, slots=True)
class BareArray:
    """A plain array of items; each item must have its own cursor."""

    def encode(self, page: Page, cursor: CursorFormat) -> bytes:
        """The array."""
        return _array(page.entries)

    def withheld(self, entry: Entry, cursor: CursorFormat, reason: str) -> Mapping[str, Any]:
        """A note whose `event_id` is the cursor."""
        text = cursor.format(entry)
        return {"event_id": int(text) if text.isdecimal() else text, "withheld": reason}

    def schema(self, item: dict[str, Any]) -> dict[str, Any]:
        """An array."""
        return {"type": "array", "items": item}


def place_of(entry: Entry) -> Cursor:
    """The cursor at an entry."""
    return Cursor(entry.number, entry.ts)


def _encoded(cursor: CursorFormat, place: Cursor | None) -> bytes:
    return msgspec.json.encode(text_of(cursor, place))


# The next cursor of one page is the cursor of the next request.
_json_of: Final = cast(Callable[[CursorFormat, Cursor | None], bytes], lru_cache(maxsize=4096)(_encoded))
_name: Final = lru_cache(maxsize=64)(msgspec.json.encode)
_held: Final = attrgetter("held")


def _array(entries: Sequence[Entry], before: bytes = b"", after: bytes = b"") -> bytes:
    """The array with what stands around it, joined in one step: a page is large, and every step would copy it."""
    if not entries:
        return b"%b[]%b" % (before, after)
    # Faster than attrgetter, which does not remember where a struct has its field.
    bodies = [entry.body for entry in entries]
    bodies[0] = b"%b[%b" % (before, bodies[0])
    bodies[-1] = b"%b]%b" % (bodies[-1], after)
    return b",".join(bodies)
