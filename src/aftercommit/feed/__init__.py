"""Let others read: a feed is a declaration of what may be read over HTTP, by whom, and in which form.

One tailer per process reads the log once; polls, long-polls and streams are served from what it keeps, and only what
is older comes from the database. Declaration and core need nothing more; serving needs the extra `serve`.
"""

from aftercommit.feed.cursor import POSITION, TIME_AND_SEQ, Cursor, CursorFormat, timestamp
from aftercommit.feed.declaration import Feed, Limits, Wire
from aftercommit.feed.entry import Entry, LogEvent
from aftercommit.feed.etag import tag_of
from aftercommit.feed.filters import EVERYTHING, AtLeast, Chosen, Equals, Filter, OneOf
from aftercommit.feed.hub import FeedHub, HubSettings
from aftercommit.feed.page import BareArray, Page, PagedBody
from aftercommit.feed.selection import ByAudience, ByScope, ByStream, Everything
from aftercommit.feed.strand import Strand, Window

__all__ = [
    "EVERYTHING",
    "POSITION",
    "TIME_AND_SEQ",
    "AtLeast",
    "BareArray",
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
    "FeedHub",
    "Filter",
    "HubSettings",
    "Limits",
    "LogEvent",
    "OneOf",
    "Page",
    "PagedBody",
    "Strand",
    "Window",
    "Wire",
    "tag_of",
    "timestamp",
]
