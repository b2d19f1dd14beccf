"""Follow a feed over HTTP, from a bookmark on, across lost connections and restarts of either side.

    async for event in follow("https://…/logs", token=get_token, bookmark=FileBookmark("logs.cursor")):
        print(event.data["message"])

`read` and `read_back` read a part of a feed and end.

Decisions are pure (`machine`, `read_position`, `wire`, `sse_decoder`); `follow` and `reading` act on them through
`requests`. `PROTOCOL.md` describes the protocol. Needs `aftercommit[client]`.
"""

from aftercommit.client.bookmark import Bookmark, FileBookmark, MemoryBookmark
from aftercommit.client.bookmark_table import PostgresBookmark, SqliteBookmark
from aftercommit.client.follow import Follower, follow
from aftercommit.client.machine import Pace, State
from aftercommit.client.options import Gap, Options, ReadOptions
from aftercommit.client.reading import read, read_back
from aftercommit.client.sync import SyncFollower, follow_sync
from aftercommit.client.wire import LOGS, TASKS, FeedEvent, Wire

__all__ = [
    "LOGS",
    "TASKS",
    "Bookmark",
    "FeedEvent",
    "FileBookmark",
    "Follower",
    "Gap",
    "MemoryBookmark",
    "Options",
    "Pace",
    "PostgresBookmark",
    "ReadOptions",
    "SqliteBookmark",
    "State",
    "SyncFollower",
    "Wire",
    "follow",
    "follow_sync",
    "read",
    "read_back",
]
