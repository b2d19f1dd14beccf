"""The routes: open, list, show and close investigations, and store logs."""

from dataclasses import dataclass, replace
from enum import Enum
from inspect import cleandoc
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from aftercommit.access import Reader
from aftercommit.http import forbidden
from systems.host.http import answer
from systems.host.routes import DIGITS, STORABLE, Before, Body, Caller, RawRoute, SystemRoute, refusals
from systems.investigations.api.part import InvestigationsPart
from systems.investigations.feeds import redactor
from systems.investigations.service.cases import INVESTIGATION_ID, Case, close_case, find_case, list_cases, open_case
from systems.investigations.service.errors import NotThere
from systems.investigations.service.ingest import Stored, store
from systems.investigations.service.produced_logs import MOST_LOGS, ProducedLog, read_logs

ROOT: Final = "/api/v1/investigations"
CREATE: Final = "investigation:create"
LISTED: Final = 50
MOST_LISTED: Final = 200
_ID_PATTERN: Final = f"^{INVESTIGATION_ID.pattern}$"
_REF: Final = "#/components/schemas/{name}"


class NewInvestigation(Body):
    """A new investigation. Without an id, it gets the next free one."""

    title: Annotated[str, Field(min_length=1, max_length=200, json_schema_extra={"pattern": r"^[^\u0000]+$"}), STORABLE]
    investigation_id: Annotated[str, Field(pattern=_ID_PATTERN)] | None = None


@dataclass(frozen=True, slots=True)
class Investigations:
    """Investigations, newest first. `next_before` continues the list; null: there are no more."""

    investigations: list[Case]
    next_before: int | None


async def _part(request: Request) -> InvestigationsPart:
    part: InvestigationsPart = request.state.part
    return part


async def _investigation_id(
    investigation_id: Annotated[str, Path(json_schema_extra={"pattern": _ID_PATTERN}, examples=["INV-123"])],
) -> str:
    """The investigation's id in the path; 404 if no investigation can have it."""
    if INVESTIGATION_ID.fullmatch(investigation_id) is None:
        raise NotThere(investigation_id)
    return investigation_id


Api = Annotated[InvestigationsPart, Depends(_part)]
InvestigationId = Annotated[str, Depends(_investigation_id)]
Limit = Annotated[int, Field(ge=1, le=MOST_LISTED), DIGITS, Query(description="Maximum number of items.")]


async def _readable(reader: Caller, investigation_id: InvestigationId) -> str:
    _require(reader, permission(investigation_id, "read"))
    return investigation_id


async def _writable(reader: Caller, investigation_id: InvestigationId) -> str:
    _require(reader, permission(investigation_id, "write"))
    return investigation_id


async def _creator(reader: Caller) -> Reader:
    _require(reader, CREATE)
    return reader


def permission(investigation_id: str, verb: str) -> str:
    """The permission to read or write an investigation."""
    return f"investigation:{investigation_id}:{verb}"


def _require(reader: Reader, needed: str) -> None:
    if not reader.may(needed):
        raise forbidden(needed)


def _shown(case: Case) -> Case:
    """An investigation with its title redacted."""
    return replace(case, title=redactor.text(case.title))


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return refusals(
        *statuses,
        meanings={
            403: "The token lacks the permission.",
            404: "The investigation does not exist.",
            409: "The investigation is closed, or the id of a new one is taken.",
        },
    )


router = APIRouter(prefix=ROOT, route_class=SystemRoute)
_ONE: Final = "/{investigation_id}"
_TAGS: Final[list[str | Enum]] = ["investigations"]


@router.get(
    "",
    operation_id="listInvestigations",
    tags=_TAGS,
    summary="List the investigations that the caller may read, newest first",
    responses=_refusals(400, 401, 503),
)
async def list_readable(api: Api, reader: Caller, before: Before = None, limit: Limit = LISTED) -> Investigations:
    """Returns one page."""
    async with api.pool.reading() as connection:
        found = await list_cases(
            connection, lambda case: reader.may(permission(case, "read")), before=before, limit=limit
        )
    return Investigations([_shown(case) for case in found.cases], found.next_before)


@router.post(
    "",
    operation_id="openInvestigation",
    tags=_TAGS,
    summary="Open an investigation",
    description=f"Needs the permission `{CREATE}`.",
    status_code=201,
    response_description="The new investigation.",
    responses=_refusals(400, 401, 403, 409, 413, 503),
)
async def create(
    api: Api, reader: Annotated[Reader, Depends(_creator)], new: NewInvestigation, response: Response
) -> Case:
    """With the caller's id, or the next free one."""
    async with api.pool.changing() as connection:
        case = await open_case(connection, new.title, reader.user, new.investigation_id)
    response.headers["Location"] = f"{ROOT}/{case.investigation_id}"
    return _shown(case)


@router.get(
    _ONE,
    operation_id="showInvestigation",
    tags=_TAGS,
    summary="Show an investigation",
    responses=_refusals(400, 401, 403, 404, 503),
)
async def show(api: Api, investigation_id: Annotated[str, Depends(_readable)]) -> Case:
    """Needs the permission `investigation:{investigation_id}:read`."""
    async with api.pool.reading() as connection:
        return _shown(await find_case(connection, investigation_id))


@router.post(
    f"{_ONE}/close",
    operation_id="closeInvestigation",
    tags=_TAGS,
    summary="Close an investigation, so that it accepts no more logs",
    response_description="The closed investigation.",
    responses=_refusals(400, 401, 403, 404, 503),
)
async def close(api: Api, reader: Caller, investigation_id: Annotated[str, Depends(_writable)]) -> Case:
    """Needs the permission `investigation:{investigation_id}:write`. Safe to repeat."""
    async with api.pool.changing() as connection:
        return _shown(await close_case(connection, investigation_id, reader.user))


_ID_PARAMETER: Final = {
    "name": "investigation_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": _ID_PATTERN, "examples": ["INV-123"]},
}
_LOG: Final = {"$ref": _REF.format(name="ProducedLog")}
_BATCH: Final = {"type": "array", "items": _LOG, "minItems": 1, "maxItems": MOST_LOGS}
_LISTED: Final = {"type": "object", "properties": {"logs": _BATCH}, "required": ["logs"], "additionalProperties": False}
_LOGS_BODY: Final = {
    "required": True,
    "content": {"application/json": {"schema": {"oneOf": [_LOG, _BATCH, _LISTED]}}},
}
_STORED: Final = {"application/json": {"schema": {"$ref": _REF.format(name="Stored")}}}


async def ingest(request: Request) -> Response:
    """Needs the permission `investigation:{investigation_id}:write`. If one log is invalid, none is stored.

    A log whose `event_id` is already stored gets the status `duplicate`, so a request can be repeated.
    """
    api: InvestigationsPart = request.state.part
    investigation_id = await _investigation_id(request.path_params["investigation_id"])
    await _writable(request.state.reader, investigation_id)
    logs = read_logs(await request.body(), investigation_id)
    async with api.pool.changing() as connection:
        stored = await store(connection, investigation_id, logs)
    return answer(201 if stored.stored else 200, stored)


# Producers write thousands of lines a second, so this route bypasses FastAPI and pydantic. msgspec reads the lines and
# names an invalid one by its index; the description below replaces the types.
router.add_api_route(
    f"{_ONE}/logs",
    ingest,
    methods=["POST"],
    route_class_override=RawRoute,
    operation_id="recordLogs",
    tags=["logs"],
    summary="Store one log or a batch",
    status_code=201,
    response_class=Response,
    response_description="The logs are committed.",
    openapi_extra={"parameters": [_ID_PARAMETER], "requestBody": _LOGS_BODY},
    responses={
        200: {"description": "All logs were already stored.", "content": _STORED},
        201: {"content": _STORED},
        **_refusals(400, 401, 403, 404, 409, 413, 503),
    },
)


def log_schemas() -> dict[str, Any]:
    """OpenAPI schemas of a log and of the response."""
    _, found = msgspec.json.schema_components([ProducedLog, Stored], ref_template=_REF)
    for schema in found.values():
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    return found
