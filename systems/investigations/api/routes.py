"""The system's own routes: open, list, show and close investigations, take logs. Reading logs is the feed's work."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aftercommit.access.reader import Access, Reader
from aftercommit.event.json_rules import text_problem
from aftercommit.feed import Feed
from aftercommit.http.errors import bad_request, forbidden
from aftercommit.postgres.database import Database
from aftercommit.service import Service
from systems.host.http import LARGEST, Handler, RequestPool, answer, guarded, read_body, whole_number
from systems.investigations.feeds import redactor
from systems.investigations.service.cases import INVESTIGATION_ID, Case, close_case, find_case, list_cases, open_case
from systems.investigations.service.errors import NotThere
from systems.investigations.service.ingest import store
from systems.investigations.service.produced_logs import read_logs

ROOT: Final = "/api/v1/investigations"
CREATE: Final = "investigation:create"
LISTED: Final = 50
MOST_LISTED: Final = 200
AGAIN: Final = "it may have been done; send it again, what has an event_id or an investigation_id is stored once"


class NewInvestigation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What opens an investigation; without an id it gets the next free one."""

    title: Annotated[str, Meta(min_length=1, max_length=200, extra_json_schema={"pattern": r"^[^\u0000]+$"})]
    investigation_id: Annotated[str, Meta(pattern=f"^{INVESTIGATION_ID.pattern}$")] | None = None


class Investigations(msgspec.Struct, frozen=True):
    """Those that the caller may read, newest first. `next_before` goes on; null: there are no more."""

    investigations: list[Case]
    next_before: int | None


class InvestigationsApi:
    """The routes, on connections of their own."""

    def __init__(self, database: Database, access: Access) -> None:
        """Nothing is connected before the lifespan begins."""
        self.access = access
        self.services: Sequence[Service] = ()
        self._pool = RequestPool(database, "investigations", AGAIN)
        self.routes: Sequence[BaseRoute] = [
            Route(ROOT, self._guarded(self.list, "before", "limit"), methods=["GET"]),
            Route(ROOT, self._guarded(self.create), methods=["POST"]),
            Route(ROOT + "/{investigation_id}", self._guarded(self.show), methods=["GET"]),
            Route(ROOT + "/{investigation_id}/close", self._guarded(self.close), methods=["POST"]),
            Route(ROOT + "/{investigation_id}/logs", self._guarded(self.ingest), methods=["POST"]),
        ]

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """Connections are open."""
        return self._pool.lifespan()

    async def exists(self, feed: Feed, investigation_id: str) -> bool:
        """Whether there is such an investigation."""
        if INVESTIGATION_ID.fullmatch(investigation_id) is None:
            return False
        async with self._pool.reading() as connection:
            try:
                await find_case(connection, investigation_id)
            except NotThere:
                return False
        return True

    async def list(self, request: Request, reader: Reader) -> Response:
        """Those that the caller may read, newest first."""
        before = whole_number(request, "before", 1, LARGEST)
        limit = whole_number(request, "limit", 1, MOST_LISTED) or LISTED
        async with self._pool.reading() as connection:
            found = await list_cases(
                connection, lambda case: reader.may(permission(case, "read")), before=before, limit=limit
            )
        return answer(200, Investigations([_shown(case) for case in found.cases], found.next_before))

    async def create(self, request: Request, reader: Reader) -> Response:
        """Open one, under a name of the caller's choice or the next free one."""
        _require(reader, CREATE)
        new = read_body(NewInvestigation, await request.body())
        _check(new)
        async with self._pool.changing() as connection:
            case = await open_case(connection, new.title, reader.user, new.investigation_id)
        return answer(201, _shown(case), {"Location": f"{ROOT}/{case.investigation_id}"})

    async def show(self, request: Request, reader: Reader) -> Response:
        """One investigation."""
        investigation_id = _id_of(request)
        _require(reader, permission(investigation_id, "read"))
        async with self._pool.reading() as connection:
            return answer(200, _shown(await find_case(connection, investigation_id)))

    async def close(self, request: Request, reader: Reader) -> Response:
        """Take no more logs."""
        investigation_id = _id_of(request)
        _require(reader, permission(investigation_id, "write"))
        async with self._pool.changing() as connection:
            return answer(200, _shown(await close_case(connection, investigation_id, reader.user)))

    async def ingest(self, request: Request, reader: Reader) -> Response:
        """Store a line or a batch; answered when it is committed."""
        investigation_id = _id_of(request)
        _require(reader, permission(investigation_id, "write"))
        logs = read_logs(await request.body(), investigation_id)
        async with self._pool.changing() as connection:
            stored = await store(connection, investigation_id, logs)
        return answer(201 if stored.stored else 200, stored)

    def _guarded(self, handler: Handler, *parameters: str) -> Callable[[Request], Awaitable[Response]]:
        return guarded(self.access.reader, handler, *parameters)


def permission(investigation_id: str, verb: str) -> str:
    """What a token must allow to read or write an investigation."""
    return f"investigation:{investigation_id}:{verb}"


def _shown(case: Case) -> Case:
    """An investigation as it leaves: people write into titles what they should not."""
    return msgspec.structs.replace(case, title=redactor.text(case.title))


def _require(reader: Reader, needed: str) -> None:
    if not reader.may(needed):
        raise forbidden(needed)


def _id_of(request: Request) -> str:
    investigation_id: str = request.path_params["investigation_id"]
    if INVESTIGATION_ID.fullmatch(investigation_id) is None:
        raise NotThere(investigation_id)
    return investigation_id


def _check(new: NewInvestigation) -> None:
    """What a type cannot say."""
    problem = text_problem(new.title)
    if problem is not None:
        raise bad_request(f"The title {problem}", field="title")
    if new.investigation_id is not None and INVESTIGATION_ID.fullmatch(new.investigation_id) is None:
        raise bad_request("The investigation_id must not end with a line break", field="investigation_id")
