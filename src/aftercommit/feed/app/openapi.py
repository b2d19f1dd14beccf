"""The OpenAPI 3.1 document of feeds, made from their declarations. Pure."""

from collections.abc import Mapping
from typing import Any

from aftercommit._version import __version__
from aftercommit.feed.declaration.cursor import LARGEST, Position
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.page import BareArray
from aftercommit.feed.endpoints.gate import policy_of, what_of
from aftercommit.feed.endpoints.query import END, LONGEST_WAIT

Json = dict[str, Any]

ERROR: Json = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {
        "error": {"type": "string", "description": "The error code, for programs."},
        "message": {"type": "string", "description": "What is wrong and what to do, for people."},
        "details": {"type": "object", "description": "The parameters or values that are wrong."},
        "retry_after": {"type": "integer", "minimum": 0, "description": "Seconds to wait before the next attempt."},
    },
}
SECURITY: Json = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A JWT or a service token, in the header `Authorization`. Tokens in URLs are not accepted.",
    }
}
_REFUSALS: Mapping[int, str] = {
    400: "A parameter or header is not valid. `details` names it.",
    401: "Missing or invalid credentials.",
    403: "The token does not have the required permission.",
    404: "Not found.",
    429: "Too many requests, or too many open streams. Try again after `retry_after` seconds.",
    503: (
        "The server cannot answer at the moment. Try again after `retry_after` seconds. During a deployment, "
        "`details` may name an event that needs a newer version of the server."
    ),
}
_GONE = (
    "The cursor is too old or from before a restore. `details.reason` says which, and `details.restart` is the cursor "
    "to continue with."
)


def document(
    paths: Mapping[str, Feed],
    *,
    title: str,
    version: str = __version__,
    description: str = "",
    server: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> Json:
    """The OpenAPI document of these feeds, and of `more` paths, which are path items already."""
    described: Json = {path: dict(item) for path, item in (more or {}).items()}
    for path, feed in paths.items():
        described.setdefault(path, {}).update({"get": _poll(path, feed)})
        described.setdefault(f"{path}/stream", {}).update({"get": _stream(path, feed)})
    openapi: Json = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": description},
        "paths": described,
        "components": {"schemas": {"Error": ERROR}, "securitySchemes": SECURITY},
        "security": [{"bearer": []}],
    }
    if server is not None:
        openapi["servers"] = [{"url": server}]
    return openapi


def error_response(description: str, *, retry: bool = False) -> Json:
    """An OpenAPI response with the common error body; `retry` adds the header `Retry-After`."""
    response: Json = {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if retry:
        schema = {"type": "integer", "minimum": 0}
        response["headers"] = {"Retry-After": _header("Seconds to wait before the next attempt.", schema)}
    return response


def _spoken(feed: Feed) -> str:
    return feed.name.replace("_", " ")


def _poll(path: str, feed: Feed) -> Json:
    return {
        "operationId": f"read_{feed.name}",
        "tags": [_spoken(feed)],
        "summary": f"Read a page of {_spoken(feed)}",
        "description": (
            f"Returns the items after `{feed.wire.cursor}`, in ascending order. Without it, returns "
            f"{_beginning(feed)}. Send the ETag of the last response in `If-None-Match`: 304 means that there is "
            f"nothing new. Use `{feed.wire.before}` to read backwards, or `{feed.wire.from_time}` to start at a time."
        ),
        "parameters": [*_parameters(path, feed), *_back_parameters(feed), *_poll_headers()],
        "responses": {
            "200": {
                "description": "A page of items. It can be empty.",
                "headers": _page_headers(feed),
                "content": {"application/json": {"schema": feed.wire.body.schema(feed.item_schema)}},
            },
            "304": {
                "description": "Nothing new since the response with this ETag.",
                "headers": {"ETag": _header("The same ETag.")},
            },
            **_refusals(),
            "410": error_response(_GONE),
        },
    }


def _stream(path: str, feed: Feed) -> Json:
    return {
        "operationId": f"follow_{feed.name}",
        "tags": [_spoken(feed)],
        "summary": f"Stream {_spoken(feed)}",
        "description": (
            f"Server-sent events. Without a cursor, the stream starts with {_beginning(feed)}.\n\n"
            f"- `{feed.wire.event_name}` carries an item. Its id is the cursor after that item.\n"
            "- An id without an event is the cursor up to which the server has searched.\n"
            "- `reset`: the cursor is no longer valid. Its data has the cursor to continue with.\n"
            "- `bye`: the server ends the stream. Connect again with the last id.\n"
            "- `hold`: the next event needs a newer version of the server. The stream waits."
        ),
        "parameters": [
            *_parameters(path, feed),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": f"The id of the last event received. It overrides `{feed.wire.cursor}`.",
                "schema": {"type": "string", "pattern": feed.cursor.pattern},
            },
        ],
        "responses": {
            "200": {
                "description": "A stream of events, without an end of its own.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            **_refusals(),
        },
    }


def _beginning(feed: Feed) -> str:
    return "the newest items" if feed.begins == "newest" else "the oldest items that are kept"


def _parameters(path: str, feed: Feed) -> list[Json]:
    parameters: list[Json] = []
    name = path_parameter(path)
    if name is not None:
        parameters.append(
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": f"The id of the {what_of(feed)}.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
        )
    parameters += [
        {
            "name": feed.wire.cursor,
            "in": "query",
            "description": (
                "The cursor of the last item received: the response continues after it. "
                f"Pages cannot combine it with `{feed.wire.before}` or `{feed.wire.from_time}`."
            ),
            **_place(feed),
        },
        {
            "name": feed.wire.limit,
            "in": "query",
            "description": "The maximum number of items in a page.",
            "schema": {
                "type": "integer",
                "minimum": feed.limits.least,
                "maximum": feed.limits.most,
                "default": feed.limits.default,
            },
        },
    ]
    for each in feed.filters:
        parameters.append(
            {"name": each.parameter, "in": "query", "description": each.describe(), "schema": each.schema()}
        )
    return parameters


def _back_parameters(feed: Feed) -> list[Json]:
    """The parameters of pages that streams do not have."""
    return [
        {
            "name": feed.wire.before,
            "in": "query",
            "description": (
                f"Return the items right before this cursor; `{END}` returns the newest page. {_further_back(feed)} "
                "The newest page has it, too, if the server did not search all events. "
                f"Cannot be combined with `{feed.wire.cursor}` or `{feed.wire.from_time}`."
            ),
            **_place(feed, END),
        },
        {
            "name": feed.wire.from_time,
            "in": "query",
            "description": (
                "Return the items from this time on. Write it with `Z` or an offset. "
                f"Cannot be combined with `{feed.wire.cursor}` or `{feed.wire.before}`."
            ),
            "example": "2025-11-12T10:30:05.123Z",
            "schema": {"type": "string", "format": "date-time"},
        },
    ]


def _place(feed: Feed, word: str | None = None) -> Json:
    """Schema and example of a cursor parameter that may also be this word."""
    if isinstance(feed.cursor, Position):
        schema: Json = {"type": "integer", "minimum": 0, "maximum": LARGEST}
        schema = schema if word is None else {"oneOf": [schema, {"type": "string", "const": word}]}
        return {"example": int(feed.cursor.example), "schema": schema}
    pattern = feed.cursor.pattern if word is None else f"{feed.cursor.pattern}|^{word}$"
    return {"example": feed.cursor.example, "schema": {"type": "string", "pattern": pattern}}


def _further_back(feed: Feed) -> str:
    if isinstance(feed.wire.body, BareArray):
        return "To read further back, use the header `X-Previous-Cursor`; it is absent at the beginning."
    return "To read further back, use `previousCursor`; it is null at the beginning."


def path_parameter(path: str) -> str | None:
    """The name of the key in a path such as `/projects/{project_id}/events`, or None."""
    _, opened, rest = path.partition("{")
    return rest.partition("}")[0] if opened else None


def _poll_headers() -> list[Json]:
    return [
        {
            "name": "If-None-Match",
            "in": "header",
            "description": "The ETag of the last response to the same request.",
            "schema": {"type": "string"},
        },
        {
            "name": "Prefer",
            "in": "header",
            "description": f"`wait=20` waits up to 20 seconds for new items. The maximum is {LONGEST_WAIT}.",
            "schema": {"type": "string"},
        },
    ]


def _page_headers(feed: Feed) -> Json:
    headers = {
        "ETag": _header("Send it in `If-None-Match` with the same request."),
        "X-Has-More": _header("Whether more items follow.", {"type": "string", "enum": ["true", "false"]}),
        "X-Total-Count": _header("The total number of items, if it is known.", {"type": "integer"}),
        "X-Next-Cursor": _header("The cursor to continue with, if the body does not have it."),
        "X-Previous-Cursor": _header("The cursor for the page before, if the body does not have it."),
        "X-Never-Given": _header(
            "Gaps in the numbers of this page: ranges such as `21-1790000000000000` that belong to no event."
        ),
        "Preference-Applied": _header("Confirms `Prefer: wait`."),
    }
    if feed.rates:
        policy = policy_of(feed.rates)[1].decode()
        headers["RateLimit"] = _header("Requests left (`r`), and seconds until the whole limit is free again (`t`).")
        headers["RateLimit-Policy"] = _header(f"The rate limits: `{policy}`.")
    return headers


def _header(description: str, schema: Json | None = None) -> Json:
    return {"description": description, "schema": schema or {"type": "string"}}


def _refusals() -> Json:
    return {str(status): error_response(said, retry=status in (429, 503)) for status, said in _REFUSALS.items()}
