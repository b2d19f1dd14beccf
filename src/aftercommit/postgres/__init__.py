"""PostgreSQL: connections, notifications, commits, and most of the SQL, in `queries`.

SQL that depends on a declaration is built elsewhere, for example that of publish in `outbox.insert`. A service of yours
on the same database may use the exported names.
"""

from aftercommit.postgres.arrays import uuid_array
from aftercommit.postgres.bounded import BoundedConnection, Unanswered, answered_within
from aftercommit.postgres.commits import committed, committed_async
from aftercommit.postgres.database import SPEAK_ISO, connect_timeout, speaks_iso
from aftercommit.postgres.keepalive import connection_options
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.resilience import DatabaseService, close_quietly

__all__ = [
    "SPEAK_ISO",
    "BoundedConnection",
    "DatabaseService",
    "Listener",
    "Unanswered",
    "answered_within",
    "close_quietly",
    "committed",
    "committed_async",
    "connect_timeout",
    "connection_options",
    "speaks_iso",
    "uuid_array",
]
