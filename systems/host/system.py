"""What every system declares about itself, so that the site can run all of them side by side."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
from fastapi import APIRouter

from aftercommit import Database, Outbox, Service
from aftercommit.access import Access, BearerAccess
from aftercommit.feed import Feed
from aftercommit.postgres import committed


class Part(Protocol):
    """A system in one server process: what its routes need while they are served. They find it in `request.state`."""

    @property
    def access(self) -> Access:
        """How those who read its feeds are known."""

    @property
    def services(self) -> Sequence[Service]:
        """What runs beside its routes."""

    async def exists(self, feed: Feed, key: str) -> bool:
        """Whether there is such a thing to read about."""

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """While requests are answered."""


@dataclass(frozen=True, slots=True)
class Link:
    """A page of a system."""

    href: str
    label: str


@dataclass(frozen=True, slots=True)
class SampleUser:
    """Somebody to try things as. `name` is what people call them, where that is not the user itself."""

    user: str
    about: str
    permissions: tuple[str, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class SampleChat:
    """A chat of a local Telegram that is linked to a user from the start."""

    user: str
    name: str
    chat_id: int
    language: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBot:
    """The Telegram bot of a system, as `aftercommit up` runs it beside the site.

    `feed` and `redeem` are the paths that the bot asks. `home` is the system's page; `page` is that of one event, with
    fields of the event in braces.
    """

    name: str
    feed: str
    redeem: str
    home: str
    page: str
    chats: Sequence[SampleChat]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system: what it is, its outbox and tables, how it is read and written over HTTP, and what there is to see.

    `tables` is the file that creates the system's own tables; `add_sample_data` fills them where it is run for a trial.
    `feeds` are read at these paths; `router` has the other routes, which `paths` and `schemas` describe for OpenAPI.
    `pages` maps paths to files of the web build. `browser_redirects` maps paths, most of them routes of programs, to
    the page that a browser is sent to instead. `part` also gets whether programs on this machine may name their user by
    a header alone; `users_by_header` says that this system's users are named by a header at all.
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
    paths: Callable[[], dict[str, Any]]
    schemas: Callable[[], dict[str, Any]]
    pages: Mapping[str, str]
    browser_redirects: Mapping[str, str]
    traffic: Callable[[Database, float], Service]
    users: Sequence[SampleUser]
    users_by_header: bool = False
    add_sample_data: Callable[[psycopg.Connection[Any]], object] | None = None
    bot: SampleBot | None = None

    def create_tables(self, connection: psycopg.Connection[Any]) -> None:
        """Create what is missing, and the sample data; harmless to repeat, also by several processes at once."""
        with committed(connection):
            connection.execute(self.tables.read_bytes())
        if self.add_sample_data is not None:
            self.add_sample_data(connection)
