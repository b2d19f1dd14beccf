"""Feeds: let others read events over HTTP. A feed declares which events, for which readers, and in which form.

One tailer per process reads the log once. Polls, long polls and streams are served from memory; older events come from
the database. `service` and bearer tokens need the extra `serve`.

The packages, each built on those below it:

app           feeds as an application, and a complete service around it
endpoints     the HTTP endpoints of a feed
live          open streams
strands       the events of a feed, from memory and from the database
declaration   the declaration of a feed

The names of `aftercommit.access` that most feeds need are exported here, too.
"""

from typing import TYPE_CHECKING

from aftercommit.feed.declaration.cursor import POSITION, TIME_AND_SEQ, Cursor, CursorFormat, timestamp
from aftercommit.feed.declaration.entry import Entry, LogEvent, Redacting
from aftercommit.feed.declaration.feed import Feed, Limits, Wire
from aftercommit.feed.declaration.filters import EVERYTHING, AtLeast, Chosen, Equals, Filter, OneOf
from aftercommit.feed.declaration.page import BareArray, Body, Page, PagedBody
from aftercommit.feed.declaration.selection import ByAudience, ByScope, ByStream, Everything, FeedSelection
from aftercommit.lazy import lazy

if TYPE_CHECKING:
    from aftercommit.access.bearer import BearerAccess
    from aftercommit.access.token_keys import TokenKeys
    from aftercommit.access.tokens import TokenVerifier
    from aftercommit.feed.app import FeedApp, run_lifespan
    from aftercommit.feed.app.openapi import error_response
    from aftercommit.feed.app.service import service
    from aftercommit.feed.live.streams import StreamCaps, StreamTimes
    from aftercommit.feed.strands.hub import HubSettings
else:
    __getattr__ = lazy(
        __name__,
        {
            "aftercommit.access.bearer": ("BearerAccess",),
            "aftercommit.access.token_keys": ("TokenKeys",),
            "aftercommit.access.tokens": ("TokenVerifier",),
            "aftercommit.feed.app": ("FeedApp", "run_lifespan"),
            "aftercommit.feed.app.openapi": ("error_response",),
            "aftercommit.feed.app.service": ("service",),
            "aftercommit.feed.live.streams": ("StreamCaps", "StreamTimes"),
            "aftercommit.feed.strands.hub": ("HubSettings",),
        },
    )

__all__ = [
    "EVERYTHING",
    "POSITION",
    "TIME_AND_SEQ",
    "AtLeast",
    "BareArray",
    "BearerAccess",
    "Body",
    "ByAudience",
    "ByScope",
    "ByStream",
    "Chosen",
    "Cursor",
    "CursorFormat",
    "Entry",
    "Equals",
    "Everything",
    "Feed",
    "FeedApp",
    "FeedSelection",
    "Filter",
    "HubSettings",
    "Limits",
    "LogEvent",
    "OneOf",
    "Page",
    "PagedBody",
    "Redacting",
    "StreamCaps",
    "StreamTimes",
    "TokenKeys",
    "TokenVerifier",
    "Wire",
    "error_response",
    "run_lifespan",
    "service",
    "timestamp",
]
