"""A page of a strand, and the forms of its JSON body. Pure: entries are encoded already, and are joined here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol, cast

import msgspec

from aftercommit.feed.declaration.cursor import Cursor, CursorFormat, text_of
from aftercommit.feed.declaration.entry import Entry, HeldVersion


class Page(msgspec.Struct):
    """Entries in order, and the cursors to continue with.

    `next` is how far the search came: the last entry of a full page, otherwise the head, even if filters let nothing
    through. It is None if there was nothing after `after`. `total` is None where counting would cost too much. No entry
    is above `head`: an ETag made from it covers no event that the page could not have.

    A page read backwards has `before` instead, and continues at `previous`: how far back the search came, None at the
    beginning. `has_more` then means older entries, and `next` is None. A page with neither cursor has `previous` if it
    is not full although older entries may match.

    `held` is the event at which the page had to end, because this process is too old to read it. With `is_plain`, no
    entry is withheld.
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
    is_plain: bool = False


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
        goes_on = page.entries or page.has_more
        pagination = {
            "afterCursor": _text_of(cursor, page.after),
            "nextCursor": _text_of(cursor, page.next) if goes_on else None,
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


# The next cursor of one page is the cursor of the next request.
_text_of: Final = cast(Callable[[CursorFormat, Cursor | None], str | None], lru_cache(maxsize=4096)(text_of))


def _array(entries: Sequence[Entry], before: bytes = b"", after: bytes = b"") -> bytes:
    """The array with what stands around it, joined in one step: a page is large, and every step would copy it."""
    if not entries:
        return b"%b[]%b" % (before, after)
    bodies = [entry.body for entry in entries]
    bodies[0] = b"%b[%b" % (before, bodies[0])
    bodies[-1] += b"]" + after
    return b",".join(bodies)
