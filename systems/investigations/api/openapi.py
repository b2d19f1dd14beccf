"""The system's own routes as OpenAPI; those of the feed describe themselves."""

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any, Final

import msgspec

from aftercommit.feed.app.openapi import problem
from systems.investigations.api.routes import CREATE, LISTED, MOST_LISTED, ROOT, Investigations, NewInvestigation
from systems.investigations.service.cases import INVESTIGATION_ID, Case
from systems.investigations.service.ingest import Stored
from systems.investigations.service.produced_logs import MOST_LOGS, ProducedLog

_REF: Final = "#/components/schemas/{name}"
_MEANINGS: Final = {
    400: "The request cannot be read; `details` name the place.",
    401: "No token, or one that is forged, expired or revoked.",
    403: "The token does not allow this.",
    404: "There is no such investigation.",
    409: "The investigation is closed, or, when one is opened, its name is taken.",
    413: "More than can be stored at once.",
    503: "The database cannot be reached, or does not answer; the same request can be sent again. Where "
    "`details.outcome` is `unknown`, it may have been done.",
}


def paths() -> dict[str, Any]:
    """The paths, to be merged with those of the feed."""
    one = {
        "name": "investigation_id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": f"^{INVESTIGATION_ID.pattern}$"},
        "example": "INV-123",
    }
    return {
        ROOT: {"get": _list(), "post": _create()},
        ROOT + "/{investigation_id}": {"parameters": [one], "get": _show()},
        ROOT + "/{investigation_id}/close": {"parameters": [one], "post": _close()},
        ROOT + "/{investigation_id}/logs": {"parameters": [one], "post": _ingest()},
    }


def schemas() -> dict[str, Any]:
    """What the bodies look like, by name."""
    _, found = msgspec.json.schema_components(
        [Case, Investigations, NewInvestigation, ProducedLog, Stored], ref_template=_REF
    )
    for schema in found.values():
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    return found


def _list() -> dict[str, Any]:
    return {
        "operationId": "listInvestigations",
        "tags": ["investigations"],
        "summary": "Investigations that the caller may read, newest first",
        "parameters": [
            _parameter("before", "Go on from `next_before` of the page before.", {"type": "integer", "minimum": 1}),
            _parameter(
                "limit",
                "How many at most.",
                {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": LISTED},
            ),
        ],
        "responses": _answers({200: ("A page of the list.", "Investigations")}, 400, 401, 503),
    }


def _create() -> dict[str, Any]:
    return {
        "operationId": "openInvestigation",
        "tags": ["investigations"],
        "summary": "Open an investigation",
        "description": f"Needs the permission `{CREATE}`.",
        "requestBody": _body({"$ref": _REF.format(name="NewInvestigation")}),
        "responses": _answers({201: ("It is open.", "Case")}, 400, 401, 403, 409, 413, 503),
    }


def _show() -> dict[str, Any]:
    return {
        "operationId": "showInvestigation",
        "tags": ["investigations"],
        "summary": "One investigation",
        "description": "Needs the permission `investigation:{investigation_id}:read`.",
        "responses": _answers({200: ("The investigation.", "Case")}, 400, 401, 403, 404, 503),
    }


def _close() -> dict[str, Any]:
    return {
        "operationId": "closeInvestigation",
        "tags": ["investigations"],
        "summary": "Close an investigation: it takes no more logs",
        "description": "Needs `investigation:{investigation_id}:write`. Closing what is closed changes nothing.",
        "responses": _answers({200: ("It is closed.", "Case")}, 400, 401, 403, 404, 503),
    }


def _ingest() -> dict[str, Any]:
    log = {"$ref": _REF.format(name="ProducedLog")}
    batch = {"type": "array", "items": log, "minItems": 1, "maxItems": MOST_LOGS}
    listed = {"type": "object", "properties": {"logs": batch}, "required": ["logs"], "additionalProperties": False}
    return {
        "operationId": "recordLogs",
        "tags": ["logs"],
        "summary": "Store one log or a batch, answered when it is committed",
        "description": "Needs `investigation:{investigation_id}:write`. With one bad log none of them is stored. "
        "A log whose `event_id` is stored already is answered `duplicate`, so that a request may be sent again.",
        "requestBody": _body({"oneOf": [log, batch, listed]}),
        "responses": _answers(
            {201: ("Committed.", "Stored"), 200: ("All of it was stored before.", "Stored")},
            *(400, 401, 403, 404, 409, 413, 503),
        ),
    }


def _parameter(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _body(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _answers(good: Mapping[int, tuple[str, str]], *bad: int) -> dict[str, Any]:
    found = {status: _answer(description, name) for status, (description, name) in good.items()}
    found |= {status: problem(_MEANINGS[status], retry=status == 503) for status in bad}
    return {str(status): found[status] for status in sorted(found)}


def _answer(description: str, name: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}}
