"""Routes of systems on FastAPI. Every route authenticates first, and every refusal has the common error body.

FastAPI reads the body before it asks a dependency who is calling, and answers 422 in a form of its own. `SystemRoute`
changes both. It also takes JSON whatever the Content-Type says, and refuses what would otherwise be ignored: query
parameters that a route does not know, and names that appear twice in an object.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema
from starlette.routing import BaseRoute, Route

from aftercommit.access import Reader
from aftercommit.errors import DatabaseUnavailable, Unauthorized
from aftercommit.feed import problem
from aftercommit.http import Problem, Receive, Scope, Send, bad_request, headers_of, peer_of, unauthorized, unavailable
from systems.host.http import LARGEST, Asks, no_json, refuse_repeated_names, shortened
from systems.host.system import Part
from systems.host.validation import sentence

_JSON_TYPE: Final = (b"content-type", b"application/json")
_LONGEST_NUMBER: Final = 19
# FastAPI describes these for its own 422, which is never sent.
_UNSENT: Final = ("HTTPValidationError", "ValidationError")
_UNNAMED: Final = "Successful Response"
_BOUNDS: Final = ("minimum", "maximum")
_MEANINGS: Final = {
    400: "The request cannot be read; `details` names the place.",
    401: "Missing or invalid credentials.",
    403: "The user may not do this, or does not exist.",
    404: "Not found.",
    409: "The user may do this, but not now; `details` gives the current state and when it would be possible.",
    413: "The request is larger than allowed.",
    429: "Too many requests; try again after `retry_after` seconds.",
    503: "The database does not answer. Where `details.outcome` is `unknown`, the change may have been committed.",
}


class Body(BaseModel):
    """What a request carries. No field is converted to another type, and no unknown field is ignored."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _digits(value: object) -> object:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise ValueError("must be a whole number")
    return value


# For a number in a query: neither a sign, nor a fraction, nor an underscore. Bounds stand before it.
DIGITS: Final = BeforeValidator(_digits)
Before = Annotated[
    Annotated[int, Field(ge=1, le=LARGEST), DIGITS] | SkipJsonSchema[None],
    Query(description="Go on from `next_before` of the page before."),
]
After = Annotated[
    int, Field(ge=0, le=LARGEST), DIGITS, Query(description="Go on from `next_after` of the page before.")
]


class SystemRoute(APIRoute):
    """A route for users: authenticates, refuses what it does not know of the query, and leaves the rest to FastAPI."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers one request."""
        handle = super().get_route_handler()
        known = [field.alias for field in self.dependant.query_params]
        takes_body = self.body_field is not None

        async def handler(request: Request) -> Response:
            request.state.reader = await _authenticated(request, self.asks(request.state.part))
            _refuse_unknown(request, known)
            if takes_body:
                request = _JsonRequest(request, await request.body())
            try:
                response = await handle(request)
            except RequestValidationError as error:
                raise refusal(error.errors()) from error
            response.headers["Cache-Control"] = "no-store"
            return response

        return handler

    def asks(self, part: Part) -> Asks:
        """How the caller of this route is recognised."""
        return part.access.reader


class RawRoute(SystemRoute):
    """A route that FastAPI describes and does not run: its function gets the request, once the caller is known.

    What FastAPI does for a route cost 0.3 ms of CPU for each request when it was measured; to store a log takes 1.9.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers one request."""

        async def handler(request: Request) -> Response:
            request.state.reader = await _authenticated(request, self.asks(request.state.part))
            _refuse_unknown(request, ())
            response: Response = await self.endpoint(request)
            return response

        return handler


class _JsonRequest(Request):
    """A request whose body is JSON, and has been read."""

    def __init__(self, request: Request, body: bytes) -> None:
        others = [each for each in request.scope["headers"] if each[0] != _JSON_TYPE[0]]
        super().__init__({**request.scope, "headers": [*others, _JSON_TYPE]}, request.receive)
        self._content = body
        self._value = decode_json(body) if body else None

    async def body(self) -> bytes:
        return self._content

    async def json(self) -> Any:
        return self._value


def decode_json(body: bytes) -> Any:
    """The value of a body; 400 where it is no JSON, or an object has two fields of one name."""
    try:
        value = msgspec.json.decode(body)
        refuse_repeated_names(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise no_json(body, error) from error
    return value


async def _authenticated(request: Request, asks: Asks) -> Reader:
    headers = headers_of(request.scope)
    try:
        return await asks(headers.get("authorization"), headers, peer_of(request.scope))
    except Unauthorized as error:
        raise unauthorized(error.hint) from error
    except DatabaseUnavailable as error:
        raise unavailable("Tokens cannot be checked at the moment") from error


def _refuse_unknown(request: Request, known: Sequence[str]) -> None:
    for name in request.query_params:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            raise bad_request(f"Unknown parameter {name!r:.60}: this address {takes}", parameter=name[:60])
        given = request.query_params.getlist(name)
        if len(given) > 1:
            raise bad_request(f"{name} must be given once", **{name: given[0][:60]})


def refusal(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """The first of what pydantic found wrong, in the common error body."""
    first = errors[0]
    place, *path = first["loc"]
    if place != "body":
        name = str(path[0])
        return bad_request(f"{name} {sentence(first)}", **{name: str(first["input"])[:60]})
    if not path and first["type"] == "missing":
        return bad_request("There is no body: send a JSON object")
    about = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    details = {"field": shortened(str(path[0]))} if path else {}
    return bad_request(f"{shortened(about) or 'The body'} {shortened(sentence(first))}", **details)


class _Served:
    """One route of FastAPI in one server process, told which part of a system it belongs to."""

    def __init__(self, route: APIRoute, part: Part) -> None:
        self._app = AsyncExitStackMiddleware(route.app)
        self._part = part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["part"] = self._part
        await self._app(scope, receive, send)


def served(router: APIRouter, part: Part) -> list[BaseRoute]:
    """The routes of a router for one server process: they find `part` in `request.state`. HEAD is answered like GET."""
    return [Route(route.path, _Served(route, part), methods=list(route.methods or ())) for route in _own(router)]


def refusals(*statuses: int, meanings: Mapping[int, str] | None = None) -> dict[int | str, dict[str, Any]]:
    """How a route can refuse a request, for its description. `meanings` are a system's own words."""
    words = _MEANINGS | dict(meanings or {})
    return {status: problem(words[status], retry=status in (429, 503)) for status in statuses}


def paths_of(router: APIRouter) -> dict[str, Any]:
    """The routes as OpenAPI describes them."""
    paths: dict[str, Any] = _document(router)["paths"]
    for operation in (operation for item in paths.values() for operation in item.values()):
        answers = {status: said for status, said in sorted(operation["responses"].items()) if status != "422"}
        for said in answers.values():
            if said["description"] == _UNNAMED:
                said["description"] = f"{operation['summary']}."
        operation["responses"] = answers
    return paths


def schemas_of(router: APIRouter) -> dict[str, Any]:
    """What bodies and answers look like, by name."""
    schemas: dict[str, Any] = _document(router).get("components", {}).get("schemas", {})
    return {name: _with_whole_bounds(schema) for name, schema in schemas.items() if name not in _UNSENT}


def _with_whole_bounds(schema: Any) -> Any:
    """FastAPI writes bounds as floats, and the largest number of PostgreSQL is none."""
    if isinstance(schema, list):
        return [_with_whole_bounds(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: min(int(value), LARGEST) if name in _BOUNDS and isinstance(value, float) else _with_whole_bounds(value)
        for name, value in schema.items()
    }


def _document(router: APIRouter) -> dict[str, Any]:
    return get_openapi(title="", version="", routes=list(_own(router)))


def _own(router: APIRouter) -> Iterator[APIRoute]:
    return (route for route in router.routes if isinstance(route, APIRoute))
