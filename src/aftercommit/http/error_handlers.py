"""The common error body in a Starlette application, for every exception of a route or of the router."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aftercommit.errors import MissingExtra
from aftercommit.http.asgi import Scope
from aftercommit.http.errors import Problem, bad_request, internal_error, method_not_allowed, not_found
from aftercommit.telemetry import log_event

try:
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute, Match, Mount, Route
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "starlette") from problem

logger = logging.getLogger("aftercommit.feed")


def exception_handlers(*refusals: type[Exception]) -> dict[Any, Callable[[Request, Exception], Awaitable[Response]]]:
    """Exception handlers that answer with the common error body. `refusals` are exceptions to answer with 400."""
    return {
        **dict.fromkeys(refusals, _answer_refusal),
        Problem: _answer_problem,
        ClientDisconnect: _answer_nobody,
        HTTPException: _answer_http,
        Exception: _answer_mistake,
    }


def _response(problem: Problem) -> Response:
    headers = {"Cache-Control": "no-store", **problem.headers}
    return Response(problem.body(), problem.status, headers, media_type="application/json")


async def _answer_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _response(error)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    return _response(bad_request(str(error)))


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """The client disconnected while it sent its body: not an error of ours, and nobody reads this response."""
    log_event(logger, logging.DEBUG, "client_gone", path=request.url.path[:200])
    return _response(bad_request("The request ended before its body was complete"))


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _response(not_found())
    if error.status_code == 405:
        return _response(method_not_allowed(request.method, allowed_methods(request.scope)))
    return _response(Problem(error.status_code, str(error.detail), headers=error.headers))


async def _answer_mistake(request: Request, error: Exception) -> Response:
    log_event(logger, logging.ERROR, "request_failed", error, path=request.url.path[:200], error=repr(error)[:300])
    return _response(internal_error())


def allowed_methods(scope: Scope) -> str:
    """The methods of all routes at this path; Starlette's own answer names those of the first route only."""
    # The root path as it was before mounts took their parts of the path.
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
