"""A complete Starlette application around feeds.

`service(feeds, …)` adds your routes, `/docs`, `/healthz`, `/readyz`, `/metrics`, the common error body, and a limit for
request bodies. It can leave out `/docs`, and protect `/metrics` with a token.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from aftercommit.access.reader import Access
from aftercommit.errors import DatabaseUnavailable, FeedError, MissingExtra, Unauthorized
from aftercommit.feed.app.feed_app import FeedApp
from aftercommit.feed.app.feed_routes import LONGEST_REMEMBERED, REMEMBERED
from aftercommit.feed.app.figures import CONTENT_TYPE, exposition
from aftercommit.feed.app.routes import docs_routes, looked_at
from aftercommit.feed.declaration.cursor import timestamp
from aftercommit.http.asgi import (
    JSON,
    NO_STORE,
    Asgi,
    BodyLimit,
    Receive,
    Scope,
    Send,
    answer,
    answer_problem,
    headers_of,
)
from aftercommit.http.cors import Cors
from aftercommit.http.error_handlers import exception_handlers
from aftercommit.http.errors import Problem, forbidden, unauthorized, unavailable
from aftercommit.http.from_memory import WholeAnswer, lines_of
from aftercommit.server.shared_figures import SharedFigures

try:
    from starlette.applications import Starlette
    from starlette.routing import BaseRoute, Match, Mount, Route, Router, WebSocketRoute
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "starlette") from problem

MOST_BODY: Final = 8 * 1024 * 1024
# The permission to read `/metrics`, where it is protected.
METRICS_READ: Final = "metrics:read"


def service(
    feeds: FeedApp,
    routes: Sequence[BaseRoute] = (),
    *,
    openapi: Callable[[], Mapping[str, Any]] | None = None,
    docs: bool = True,
    metrics: Callable[[], str] | None = None,
    metrics_for: Sequence[Access] = (),
    cors: Cors | None = None,
    most_body: int = MOST_BODY,
) -> Asgi:
    """A complete ASGI application: your routes, the feeds, documentation, health and metrics.

    `openapi` returns the document of all routes. `docs=False` leaves out `/docs` and `/openapi.json`. With
    `metrics_for`, a reader of `/metrics` must pass one of these and have the permission `metrics:read`; without it,
    `/metrics` is open.
    """
    documentation = docs_routes(openapi or feeds.openapi) if docs else []
    app = Starlette(
        routes=[*routes, *feeds.routes, *documentation, *health_routes(feeds, metrics, metrics_for)],
        lifespan=feeds.lifespan,
        exception_handlers=exception_handlers(FeedError),
    )
    # Starlette's own redirect would send a token to any host that the Host header names.
    app.router.redirect_slashes = False
    app.router.default = _Nowhere(app.router)
    limited = BodyLimit(app, most_body)
    whole = cors.around(limited) if cors is not None else limited
    return _FeedsFromMemory(whole, feeds, routes, cors)


class _FeedsFromMemory:
    """The application; our own server asks it first whether a feed has the answer in memory."""

    def __init__(self, app: Asgi, feeds: FeedApp, routes: Sequence[BaseRoute], cors: Cors | None) -> None:
        self._app = app
        self._feeds = feeds
        self._routes = routes
        self._more_lines = lines_of(cors.vary) if cors is not None else b""
        # Other routes may look at more than the path and the method.
        self._knows_routes = all(isinstance(route, Route | Mount | WebSocketRoute) for route in routes)
        self._goes_to_feeds = lru_cache(maxsize=REMEMBERED)(self._passes_routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def answer_from_memory(self, scope: Scope) -> WholeAnswer | None:
        """The answer of a feed, unless one of the other routes comes first."""
        path: str = scope["path"]
        if not self._knows_routes or scope["root_path"] or len(path) > LONGEST_REMEMBERED:
            return None
        if not self._goes_to_feeds(path, scope["method"]):
            return None
        answer = self._feeds.answer_from_memory(scope)
        return answer._replace(lines=answer.lines + self._more_lines) if answer and self._more_lines else answer

    def _passes_routes(self, path: str, method: str) -> bool:
        """Whether no other route serves this path, which has no slash too many."""
        scope = {"type": "http", "path": path, "root_path": "", "method": method, "headers": []}
        return not path.endswith("/") and all(route.matches(scope)[0] is not Match.FULL for route in self._routes)


class _Nowhere:
    """Answers requests without a route. A GET with a slash too many is redirected to the path without it.

    The redirect names no host, because the Host header is not to be trusted.
    """

    def __init__(self, router: Router) -> None:
        self._routes = router.routes
        self._otherwise = router.default

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meant = self._meant(scope) if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") else None
        if meant is None:
            await self._otherwise(scope, receive, send)
            return
        asked: bytes = scope.get("query_string", b"")
        location = (b"location", quote(meant).encode() + (b"?" + asked if asked else b""))
        await answer(send, 308, [location, NO_STORE, (b"content-length", b"0")])

    def _meant(self, scope: Scope) -> str | None:
        path: str = scope["path"]
        meant = path.rstrip("/")
        # A browser takes a location that begins with two slashes for a host.
        if meant == path or path.startswith("//"):
            return None
        there = {**scope, "path": meant}
        return meant if any(route.matches(there)[0] is Match.FULL for route in self._routes) else None


def health_routes(
    feeds: FeedApp, metrics: Callable[[], str] | None = None, metrics_for: Sequence[Access] = ()
) -> list[BaseRoute]:
    """`/healthz` (503 if only a restart helps), `/readyz` (503 if it cannot serve), and `/metrics`.

    The metrics are those of all worker processes, and of `metrics`, a function of yours.
    """
    figures = SharedFigures(lambda: exposition(feeds) + (metrics() if metrics is not None else ""))
    feeds.services.append(figures)
    return [
        looked_at("/healthz", _Healthy(feeds)),
        looked_at("/readyz", _Ready(feeds)),
        looked_at("/metrics", _Metrics(figures, metrics_for)),
    ]


class _Healthy:
    def __init__(self, feeds: FeedApp) -> None:
        self._feeds = feeds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._feeds.failed is not None:
            await answer_problem(send, _failed(self._feeds.failed), scope["method"])
            return
        await answer(send, 200, [JSON, NO_STORE, (b"content-length", b"15")], b'{"status":"ok"}')


class _Ready:
    def __init__(self, feeds: FeedApp) -> None:
        self._feeds = feeds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._feeds.streams.draining.is_set():
            await answer_problem(send, unavailable("The server is shutting down"), scope["method"])
        elif self._feeds.failed is not None:
            await answer_problem(send, _failed(self._feeds.failed), scope["method"])
        elif unread := self._feeds.hub.unread:
            await answer_problem(send, _unread(*unread[0]), scope["method"])
        else:
            await answer(send, 200, [JSON, NO_STORE, (b"content-length", b"18")], b'{"status":"ready"}')


def _unread(outbox: str, since: datetime | None, hangs: bool) -> Problem:
    why = "does not answer" if hangs else "is unavailable"
    details = {"outbox": outbox, "since": timestamp(since) if since is not None else None}
    return Problem(503, f"Cannot read the log: the database {why}", details=details, retry_after=1)


def _failed(what: str) -> Problem:
    return unavailable(f"{what}: restart the process. Its log has the cause", retry_after=5)


class _Metrics:
    def __init__(self, figures: SharedFigures, readers: Sequence[Access]) -> None:
        self._figures = figures
        self._readers = readers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._readers:
            await self._admit(headers_of(scope))
        body = (await self._figures.page()).encode()
        headers = [(b"content-type", CONTENT_TYPE.encode()), NO_STORE, (b"content-length", b"%d" % len(body))]
        await answer(send, 200, headers, body)

    async def _admit(self, headers: Mapping[str, str]) -> None:
        for access in self._readers:
            try:
                reader = await access.reader(headers.get("authorization"), headers)
            except Unauthorized:
                continue
            except DatabaseUnavailable as problem:
                raise unavailable("Cannot check tokens at the moment: try again") from problem
            if reader.may(METRICS_READ):
                return
            raise forbidden(METRICS_READ)
        raise unauthorized()
