"""Let others read: a feed is a declaration of what may be read over HTTP, by whom, and in which form.

One tailer per process reads the log once; polls, long-polls and streams are served from what it keeps, and only what
is older comes from the database. Declaration and core need nothing more; serving needs the extra `serve`.

The rooms, each standing on those below it:

app           feeds as an application, and the whole service around one
endpoints     the addresses of a feed: who comes in, what is asked for, what is answered
live          readers who stay: open streams
strands       where events come from
declaration   what a feed is
access        who may ask, for what, and how often; beside it `server`, the process around an application
http          HTTP as it is spoken here, and `redaction`, beside it: what must not leave

Here are the names that a declaration is written with; everything else is imported from where it is.
"""

from aftercommit.feed.declaration.cursor import POSITION, TIME_AND_SEQ, Cursor, CursorFormat, timestamp
from aftercommit.feed.declaration.entry import Entry, LogEvent
from aftercommit.feed.declaration.feed import Feed, Limits, Wire
from aftercommit.feed.declaration.filters import EVERYTHING, AtLeast, Chosen, Equals, Filter, OneOf
from aftercommit.feed.declaration.page import BareArray, Page, PagedBody
from aftercommit.feed.declaration.selection import ByAudience, ByScope, ByStream, Everything

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
    "Filter",
    "Limits",
    "LogEvent",
    "OneOf",
    "Page",
    "PagedBody",
    "Wire",
    "timestamp",
]
