"""Feeds, and their documentation, as routes of a Starlette application."""

from collections.abc import Callable, Mapping
from typing import Any

from aftercommit.errors import MissingExtra
from aftercommit.feed.app.pages import docs_pages
from aftercommit.feed.endpoints.endpoint import METHODS
from aftercommit.http.asgi import ALLOWED, Asgi, Receive, Scope, Send
from aftercommit.http.error_handlers import allowed_methods

try:
    from starlette.routing import BaseRoute, Route
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "starlette") from problem


def routes_of(endpoints: Mapping[str, Asgi]) -> list[BaseRoute]:
    """Routes for GET, HEAD and OPTIONS; other routes may serve other methods at the same path."""
    return [Route(path, _AmongRoutes(endpoint), methods=METHODS) for path, endpoint in endpoints.items()]


def docs_routes(openapi: Callable[[], Mapping[str, Any]]) -> list[BaseRoute]:
    """`/docs` and `/openapi.json`."""
    return [looked_at(path, page) for path, page in docs_pages(openapi).items()]


def looked_at(path: str, endpoint: Asgi) -> Route:
    """A route for GET and HEAD that the OpenAPI document leaves out."""
    # Without `methods`, Starlette sends every method to an ASGI application.
    return Route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False)


class _AmongRoutes:
    """A feed's endpoint among other routes: OPTIONS names the methods of all routes at this path."""

    def __init__(self, endpoint: Asgi) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "OPTIONS":
            scope[ALLOWED] = allowed_methods(scope)
        await self._endpoint(scope, receive, send)
