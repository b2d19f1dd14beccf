"""What the command line can run as a whole: outboxes, a service's own tables, its HTTP routes, and something to see.

`--app package.module:name` names one of these for `aftercommit up` and `aftercommit serve`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from aftercommit.feed.http import Asgi
from aftercommit.feed.streams import StreamTimes
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.service import Service


@dataclass(frozen=True, slots=True)
class Serving:
    """What a server process is told.

    In `development` it may hand out sample users' tokens, to this machine alone. `drain` is how many seconds its
    streams have to end when it is stopped: the `StreamTimes.drain` of its feeds.
    """

    database: Database
    development: bool = False
    drain: float = StreamTimes().drain


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A service, or several that are run together.

    `create_tables` makes the service's own tables and must be harmless to repeat. `asgi` makes the HTTP application,
    once in each server process; where it has a `drain`, that is called when the process is to end. `traffic` makes
    services that let something happen, each so many times a second; `aftercommit up` alone runs them.
    """

    about: str
    outboxes: tuple[Outbox, ...]
    create_tables: Callable[[psycopg.Connection[Any]], object] | None = None
    asgi: Callable[[Serving], Asgi] | None = None
    traffic: Callable[[Database, float], Sequence[Service]] | None = None
