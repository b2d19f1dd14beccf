"""Several systems behind one address: index page, their routes and pages, `/docs`, health and metrics."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

import psycopg

from aftercommit import Application, Companions, Database, Service, Serving
from aftercommit.access import BearerAccess, TokenKeys, TokenVerifier
from aftercommit.contrib.prometheus import exposition
from aftercommit.embedded import default_folder
from aftercommit.errors import DeclarationError
from aftercommit.feed import Feed, FeedApp, StreamTimes, run_lifespan, service
from aftercommit.http import Cors, Receive, Scope, Send
from aftercommit.postgres import Listener
from systems.host.browser_pages import PagesForPeople
from systems.host.pages import page_routes
from systems.host.routes import served
from systems.host.system import System

ORIGINS: Final = "AFTERCOMMIT_CORS_ORIGINS"
ANSWERS_WITHIN: Final = "AFTERCOMMIT_ANSWERS_WITHIN"
TITLE: Final = "aftercommit"
ABOUT: Final = "The systems of this site. Each writes its events in the transaction that changes its data."


class Site:
    """The HTTP application of one server process."""

    def __init__(self, systems: Sequence[System], serving: Serving) -> None:
        """Nothing is connected before the lifespan begins."""
        self._systems = systems
        database, keys = _patient(serving.database, os.environ), _keys(serving)
        self._development = serving.development
        listener = Listener(database)
        verifier = TokenVerifier(keys)
        # All systems share the signing keys; each has its own service tokens and revocations, beside its outbox.
        bearers = {
            system.name: BearerAccess(verifier, database, system.outbox, listener=listener) for system in systems
        }
        self._parts = {
            system.name: system.part(database, bearers[system.name], serving.local_users) for system in systems
        }
        self._homes = {feed: self._parts[system.name] for system in systems for feed in system.feeds.values()}
        self._feeds = FeedApp(
            database,
            {path: feed for system in systems for path, feed in system.feeds.items()},
            {path: self._parts[system.name].access for system in systems for path in system.feeds},
            exists=self._exists,
            listener=listener,
            services=[listener, *bearers.values(), *(each for part in self._parts.values() for each in part.services)],
            times=StreamTimes(drain_seconds=serving.drain_seconds),
            title=TITLE,
        )
        own = [route for system in systems for route in served(system.router, self._parts[system.name])]
        pages = page_routes(systems, keys if serving.development else None, serving.companions.get("chats"))
        figures = exposition(*(system.outbox for system in systems))
        cors = _cors(os.environ)
        self._app = PagesForPeople(
            service(
                self._feeds,
                [*own, *pages],
                openapi=self.openapi,
                docs=serving.docs,
                metrics=figures,
                metrics_for=() if serving.open_metrics else tuple(bearers.values()),
                cors=cors,
            ),
            {path: page for system in systems for path, page in system.browser_redirects.items()},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["type"] == "lifespan":
            await run_lifespan(self.lifespan, receive, send)
        else:
            await self._app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open the systems' connections and start the feeds."""
        async with AsyncExitStack() as stack:
            for part in self._parts.values():
                await stack.enter_async_context(part.pool.lifespan())
            await stack.enter_async_context(self._feeds.lifespan())
            yield

    def drain(self) -> None:
        """The process is about to end: send the readers of streams to another one."""
        self._feeds.drain()

    def openapi(self) -> dict[str, Any]:
        """The routes of all systems."""
        parts = [system.openapi() for system in self._systems]
        more = {path: operations for part in parts for path, operations in part["paths"].items()}
        document = self._feeds.openapi(more=more, description=ABOUT)
        # The page /docs shows this as the link back.
        document["externalDocs"] = {"url": "./", "description": TITLE}
        components = document["components"]
        if self._development:
            # The page offers these users' tokens.
            schemes = components["securitySchemes"]
            offering = {**schemes["bearer"], "x-sample-users": "./sample.json"}
            components["securitySchemes"] = {**schemes, "bearer": offering}
        for part in parts:
            components["schemas"] |= part["schemas"]
        return document

    async def _exists(self, feed: Feed, key: str) -> bool:
        return await self._homes[feed].exists(feed, key)


def _keys(serving: Serving) -> TokenKeys | None:
    """The configured keys; without any, in development, a key of this machine's own."""
    keys = TokenKeys.from_environment()
    return TokenKeys.for_development(default_folder()) if keys is None and serving.development else keys


def _patient(database: Database, environment: Mapping[str, str]) -> Database:
    """The database with the configured limit on its answers."""
    said = environment.get(ANSWERS_WITHIN, "").strip()
    if not said:
        return database
    try:
        return database.answering_within(float(said))
    except (ValueError, DeclarationError):
        raise DeclarationError(f"{ANSWERS_WITHIN}={said!r:.40} is not a number of seconds above 0") from None


def _cors(environment: Mapping[str, str]) -> Cors | None:
    """Pages of these origins may call the API; by default only the site's own pages."""
    origins = [origin.strip() for origin in environment.get(ORIGINS, "").split(",") if origin.strip()]
    return Cors(origins) if origins else None


def site_of(systems: Sequence[System]) -> Application:
    """The application for `aftercommit up` and `serve`: these systems behind one address."""

    def create_tables(connection: psycopg.Connection[Any]) -> None:
        for system in systems:
            system.create_tables(connection)

    def traffic(database: Database, rate: float) -> list[Service]:
        return [system.traffic(database, rate) for system in systems]

    def companions(database: Database, port: int) -> Companions:
        # Imported late: server processes do not need it.
        from systems.host.local_bot import bot_beside

        return bot_beside(systems, database, port)

    return Application(
        about=", ".join(system.title.lower() for system in systems),
        outboxes=tuple(system.outbox for system in systems),
        create_tables=create_tables,
        asgi=partial(Site, systems),
        traffic=traffic,
        companions=companions if any(system.bot is not None for system in systems) else None,
        users_by_header=tuple(system.outbox for system in systems if system.users_by_header),
    )
