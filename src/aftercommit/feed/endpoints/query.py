"""Parses a request: cursor, limit and filters from its query, `Prefer` and `If-None-Match` from its headers. Pure."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from aftercommit.errors import InvalidCursor
from aftercommit.feed.declaration.cursor import Cursor, moment_of
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.http.asgi import parameters_of
from aftercommit.http.errors import bad_request

LONGEST_WAIT = 60
# As a `before` cursor: the newest page, wherever the feed begins.
END = "end"
# Pollers repeat their requests, and many of them send the same.
REMEMBERED = 2048
# Digits after the sixth are dropped: the wait is cut to LONGEST_WAIT anyway.
_WAIT = re.compile(r'(?:^|[,;\s])wait\s*=\s*"?(\d{1,6})\d*"?\s*(?:$|[,;])', re.IGNORECASE)


class Asked(NamedTuple):
    """Items after a cursor. Without a cursor: the newest, or the oldest that are kept, as the feed declares."""

    after: Cursor | None
    limit: int
    chosen: Chosen


class AskedBack(NamedTuple):
    """Items right before a cursor."""

    before: Cursor
    limit: int
    chosen: Chosen


class AskedEnd(NamedTuple):
    """The newest items, wherever the feed begins."""

    limit: int
    chosen: Chosen


class AskedFrom(NamedTuple):
    """Items from a time on."""

    moment: datetime
    limit: int
    chosen: Chosen


class Questions:
    """Parses the queries of one feed, and refuses those that it does not support."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        wire = feed.wire
        self._places = (wire.cursor, wire.before, wire.from_time)
        self._known = (wire.cursor, wire.limit, *(each.parameter for each in feed.filters))
        self.read = lru_cache(maxsize=REMEMBERED)(self._read)
        self.read_page = lru_cache(maxsize=REMEMBERED)(self._read_page)

    def _read(self, query: bytes) -> Asked:
        """The query of a stream, which reads forwards."""
        given = parameters_of(query)
        self._check_names(given, self._known)
        return self._asked(given)

    def _read_page(self, query: bytes) -> Asked | AskedBack | AskedEnd | AskedFrom:
        """The query of a page, which may also be before a cursor or from a time on."""
        given = parameters_of(query)
        self._check_names(given, (*self._known, *self._places[1:]))
        places = [name for name in self._places if name in given]
        if len(places) > 1:
            said = f"{' and '.join(places)} cannot be combined: give one of {', '.join(self._places)}"
            raise bad_request(said, parameter=places[1])
        asked, wire = self._asked(given), self._feed.wire
        if given.get(wire.before) == END:
            return AskedEnd(asked.limit, asked.chosen)
        if wire.before in given:
            return AskedBack(self._cursor(wire.before, given[wire.before]), asked.limit, asked.chosen)
        if wire.from_time in given:
            return AskedFrom(moment_of(wire.from_time, given[wire.from_time]), asked.limit, asked.chosen)
        return asked

    def _asked(self, given: Mapping[str, str]) -> Asked:
        feed = self._feed
        cursor = given.get(feed.wire.cursor)
        # Number 0 is before every event.
        beginning = Cursor(0) if feed.begins == "oldest" else None
        return Asked(
            self._cursor(feed.wire.cursor, cursor) if cursor is not None else beginning,
            feed.limits.parse(feed.wire.limit, given.get(feed.wire.limit)),
            feed.chosen(given),
        )

    def _cursor(self, parameter: str, text: str) -> Cursor:
        try:
            return self._feed.cursor.parse(text)
        except InvalidCursor as problem:
            # In `details`, `afterCursor` and `beforeCursor` are called `cursor`, other parameters by their own name.
            if not parameter.endswith("Cursor"):
                problem.parameter = parameter
            raise

    def _check_names(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        for name in given:
            if name not in known:
                # Ignoring a misspelt filter would show items that the client meant to leave out.
                said = f"Unknown parameter {name!r:.60}: this address takes {', '.join(known)}"
                raise bad_request(said, parameter=name[:60])


def wait_of(prefer: str | None) -> int:
    """The seconds of `Prefer: wait=20`, at most LONGEST_WAIT; 0 where the header has none."""
    found = _WAIT.search(prefer) if prefer is not None else None
    return min(int(found[1]), LONGEST_WAIT) if found is not None else 0


def has_tag(header: str, tag: str) -> bool:
    """Whether If-None-Match has this tag: weak or strong, alone or in a list, `*`, or quoted twice.

    Some clients copy a tag from a printed form, quoted twice (`"W/\\"…\\""`). Our tags are hexadecimal, so a match
    between quotation marks is always a whole tag.
    """
    return header == tag or header.strip() == "*" or tag.removeprefix("W/") in header.replace("\\", "")
