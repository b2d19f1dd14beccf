"""An application that the command line can run: outboxes, its own tables, HTTP routes and sample traffic.

`--app package.module:name` names one for `aftercommit up` and `aftercommit serve`.
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
    """The configuration of a server process.

    `development` allows it to hand out tokens of sample users to clients on this machine. With `local_users` it trusts
    the header `X-User-Id` without a token; only a development server on a loopback address should. `drain_seconds` is
    how long open streams have to end when the server stops. `companions` maps the names of services that run beside it
    to their addresses. `open_metrics` answers `/metrics` without a token; `docs` serves `/docs` and `/openapi.json`.
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
    """Services that `aftercommit up` runs beside the server.

    Each server process gets `addresses`. `aftercommit up` prints `about`, with the application's address in place of
    `{url}`, and `commands` of `aftercommit` to inspect them with. `services` creates the services, given that address;
    they are started last and stopped first.
    """

    addresses: Mapping[str, str]
    about: Mapping[str, str]
    services: Callable[[str], Sequence[Service]]
    commands: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A service, or several that run together.

    `create_tables` creates the service's own tables and must be idempotent. `asgi` creates the HTTP application, once
    in each server process; if it has a method `drain`, the server calls it when it stops. `traffic` creates services
    that generate sample events at a given rate, and `companions` those that run beside the server, given its port; only
    `aftercommit up` runs these two. `users_by_header` lists the outboxes whose readers are identified by `X-User-Id`
    (`TrustedUsers`): `aftercommit serve` starts only if each has a service token with the permission `act-as-user`.
    """

    about: str
    outboxes: tuple[Outbox, ...]
    create_tables: Callable[[psycopg.Connection[Any]], object] | None = None
    asgi: Callable[[Serving], Asgi] | None = None
    traffic: Callable[[Database, float], Sequence[Service]] | None = None
    companions: Callable[[Database, int], Companions] | None = None
    users_by_header: tuple[Outbox, ...] = ()
