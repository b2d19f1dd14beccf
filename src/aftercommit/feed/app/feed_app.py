"""Feeds as an ASGI application, to mount in FastAPI, Starlette or Litestar, or to serve by itself.

    feeds = FeedApp(Database(dsn), {"/investigations/{investigation_id}/logs": logs}, access)

    app = FastAPI(lifespan=feeds.lifespan)
    app.mount("/api/v1", feeds)

Clients poll a feed at its path and stream it at `<path>/stream`. The lifespan runs the services that read the log, and
ends open streams at a shutdown.
"""

import asyncio
import logging
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from aftercommit.access.rate_limiter import RateLimiter
from aftercommit.access.reader import Access, Watched
from aftercommit.errors import DeclarationError
from aftercommit.feed.app.feed_routes import FeedRoutes
from aftercommit.feed.app.openapi import document, path_parameter
from aftercommit.feed.app.pages import docs_pages
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.endpoints.endpoint import Endpoint
from aftercommit.feed.endpoints.gate import Exists, Gate
from aftercommit.feed.endpoints.polling import Polling
from aftercommit.feed.endpoints.streaming import Streaming
from aftercommit.feed.live.streams import StreamCaps, Streams, StreamTimes
from aftercommit.feed.strands.hub import FeedHub, HubSettings
from aftercommit.http.asgi import Receive, Scope, Send, answer_problem
from aftercommit.http.cors import Cors
from aftercommit.http.errors import not_found
from aftercommit.http.from_memory import WholeAnswer
from aftercommit.postgres.database import Database
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.resilience import DatabaseService
from aftercommit.server.failure import tell
from aftercommit.service import Probe, Service
from aftercommit.telemetry import log_event

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

logger = logging.getLogger("aftercommit.feed")

# When the lifespan ends and the database hangs: the time for all services together, and the least for each of them.
END_SECONDS: Final = 1.0
LEAST_END_SECONDS: Final = 0.1
_TEMPLATE = re.compile(r"(?:/[A-Za-z0-9._~-]+|/\{[A-Za-z_][A-Za-z0-9_]*\})+")


class FeedApp:
    """Feeds of one database as an ASGI application."""

    def __init__(
        self,
        database: Database,
        feeds: Mapping[str, Feed],
        access: Access | Mapping[str, Access],
        *,
        exists: Exists | None = None,
        cors: Cors | Collection[str] | None = None,
        caps: StreamCaps | None = None,
        times: StreamTimes | None = None,
        hub: HubSettings | None = None,
        listener: Listener | None = None,
        services: Sequence[Service] | None = None,
        title: str = "Feeds",
        probe: Probe | None = None,
    ) -> None:
        """Connects to nothing yet: the lifespan does.

        `feeds` maps paths to feeds. One part of a path may be in braces: it is the feed's key. Without it, the feed has
        a single strand, or one for each user. `access` authenticates readers, for all paths or by path. `exists`
        decides between 404 and an empty page. `services` run with the lifespan; by default, every access object that
        is a service.
        """
        if not feeds:
            raise DeclarationError("FeedApp has no feeds: map at least one path to a feed")
        self.feeds = dict(feeds)
        for feed in self.feeds.values():
            feed.outbox.registry.require_upcasters()
        self._answer_timeout = database.answer_timeout
        self.title = title
        self.listener = listener or Listener(database, probe)
        self.hub = FeedHub(database, list(self.feeds.values()), listener=self.listener, settings=hub, probe=probe)
        self.limiter = RateLimiter(database, next(iter(self.feeds.values())).outbox, probe=probe)
        self.streams = Streams(caps, times, probe)
        self._access = _of_each(self.feeds, access)
        for watched in dict.fromkeys(self._access.values()):
            if isinstance(watched, Watched):
                watched.watch(self.streams.look)
        own = [each for each in dict.fromkeys(self._access.values()) if isinstance(each, Service)]
        given = own if services is None else services
        self.services: list[Service] = [*given, self.limiter, self.hub, self.streams]
        self.failed: str | None = None
        self._runs_listener = listener is None
        self._routes = FeedRoutes(
            (each for path, feed in self.feeds.items() for each in self._endpoints(path, feed, exists)),
            docs_pages(self.openapi),
            cors if isinstance(cors, Cors) or cors is None else Cors(cors),
        )

    @property
    def routes(self) -> "list[BaseRoute]":
        """The feeds as Starlette routes, to put among your own."""
        from aftercommit.feed.app.routes import routes_of

        return routes_of(self._routes.endpoints)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Runs the services of the feeds. Pass it as `lifespan` to FastAPI, Starlette or Litestar."""
        async with AsyncExitStack() as stack:
            end = _End()
            if self._runs_listener:
                # Started after every service has subscribed, and stopped after the services that it wakes.
                await self.listener.start()
                stack.push_async_callback(end.of, self.listener)
            for service in self.services:
                await service.start()
                stack.push_async_callback(end.of, service)
                watch = asyncio.create_task(self._watch(service))
                stack.callback(watch.cancel)
            with self._drained_by_signals():
                yield
            self.drain()

    def drain(self) -> None:
        """End open streams and admit no new ones. SIGTERM and SIGINT call it."""
        self.streams.drain()

    async def _watch(self, service: Service) -> None:
        """A service that ends by itself has failed for good: log it, and report it in the health routes."""
        try:
            await service.wait()
        except Exception as problem:  # noqa: BLE001 - every failure is logged and reported
            self.failed = f"{service.name} failed"
            log_event(logger, logging.ERROR, "service_failed", problem, service=service.name, error=str(problem)[:300])
            if tell(f"{self.failed}: {str(problem)[:300]}"):
                # The server shuts down now, and open streams would delay it.
                self.drain()

    def openapi(self, **about: Any) -> dict[str, Any]:
        """The OpenAPI 3.1 document of these feeds. `about` may set title, version, description, server and more."""
        return document(self.feeds, **{"title": self.title, **about})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application: feeds, `/docs` and `/openapi.json`, under any prefix."""
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await run_lifespan(self.lifespan, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    def answer_from_memory(self, scope: Scope) -> WholeAnswer | None:
        """The response to a poll, if memory alone can tell it; otherwise None, and the request is not counted yet."""
        return self._routes.answer_from_memory(scope)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, parameters = self._routes.find(scope)
        if endpoint is None:
            await answer_problem(send, not_found(), scope["method"])
            return
        if parameters is not None:
            scope = {**scope, "path_params": parameters}
        await endpoint(scope, receive, send)

    def _endpoints(self, path: str, feed: Feed, exists: Exists | None) -> Iterator[tuple[str, Endpoint]]:
        if not _TEMPLATE.fullmatch(path) or path.count("{") > 1:
            raise DeclarationError(
                f"{path!r:.100} is not a valid path for a feed: write it like /projects/{{project_id}}/events, with at "
                "most one part in braces, the key"
            )
        parameter = path_parameter(path)
        access = self._access[path]
        gate = Gate(feed, access, self.limiter, exists, self._answer_timeout)
        polling = Polling(feed, parameter, self.hub, gate, self.streams)
        streaming = Streaming(feed, parameter, self.hub, gate, self.streams, access)
        yield path, polling
        yield f"{path}/stream", streaming

    @contextmanager
    def _drained_by_signals(self) -> Iterator[None]:
        """uvicorn waits for open responses before it ends the lifespan, and a stream has no end of its own."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}

        def drain_first(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.drain)
            before[signal.Signals(number)](number, frame)

        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            # A signal without a handler ends the process at once: there is nothing to drain.
            if callable(handler) and handler is not signal.default_int_handler:
                before[number] = handler
                signal.signal(number, drain_first)
        try:
            yield
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) is drain_first:
                    signal.signal(number, handler)


def _of_each(paths: Mapping[str, Feed], access: Access | Mapping[str, Access]) -> dict[str, Access]:
    """The access object of each path."""
    if not isinstance(access, Mapping):
        return dict.fromkeys(paths, access)
    missing = [path for path in paths if path not in access]
    if missing:
        raise DeclarationError(f"no access is given for {', '.join(missing)}: give one for each path")
    return dict(access)


async def run_lifespan(lifespan: Callable[[], Any], receive: Receive, send: Send) -> None:
    """Run an async context manager by ASGI's lifespan protocol."""
    await receive()
    phase = "startup"
    try:
        async with lifespan():
            await send({"type": "lifespan.startup.complete"})
            phase = "shutdown"
            await receive()
    except Exception as problem:
        log_event(logger, logging.ERROR, "lifespan_failed", problem, error=repr(problem)[:300])
        await send({"type": f"lifespan.{phase}.failed", "message": str(problem)})
        raise
    await send({"type": "lifespan.shutdown.complete"})


class _End:
    """Stops services one after the other; those that wait for a database that hangs share END_SECONDS."""

    def __init__(self) -> None:
        self._until: float | None = None

    async def of(self, service: Service) -> None:
        now = time.monotonic()
        self._until = self._until or now + END_SECONDS
        try:
            if isinstance(service, DatabaseService) and service.may_be_cut:
                await service.stop_within(max(LEAST_END_SECONDS, self._until - now))
            else:
                await service.stop()
        except Exception as problem:  # noqa: BLE001 - logged when it failed; the other services must still stop
            log_event(logger, logging.DEBUG, "service_had_failed", service=service.name, error=repr(problem)[:300])
