"""OpenAPI 3.1 of feeds, from their declarations: what a request may ask for, every answer it can get. Pure."""

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
        "error": {"type": "string", "description": "A code that programs can rely on."},
        "message": {"type": "string", "description": "What was wrong and what to do, for people."},
        "details": {"type": "object", "description": "The values that were wrong."},
        "retry_after": {"type": "integer", "minimum": 0, "description": "Seconds after which to try again."},
    },
}
SECURITY: Json = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A JWT or a service token, in the header `Authorization`. Tokens in URLs are not taken.",
    }
}
_REFUSALS: Mapping[int, str] = {
    400: "A parameter or header cannot be read; `details` names it.",
    401: "There is no token, or it is expired, revoked or forged.",
    403: "The token does not have the permission that is needed.",
    404: "There is nothing of this name.",
    429: "Too many requests, or too many open streams; try again after `retry_after` seconds.",
    503: (
        "The server cannot answer at the moment; try again after `retry_after` seconds. During a deployment, "
        "`details` may name an event for which this server is too old."
    ),
}
_GONE = (
    "The log no longer has what lies behind this cursor. `details.reason` says why, `details.restart` where to go on."
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
    """The description of these feeds, and of `more`: other paths, as OpenAPI has them."""
    described: Json = {path: dict(item) for path, item in (more or {}).items()}
    for path, feed in paths.items():
        described.setdefault(path, {}).update({"get": _poll(path, feed)})
        described.setdefault(f"{path}/stream", {}).update({"get": _stream(path, feed)})
    told: Json = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": description},
        "paths": described,
        "components": {"schemas": {"Error": ERROR}, "securitySchemes": SECURITY},
        "security": [{"bearer": []}],
    }
    if server is not None:
        told["servers"] = [{"url": server}]
    return told


def problem(description: str, *, retry: bool = False) -> Json:
    """An answer with the common error body."""
    told: Json = {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if retry:
        told["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 0}}}
    return told


def _spoken(feed: Feed) -> str:
    return feed.name.replace("_", " ")


def _poll(path: str, feed: Feed) -> Json:
    return {
        "operationId": f"read_{feed.name}",
        "tags": [_spoken(feed)],
        "summary": f"A page of {_spoken(feed)}",
        "description": (
            f"{_beginning(feed)} without `{feed.wire.cursor}`, otherwise those after it; always in ascending order. "
            "Ask again with the ETag in `If-None-Match`: 304 says that there is nothing new. "
            f"Instead of `{feed.wire.cursor}`, `{feed.wire.before}` reads back and `{feed.wire.from_time}` begins "
            "at a time."
        ),
        "parameters": [*_parameters(path, feed), *_back_parameters(feed), *_poll_headers()],
        "responses": {
            "200": {
                "description": "A page, which may be empty.",
                "headers": _page_headers(feed),
                "content": {"application/json": {"schema": feed.wire.body.schema(feed.item_schema)}},
            },
            "304": {
                "description": "Nothing new since the answer with this ETag.",
                "headers": {"ETag": _header("The same.")},
            },
            **_refusals(),
            "410": problem(_GONE),
        },
    }


def _stream(path: str, feed: Feed) -> Json:
    return {
        "operationId": f"follow_{feed.name}",
        "tags": [_spoken(feed)],
        "summary": f"A stream of {_spoken(feed)}",
        "description": (
            f"Server-sent events: `{feed.wire.event_name}` carries an item, and its id is the cursor behind it. An id "
            "alone says how far was looked. `reset` says that the cursor is gone and where to go on, `bye` that the "
            "server ends the stream: connect again with the last id. `hold` says that the server is too old for the "
            f"next event, and waits. {_beginning(feed)} come first without a cursor."
        ),
        "parameters": [
            *_parameters(path, feed),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": f"The id of the last event that was read; goes before `{feed.wire.cursor}`.",
                "schema": {"type": "string", "pattern": feed.cursor.pattern},
            },
        ],
        "responses": {
            "200": {
                "description": "Events, for as long as both want.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            **_refusals(),
        },
    }


def _beginning(feed: Feed) -> str:
    return "The most recent items" if feed.begins == "newest" else "The oldest items that are kept"


def _parameters(path: str, feed: Feed) -> list[Json]:
    parameters: list[Json] = []
    name = path_parameter(path)
    if name is not None:
        parameters.append(
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": f"Which {what_of(feed)}.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
        )
    parameters += [
        {
            "name": feed.wire.cursor,
            "in": "query",
            "description": (
                "Where to go on: the cursor of the last item that was read. On pages, "
                f"not together with `{feed.wire.before}` or `{feed.wire.from_time}`."
            ),
            **_place(feed),
        },
        {
            "name": feed.wire.limit,
            "in": "query",
            "description": "How many items at most.",
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
    """What a page may be asked for and a stream may not."""
    return [
        {
            "name": feed.wire.before,
            "in": "query",
            "description": (
                f"Items right before this cursor. {_further_back(feed)} "
                f"`{END}` stands before what is yet to come: the newest page. "
                "The newest page has one, too, where it did not look at all that there is. "
                f"Not together with `{feed.wire.cursor}` or `{feed.wire.from_time}`."
            ),
            **_place(feed, END),
        },
        {
            "name": feed.wire.from_time,
            "in": "query",
            "description": (
                "Items from this time on, with `Z` or an offset. "
                f"Not together with `{feed.wire.cursor}` or `{feed.wire.before}`."
            ),
            "example": "2025-11-12T10:30:05.123Z",
            "schema": {"type": "string", "format": "date-time"},
        },
    ]


def _place(feed: Feed, word: str | None = None) -> Json:
    """Schema and example of a cursor in a query, or of this word instead."""
    if isinstance(feed.cursor, Position):
        schema: Json = {"type": "integer", "minimum": 0, "maximum": LARGEST}
        schema = schema if word is None else {"oneOf": [schema, {"type": "string", "const": word}]}
        return {"example": int(feed.cursor.example), "schema": schema}
    pattern = feed.cursor.pattern if word is None else f"{feed.cursor.pattern}|^{word}$"
    return {"example": feed.cursor.example, "schema": {"type": "string", "pattern": pattern}}


def _further_back(feed: Feed) -> str:
    if isinstance(feed.wire.body, BareArray):
        return "The header `X-Previous-Cursor` goes further back, and is absent at the beginning."
    return "`previousCursor` goes further back, and is null at the beginning."


def path_parameter(path: str) -> str | None:
    """The name of the part of a path that is the key, as in `/projects/{project_id}/events`."""
    _, opened, rest = path.partition("{")
    return rest.partition("}")[0] if opened else None


def _poll_headers() -> list[Json]:
    return [
        {
            "name": "If-None-Match",
            "in": "header",
            "description": "The ETag of the last answer to the same request.",
            "schema": {"type": "string"},
        },
        {
            "name": "Prefer",
            "in": "header",
            "description": f"`wait=20` waits up to 20 seconds for news ({LONGEST_WAIT} at most).",
            "schema": {"type": "string"},
        },
    ]


def _page_headers(feed: Feed) -> Json:
    headers = {
        "ETag": _header("For `If-None-Match` of the same request."),
        "X-Has-More": _header("Whether there is more after this page.", {"type": "string", "enum": ["true", "false"]}),
        "X-Total-Count": _header("How many items there are in all, where that is known.", {"type": "integer"}),
        "X-Next-Cursor": _header("Where to go on, where the body does not say it."),
        "X-Previous-Cursor": _header("Where to go further back, where the body does not say it."),
        "X-Never-Given": _header(
            "Ranges of numbers before items of this page that belong to no event, as in `21-1790000000000000`."
        ),
        "Preference-Applied": _header("That the wish to wait was heard."),
    }
    if feed.rates:
        policy = policy_of(feed.rates)[1].decode()
        headers["RateLimit"] = _header("How many requests are left, and the seconds until there are all of them again.")
        headers["RateLimit-Policy"] = _header(f"The limits: `{policy}`.")
    return headers


def _header(description: str, schema: Json | None = None) -> Json:
    return {"description": description, "schema": schema or {"type": "string"}}


def _refusals() -> Json:
    return {str(status): problem(said, retry=status in (429, 503)) for status, said in _REFUSALS.items()}
