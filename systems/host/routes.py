"""Routes of systems on FastAPI. Every route authenticates first, and every refusal has the common error body.

FastAPI reads the body before it asks a dependency who is calling, and answers 422 in its own format. `SystemRoute`
changes both. It also accepts JSON under any Content-Type, and refuses what FastAPI would ignore: unknown query
parameters, and two fields of the same name in one object.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema
from starlette.routing import BaseRoute, Route

from aftercommit import text_problem
from aftercommit.access import Reader
from aftercommit.errors import DatabaseUnavailable, Unauthorized
from aftercommit.feed import error_response
from aftercommit.http import Problem, Receive, Scope, Send, bad_request, headers_of, peer_of, unauthorized, unavailable
from systems.host.http import LARGEST, Asks, no_json, refuse_repeated_names, shortened
from systems.host.system import Part

_JSON_TYPE: Final = (b"content-type", b"application/json")
_LONGEST_NUMBER: Final = 19
# FastAPI describes its own 422 with these, and no route here answers it.
_UNSENT: Final = ("HTTPValidationError", "ValidationError")
_BOUNDS: Final = ("minimum", "maximum")
_MEANINGS: Final = {
    400: "Invalid request; `details` names the field or parameter.",
    401: "Missing or invalid credentials.",
    403: "The user may not do this, or does not exist.",
    404: "Not found.",
    409: "Not possible in the current state; `details` gives that state and the states that allow the action.",
    413: "The request is larger than allowed.",
    429: "Too many requests. Try again after `retry_after` seconds.",
    503: "The database does not answer. If `details.outcome` is `unknown`, the change may have been committed.",
}


class Body(BaseModel):
    """A request body. Values are not converted to other types, and unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _storable(text: str) -> str:
    wrong = text_problem(text)
    if wrong is not None:
        raise ValueError(wrong)
    return text


def _digits(value: object) -> object:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise ValueError("must be a whole number")
    return value


# For text that PostgreSQL can store.
STORABLE: Final = AfterValidator(_storable)
# For a number in a query: no sign, fraction or underscore. Write the bounds before it.
DIGITS: Final = BeforeValidator(_digits)
Before = Annotated[
    Annotated[int, Field(ge=1, le=LARGEST), DIGITS] | SkipJsonSchema[None],
    Query(description="Continue with `next_before` of the previous page."),
]
After = Annotated[
    int, Field(ge=0, le=LARGEST), DIGITS, Query(description="Continue with `next_after` of the previous page.")
]


async def _caller(request: Request) -> Reader:
    reader: Reader = request.state.reader
    return reader


Caller = Annotated[Reader, Depends(_caller)]


class SystemRoute(APIRoute):
    """A route for users: authenticates, refuses unknown query parameters, and leaves the rest to FastAPI."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function that answers a request."""
        handle = super().get_route_handler()
        known = [field.alias for field in self.dependant.query_params]
        takes_body = self.body_field is not None

        async def handler(request: Request) -> Response:
            await self.admit(request, known)
            if takes_body:
                request = _JsonRequest(request, await request.body())
            try:
                response = await handle(request)
            except RequestValidationError as error:
                raise refusal(error.errors()) from error
            response.headers["Cache-Control"] = "no-store"
            return response

        return handler

    async def admit(self, request: Request, known: Sequence[str]) -> None:
        """Authenticate the caller, then check the query."""
        headers = headers_of(request.scope)
        asks = self.asks(request.state.part)
        try:
            reader = await asks(headers.get("authorization"), headers, peer_of(request.scope))
        except Unauthorized as error:
            raise unauthorized(error.hint) from error
        except DatabaseUnavailable as error:
            raise unavailable("Cannot check tokens at the moment. Try again") from error
        request.state.reader = reader
        _refuse_unknown(request, known)

    def asks(self, part: Part) -> Asks:
        """How this route authenticates its caller."""
        return part.access.reader


class RawRoute(SystemRoute):
    """A route that FastAPI describes but does not run: its function gets the request of an authenticated caller.

    FastAPI's share was measured as 0.3 ms of CPU per request; storing a log takes 1.9 ms.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function that answers a request."""

        async def handler(request: Request) -> Response:
            await self.admit(request, ())
            response: Response = await self.endpoint(request)
            return response

        return handler


class _JsonRequest(Request):
    """A request whose body has been read and is JSON."""

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
    """The JSON value of a body; 400 if it is not JSON or repeats a field."""
    try:
        value = msgspec.json.decode(body)
        refuse_repeated_names(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise no_json(body, error) from error
    return value


def _refuse_unknown(request: Request, known: Sequence[str]) -> None:
    for name in request.query_params:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            raise bad_request(f"Unknown parameter {name!r:.60}: this address {takes}", parameter=name[:60])
        given = request.query_params.getlist(name)
        if len(given) > 1:
            raise bad_request(f"{name} must be given once", **{name: given[0][:60]})


def refusal(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """The first error that pydantic found, in the common error body."""
    first = errors[0]
    place, *path = first["loc"]
    said = first["ctx"]["error"] if first["type"] == "value_error" else first["msg"]
    if place != "body":
        name = str(path[0])
        return bad_request(f"{name}: {said}", **{name: str(first["input"])[:60]})
    if not path and first["type"] == "missing":
        return bad_request("The body is missing: send a JSON object")
    about = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    details = {"field": shortened(str(path[0]))} if path else {}
    return bad_request(f"{shortened(about) or 'body'}: {shortened(str(said))}", **details)


class _Served:
    """One route of a system in one server process."""

    def __init__(self, route: APIRoute, part: Part) -> None:
        self._app = AsyncExitStackMiddleware(route.app)
        self._part = part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["part"] = self._part
        await self._app(scope, receive, send)


def served(router: APIRouter, part: Part) -> list[BaseRoute]:
    """A router's routes for one server process. They find `part` in `request.state`, and answer HEAD like GET.

    Not a FastAPI application inside the site's: that would match each path again, run three more layers of middleware
    for each request, and answer HEAD with 405. It sets up one thing that routes need, the exit stack of `_Served`.
    """
    return [
        Route(route.path, _Served(route, part), methods=list(route.methods or ()))
        for route in router.routes
        if isinstance(route, APIRoute)
    ]


def refusals(*statuses: int, meanings: Mapping[int, str] | None = None) -> dict[int | str, dict[str, Any]]:
    """Error responses of a route, for its description. `meanings` replaces the general texts."""
    words = _MEANINGS | dict(meanings or {})
    return {status: error_response(words[status], retry=status in (429, 503)) for status in statuses}


def described(router: APIRouter) -> dict[str, Any]:
    """The OpenAPI `paths` and `schemas` of a router."""
    document = _with_whole_bounds(get_openapi(title="", version="", routes=router.routes))
    for operation in (operation for item in document["paths"].values() for operation in item.values()):
        operation["responses"].pop("422", None)
    schemas = document.get("components", {}).get("schemas", {})
    return {
        "paths": document["paths"],
        "schemas": {name: schema for name, schema in schemas.items() if name not in _UNSENT},
    }


def _with_whole_bounds(schema: Any) -> Any:
    """FastAPI writes bounds as floats, which cannot hold the largest bigint."""
    if isinstance(schema, list):
        return [_with_whole_bounds(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: min(int(value), LARGEST) if name in _BOUNDS and isinstance(value, float) else _with_whole_bounds(value)
        for name, value in schema.items()
    }
