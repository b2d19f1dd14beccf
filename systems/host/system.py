"""The declaration of a system, from which the site runs several systems side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from fastapi import APIRouter

from aftercommit import Database, Outbox, Service
from aftercommit.access import Access, BearerAccess
from aftercommit.feed import Feed
from aftercommit.postgres import committed
from systems.host.http import RequestPool


class Part:
    """A system in one server process: what its routes need. They find it in `request.state`.

    `access` authenticates callers, and `services` run beside the routes.
    """

    services: Sequence[Service] = ()

    def __init__(self, pool: RequestPool, access: Access) -> None:
        """Nothing is connected before the pool's lifespan begins."""
        self.pool = pool
        self.access = access

    async def exists(self, feed: Feed, key: str) -> bool:
        """Whether a feed's key names something that exists; by default every key does."""
        return True


@dataclass(frozen=True, slots=True)
class Link:
    """A page of a system."""

    href: str
    label: str


@dataclass(frozen=True, slots=True)
class SampleUser:
    """A user to try things as. `name` is the display name, if it differs from the user."""

    user: str
    about: str
    permissions: tuple[str, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class SampleChat:
    """A chat in the local Telegram, linked to a user from the start."""

    user: str
    name: str
    chat_id: int
    language: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBot:
    """The Telegram bot of a system, as `aftercommit up` runs it beside the site.

    The bot requests the paths `feed` and `redeem`. `home` is the system's page; `page` is the page of one event, with
    the event's fields in braces.
    """

    name: str
    feed: str
    redeem: str
    home: str
    page: str
    chats: Sequence[SampleChat]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system: its outbox, tables, feeds, routes, pages and sample users.

    `tables` is the SQL file that creates the system's own tables; `add_sample_data` fills them. `feeds` maps paths to
    feeds; `router` has the other routes, and `openapi` returns their `paths` and `schemas`. `pages` maps paths to files
    of the web build. `browser_redirects` maps paths to the page that a browser is sent to instead. `part` makes the
    system's `Part`; its last argument says whether programs on this machine may name their user by a header alone.
    `users_by_header` is true if a header can name the user at all.
    """

    name: str
    title: str
    about: str
    links: Sequence[Link]
    outbox: Outbox
    tables: Path
    feeds: Mapping[str, Feed]
    part: Callable[[Database, BearerAccess, bool], Part]
    router: APIRouter
    openapi: Callable[[], dict[str, Any]]
    pages: Mapping[str, str]
    browser_redirects: Mapping[str, str]
    traffic: Callable[[Database, float], Service]
    users: Sequence[SampleUser]
    users_by_header: bool = False
    add_sample_data: Callable[[psycopg.Connection[Any]], object] | None = None
    bot: SampleBot | None = None

    def create_tables(self, connection: psycopg.Connection[Any]) -> None:
        """Create missing tables and sample data. Safe to repeat, also by several processes at once."""
        with committed(connection):
            connection.execute(self.tables.read_bytes())
        if self.add_sample_data is not None:
            self.add_sample_data(connection)
