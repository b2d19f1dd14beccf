"""What a request asks for: a place, limit and filters from its query, waiting and tags from its headers. Pure."""

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
# Before what is yet to come: the newest page, wherever a feed begins.
END = "end"
# Pollers ask the same thing again and again, and many of them the same as others.
REMEMBERED = 2048
# More digits than these are as many seconds as nobody is let wait.
_WAIT = re.compile(r'(?:^|[,;\s])wait\s*=\s*"?(\d{1,6})\d*"?\s*(?:$|[,;])', re.IGNORECASE)


class Asked(NamedTuple):
    """What comes after a cursor; without one the newest, or, where the feed begins there, the oldest that is kept."""

    after: Cursor | None
    limit: int
    chosen: Chosen


class AskedBack(NamedTuple):
    """What lies right before a cursor."""

    before: Cursor
    limit: int
    chosen: Chosen


class AskedEnd(NamedTuple):
    """What lies right before what is yet to come: the newest, wherever the feed begins."""

    limit: int
    chosen: Chosen


class AskedFrom(NamedTuple):
    """What came from a moment on."""

    moment: datetime
    limit: int
    chosen: Chosen


class Questions:
    """Reads the queries of one feed; those that cannot be answered raise what is wrong with them."""

    def __init__(self, feed: Feed) -> None:
        """Nothing asked yet."""
        self._feed = feed
        wire = feed.wire
        self._places = (wire.cursor, wire.before, wire.from_time)
        self._known = (wire.cursor, wire.limit, *(each.parameter for each in feed.filters))
        self.read = lru_cache(maxsize=REMEMBERED)(self._read)
        self.read_page = lru_cache(maxsize=REMEMBERED)(self._read_page)

    def _read(self, query: bytes) -> Asked:
        """A question of those who read on, of a stream for one."""
        given = parameters_of(query)
        self._check_names(given, self._known)
        return self._asked(given)

    def _read_page(self, query: bytes) -> Asked | AskedBack | AskedEnd | AskedFrom:
        """A question for a page, which may also lie before a cursor or begin at a moment."""
        given = parameters_of(query)
        self._check_names(given, (*self._known, *self._places[1:]))
        places = [name for name in self._places if name in given]
        if len(places) > 1:
            said = f"{' and '.join(places)} cannot be asked for together: give one of {', '.join(self._places)}"
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
        # Number 0 stands before everything that is kept.
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
            # `afterCursor` and `beforeCursor` are a cursor; others are named as they are called.
            if not parameter.endswith("Cursor"):
                problem.parameter = parameter
            raise

    def _check_names(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        for name in given:
            if name not in known:
                # A filter that is misspelt and ignored would show what was meant to be hidden.
                said = f"Unknown parameter {name!r:.60}: this address takes {', '.join(known)}"
                raise bad_request(said, parameter=name[:60])


def wait_of(prefer: str | None) -> int:
    """How many seconds the client would like to wait for news (`Prefer: wait=20`); what cannot be read is no wish."""
    found = _WAIT.search(prefer) if prefer is not None else None
    return min(int(found[1]), LONGEST_WAIT) if found is not None else 0


def has_tag(header: str, tag: str) -> bool:
    """Whether If-None-Match names this tag: weak or strong, alone or in a list, `*`, or quoted twice.

    Twice quoted (`"W/\\"…\\""`) is how some clients copy it from a printed form. Our tags are hexadecimal, so what
    stands between quotation marks can only be the whole of one.
    """
    return header == tag or header.strip() == "*" or tag.removeprefix("W/") in header.replace("\\", "")
