"""A page of a strand and the bodies in which it leaves. Pure: entries are bytes already, and are only put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from aftercommit.feed.declaration.cursor import Cursor, CursorFormat, text_of
from aftercommit.feed.declaration.entry import Entry, HeldVersion


class Page(msgspec.Struct):
    """Entries in order, and where to go on.

    `next` is how far was looked: the last entry of a full page, otherwise the head, also when filters let nothing
    through. It is None when there was nothing to look at after `after`. `total` is None where counting would cost too
    much. `head` bounds everything in the page: an ETag made from it covers no event that the page could not have had.

    A page that was read back has `before` instead, and goes on at `previous`: how far back was looked, None at the
    beginning. `has_more` means further back then, and `next` is None: it moves nobody who reads on. A page without
    either has `previous` when it is not full although older entries may match.

    `held` is the event at which the page had to end, because this process is too old to read it.
    """

    entries: Sequence[Entry]
    after: Cursor | None
    next: Cursor | None
    has_more: bool
    limit: int
    total: int | None
    head: int
    before: Cursor | None = None
    previous: Cursor | None = None
    held: HeldVersion | None = None


class Body(Protocol):
    """How a page looks as JSON."""

    def encode(self, page: Page, cursor: CursorFormat) -> bytes:
        """The body of the answer."""

    def withheld(self, entry: Entry, cursor: CursorFormat, reason: str) -> Mapping[str, Any]:
        """What stands for an item that cannot be shown: that there is one, and where."""

    def schema(self, item: dict[str, Any]) -> dict[str, Any]:
        """JSON Schema of the body, for OpenAPI."""


@dataclass(frozen=True, slots=True)
class PagedBody:
    """`{"logs": […], "pagination": {…}}`, the list under the given name."""

    items: str

    def encode(self, page: Page, cursor: CursorFormat) -> bytes:
        """The items as they are, and the pagination. At the end there is no next cursor: a header says the place."""
        goes_on = page.entries or page.has_more
        pagination = {
            "afterCursor": text_of(cursor, page.after),
            "nextCursor": text_of(cursor, page.next) if goes_on else None,
            "hasMore": page.has_more,
            "limit": page.limit,
            "returned": len(page.entries),
        }
        if page.before is not None:
            pagination["beforeCursor"] = text_of(cursor, page.before)
        if page.before is not None or page.previous is not None:
            pagination["previousCursor"] = text_of(cursor, page.previous)
        name = msgspec.json.encode(self.items)
        return _array(page.entries, b"{%b:" % name, b',"pagination":%b}' % msgspec.json.encode(pagination))

    def withheld(self, entry: Entry, cursor: CursorFormat, reason: str) -> Mapping[str, Any]:
        """With its place, as the others have it: numbers go on without a gap."""
        return {"event_id": entry.event_id, **cursor.fields(entry), "withheld": reason}

    def schema(self, item: dict[str, Any]) -> dict[str, Any]:
        """The two properties."""
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
    """The items as an array, and nothing around them: each has to carry its own place."""

    def encode(self, page: Page, cursor: CursorFormat) -> bytes:
        """The items as they are."""
        return _array(page.entries)

    def withheld(self, entry: Entry, cursor: CursorFormat, reason: str) -> Mapping[str, Any]:
        """The id of an item is its cursor here."""
        text = cursor.format(entry)
        return {"event_id": int(text) if text.isdecimal() else text, "withheld": reason}

    def schema(self, item: dict[str, Any]) -> dict[str, Any]:
        """An array."""
        return {"type": "array", "items": item}


def _array(entries: Sequence[Entry], before: bytes = b"", after: bytes = b"") -> bytes:
    """Joined once, with what stands around it: a page is large, and each further step would copy it."""
    if not entries:
        return b"%b[]%b" % (before, after)
    bodies = [entry.body for entry in entries]
    bodies[0] = b"%b[%b" % (before, bodies[0])
    bodies[-1] += b"]" + after
    return b",".join(bodies)
