"""What the command line can run as a whole: outboxes, a service's own tables, its HTTP routes, and something to see.

`--app package.module:name` names one of these for `aftercommit up` and `aftercommit serve`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from aftercommit.http.asgi import DRAIN_SECONDS, Asgi
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.service import Service


@dataclass(frozen=True, slots=True)
class Serving:
    """What a server process is told.

    In `development` it may hand out sample users' tokens, to this machine alone. With `local_users` it believes the
    header `X-User-Id` of programs on this machine: only a development server that listens on loopback does.
    `drain_seconds` is how long its streams have to end when it is stopped: that of its `StreamTimes`. `companions` are
    the addresses of what runs beside it, by name. `open_metrics` answers `/metrics` without a token; `docs` serves
    `/docs` and `/openapi.json`.
    """

    database: Database
    development: bool = False
    drain_seconds: float = DRAIN_SECONDS
    companions: Mapping[str, str] = field(default_factory=dict)
    local_users: bool = False
    open_metrics: bool = False
    docs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """What `aftercommit up` runs beside the server, so that there is more to see.

    `addresses` are told to each server process, and with `about` to whoever starts it, where `{url}` stands for the
    address at which the application is served; so are `commands` of `aftercommit` by which to look at them. `services`
    makes what is to run, given that address; it is started last and stopped first.
    """

    addresses: Mapping[str, str]
    about: Mapping[str, str]
    services: Callable[[str], Sequence[Service]]
    commands: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A service, or several that are run together.

    `create_tables` makes the service's own tables and must be harmless to repeat. `asgi` makes the HTTP application,
    once in each server process; where it has a `drain`, that is called when the process is to end. `traffic` makes
    services that let something happen, each so many times a second; `companions`, given the port that is asked for,
    what else runs beside the server. `aftercommit up` alone runs both. `users_by_header` are the outboxes whose readers
    are named by `X-User-Id` (`TrustedUsers`): `aftercommit serve` does not start before each has a service token with
    the permission `act-as-user`.
    """

    about: str
    outboxes: tuple[Outbox, ...]
    create_tables: Callable[[psycopg.Connection[Any]], object] | None = None
    asgi: Callable[[Serving], Asgi] | None = None
    traffic: Callable[[Database, float], Sequence[Service]] | None = None
    companions: Callable[[Database, int], Companions] | None = None
    users_by_header: tuple[Outbox, ...] = ()
