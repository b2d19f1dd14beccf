"""The one error body in a Starlette application, for whatever a route, the router or a mistake of ours raises."""

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
    """The common error body for whatever a route, the router or a mistake of ours raises.

    `refusals` are errors whose text is for whoever asks: something is wrong with the request (400).
    """
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
    """It went away before its body was here: neither a mistake of ours, nor is there anybody to tell."""
    log_event(logger, logging.DEBUG, "client_gone", path=request.url.path[:200])
    return _response(bad_request("The request ended before its body was here"))


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
