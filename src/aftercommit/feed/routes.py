"""Feeds among the routes of a Starlette application, and what a whole service needs around them.

`service(feeds, …)` is such a service: feeds, routes of your own, `/docs`, `/healthz`, `/readyz`, `/metrics`, one error
body for everything, and a limit on what a request may carry.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from aftercommit.errors import FeedError, MissingExtra
from aftercommit.feed.app import FeedApp
from aftercommit.feed.cors import Cors
from aftercommit.feed.endpoint import METHODS
from aftercommit.feed.errors import (
    Problem,
    bad_request,
    internal_error,
    method_not_allowed,
    not_found,
    unavailable,
)
from aftercommit.feed.figures import CONTENT_TYPE, exposition
from aftercommit.feed.http import ALLOWED, JSON, NO_STORE, Asgi, BodyLimit, Receive, Scope, Send, answer, answer_problem
from aftercommit.feed.pages import docs_pages
from aftercommit.feed.shared_figures import SharedFigures
from aftercommit.telemetry import say

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute, Match, Mount, Route
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "starlette") from problem

logger = logging.getLogger("aftercommit.feed")

MOST_BODY: Final = 8 * 1024 * 1024


def routes_of(endpoints: Mapping[str, Asgi]) -> list[BaseRoute]:
    """Routes for reading; another route may answer other methods at the same path."""
    return [Route(path, _AmongRoutes(endpoint), methods=METHODS) for path, endpoint in endpoints.items()]


def docs_routes(openapi: Callable[[], Mapping[str, Any]]) -> list[BaseRoute]:
    """`/docs` and `/openapi.json`."""
    return [_looked_at(path, page) for path, page in docs_pages(openapi).items()]


def health_routes(feeds: FeedApp, metrics: Callable[[], str] | None = None) -> list[BaseRoute]:
    """`/healthz` (no new start is needed), `/readyz` (it can serve), `/metrics` (figures, and `metrics` of yours).

    The figures are those of all worker processes, which hear of each other while the lifespan of the feeds runs.
    """
    figures = SharedFigures(lambda: exposition(feeds) + (metrics() if metrics is not None else ""))
    feeds.services.append(figures)
    return [
        _looked_at("/healthz", _Healthy(feeds)),
        _looked_at("/readyz", _Ready(feeds)),
        _looked_at("/metrics", _Metrics(figures)),
    ]


def _looked_at(path: str, endpoint: Asgi) -> Route:
    # Starlette lets an ASGI application answer every method, unless it is told.
    return Route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False)


def exception_handlers() -> dict[Any, Callable[[Request, Exception], Awaitable[Response]]]:
    """The common error body for whatever a route, the router or a mistake of ours raises."""
    return {
        Problem: _answer_problem,
        FeedError: _answer_refusal,
        ClientDisconnect: _answer_nobody,
        HTTPException: _answer_http,
        Exception: _answer_mistake,
    }


def service(
    feeds: FeedApp,
    routes: Sequence[BaseRoute] = (),
    *,
    openapi: Callable[[], Mapping[str, Any]] | None = None,
    metrics: Callable[[], str] | None = None,
    cors: Cors | None = None,
    most_body: int = MOST_BODY,
) -> Asgi:
    """A whole service: your routes, the feeds, documentation and health. `openapi` describes all of it."""
    app = Starlette(
        routes=[*routes, *feeds.routes, *docs_routes(openapi or feeds.openapi), *health_routes(feeds, metrics)],
        lifespan=feeds.lifespan,
        exception_handlers=exception_handlers(),
    )
    # A slash too many is a mistake in the address; a redirect would send a token to whatever the Host header says.
    app.router.redirect_slashes = False
    limited = BodyLimit(app, most_body)
    return cors.around(limited) if cors is not None else limited


def _response(problem: Problem) -> Response:
    headers = {"Cache-Control": "no-store", **problem.headers}
    return Response(problem.body(), problem.status, headers, media_type="application/json")


async def _answer_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _response(error)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    return _response(bad_request(str(error)))


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """It went away before its body was here: neither a mistake of ours, nor is there anybody to tell."""
    say(logger, logging.DEBUG, "client_gone", path=request.url.path[:200])
    return _response(bad_request("The request ended before its body was here"))


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _response(not_found())
    if error.status_code == 405:
        return _response(method_not_allowed(request.method, _allowed(request.scope)))
    return _response(Problem(error.status_code, str(error.detail), headers=error.headers))


def _allowed(scope: Scope) -> str:
    """Every method that some route answers at this address; Starlette names those of the first one alone."""
    # As it was before the mounts on the way here took their parts of the path.
    outermost = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}
    return ", ".join(sorted(_methods_at(scope["router"].routes, outermost)))


def _methods_at(routes: Sequence[BaseRoute], scope: Scope) -> set[str]:
    found: set[str] = set()
    for route in routes:
        match, below = route.matches(scope)
        if match is Match.NONE:
            continue
        if isinstance(route, Mount):
            found |= _methods_at(route.routes, {**scope, **below})
        elif isinstance(route, Route):
            found |= route.methods or set()
    return found


class _AmongRoutes:
    """A feed's address, at which others may answer other methods: who asks what is allowed hears of all of them."""

    def __init__(self, endpoint: Asgi) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "OPTIONS":
            scope[ALLOWED] = _allowed(scope)
        await self._endpoint(scope, receive, send)


async def _answer_mistake(request: Request, error: Exception) -> Response:
    say(logger, logging.ERROR, "request_failed", error, path=request.url.path[:200], error=repr(error)[:300])
    return _response(internal_error())


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
        elif not self._feeds.hub.is_following:
            await answer_problem(send, unavailable("The log is not being read: the database is away"), scope["method"])
        else:
            await answer(send, 200, [JSON, NO_STORE, (b"content-length", b"18")], b'{"status":"ready"}')


def _failed(what: str) -> Problem:
    return unavailable(f"{what}, and only a new start can mend it; the log says why", retry_after=5)


class _Metrics:
    def __init__(self, figures: SharedFigures) -> None:
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await self._figures.page()).encode()
        headers = [(b"content-type", CONTENT_TYPE.encode()), NO_STORE, (b"content-length", b"%d" % len(body))]
        await answer(send, 200, headers, body)
