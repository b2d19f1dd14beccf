"""The system's own routes: open, list, show and close investigations, take logs. Reading logs is the feed's work."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, Final, TypeVar

import msgspec
import psycopg
from msgspec import Meta
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aftercommit.errors import DatabaseUnavailable, Unauthorized
from aftercommit.event.json_rules import text_problem
from aftercommit.feed import Feed
from aftercommit.feed.access import Access, Reader
from aftercommit.feed.errors import bad_request, forbidden, unauthorized, unavailable
from aftercommit.postgres.database import Database
from systems.investigations.cases import INVESTIGATION_ID, Case, close_case, find_case, list_cases, open_case
from systems.investigations.errors import NotThere
from systems.investigations.feeds import redactor
from systems.investigations.ingest import store
from systems.investigations.producing import read_logs

ROOT: Final = "/api/v1/investigations"
CREATE: Final = "investigation:create"
LISTED: Final = 50
MOST_LISTED: Final = 200
LARGEST: Final = 2**63 - 1
PATIENCE_SECONDS: Final = 5.0
MOST_CONNECTIONS: Final = 10

Body = TypeVar("Body", bound=msgspec.Struct)
Handler = Callable[[Request, Reader], Awaitable[Response]]
_encode: Final = msgspec.json.Encoder().encode
# "Expected `str` of length >= 1 - at `$.title`", "Object missing required field `title`".
_FIELD: Final = re.compile(r"(?:at `\$\.|field `)(\w+)`")


class NewInvestigation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What opens an investigation; without an id it gets the next free one."""

    title: Annotated[str, Meta(min_length=1, max_length=200)]
    investigation_id: Annotated[str, Meta(pattern=f"^{INVESTIGATION_ID.pattern}$")] | None = None


class Investigations(msgspec.Struct, frozen=True):
    """Those that the caller may read, newest first. `next_before` goes on; null: there are no more."""

    investigations: list[Case]
    next_before: int | None


class InvestigationsApi:
    """The routes, on connections of their own."""

    def __init__(self, database: Database, access: Access) -> None:
        """Nothing is connected before the lifespan begins."""
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]] = AsyncConnectionPool(
            database.dsn,
            min_size=1,
            max_size=MOST_CONNECTIONS,
            open=False,
            # Server-side prepared statements do not survive transaction pooling.
            kwargs={"prepare_threshold": None, "application_name": "investigations"},
        )
        self._access = access
        self.routes: Sequence[BaseRoute] = [
            Route(ROOT, self._guarded(self.list, "before", "limit"), methods=["GET"]),
            Route(ROOT, self._guarded(self.create), methods=["POST"]),
            Route(ROOT + "/{investigation_id}", self._guarded(self.show), methods=["GET"]),
            Route(ROOT + "/{investigation_id}/close", self._guarded(self.close), methods=["POST"]),
            Route(ROOT + "/{investigation_id}/logs", self._guarded(self.ingest), methods=["POST"]),
        ]

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """Connections are open."""
        return self._pool

    async def exists(self, feed: Feed, investigation_id: str) -> bool:
        """Whether there is such an investigation."""
        if INVESTIGATION_ID.fullmatch(investigation_id) is None:
            return False
        async with self._connection() as connection:
            try:
                await find_case(connection, investigation_id)
            except NotThere:
                return False
        return True

    async def list(self, request: Request, reader: Reader) -> Response:
        """Those that the caller may read, newest first."""
        before = _whole(request, "before", 1, LARGEST)
        limit = _whole(request, "limit", 1, MOST_LISTED) or LISTED
        async with self._connection() as connection:
            found = await list_cases(
                connection, lambda case: reader.may(permission(case, "read")), before=before, limit=limit
            )
        return _answer(200, Investigations([_shown(case) for case in found.cases], found.next_before))

    async def create(self, request: Request, reader: Reader) -> Response:
        """Open one, under a name of the caller's choice or the next free one."""
        _require(reader, CREATE)
        new = _read(NewInvestigation, await request.body())
        _check(new)
        async with self._connection() as connection:
            case = await open_case(connection, new.title, reader.user, new.investigation_id)
        return _answer(201, _shown(case), {"Location": f"{ROOT}/{case.investigation_id}"})

    async def show(self, request: Request, reader: Reader) -> Response:
        """One investigation."""
        investigation_id = _id_of(request)
        _require(reader, permission(investigation_id, "read"))
        async with self._connection() as connection:
            return _answer(200, _shown(await find_case(connection, investigation_id)))

    async def close(self, request: Request, reader: Reader) -> Response:
        """Take no more logs."""
        investigation_id = _id_of(request)
        _require(reader, permission(investigation_id, "write"))
        async with self._connection() as connection:
            return _answer(200, _shown(await close_case(connection, investigation_id, reader.user)))

    async def ingest(self, request: Request, reader: Reader) -> Response:
        """Store a line or a batch; answered when it is committed."""
        investigation_id = _id_of(request)
        _require(reader, permission(investigation_id, "write"))
        logs = read_logs(await request.body(), investigation_id)
        async with self._connection() as connection:
            stored = await store(connection, investigation_id, logs)
        return _answer(201 if stored.stored else 200, stored)

    def _guarded(self, handler: Handler, *parameters: str) -> Callable[[Request], Awaitable[Response]]:
        """First of all, who asks. Of the query only these parameters mean something, and others are not ignored."""

        async def endpoint(request: Request) -> Response:
            headers = request.headers
            try:
                reader = await self._access.reader(headers.get("authorization"), headers)
            except Unauthorized as problem:
                raise unauthorized() from problem
            except DatabaseUnavailable as problem:
                raise unavailable("Tokens cannot be checked at the moment") from problem
            for name in request.query_params:
                if name not in parameters:
                    takes = f"takes {', '.join(parameters)}" if parameters else "takes none"
                    raise bad_request(f"Unknown parameter {name!r:.60}: this address {takes}", parameter=name[:60])
            return await handler(request, reader)

        return endpoint

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        try:
            async with self._pool.connection(timeout=PATIENCE_SECONDS) as connection:
                yield connection
        except (PoolTimeout, psycopg.OperationalError, psycopg.InterfaceError) as problem:
            # What was under way may have been committed: that is what a producer's event_id is for.
            raise unavailable("The database cannot be reached; send the same request again") from problem


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


def _read(kind: type[Body], body: bytes) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        named = _FIELD.search(str(problem))
        details = {"field": named[1]} if named is not None else {}
        raise bad_request(f"The body cannot be read: {problem}", **details) from problem


def _check(new: NewInvestigation) -> None:
    """What a type cannot say."""
    problem = text_problem(new.title)
    if problem is not None:
        raise bad_request(f"The title {problem}", field="title")
    if new.investigation_id is not None and INVESTIGATION_ID.fullmatch(new.investigation_id) is None:
        raise bad_request("The investigation_id must not end with a line break", field="investigation_id")


def _whole(request: Request, name: str, least: int, most: int) -> int | None:
    given = request.query_params.getlist(name)
    if not given:
        return None
    text = given[0]
    if len(given) == 1 and len(text) <= 19 and text.isascii() and text.isdigit() and least <= int(text) <= most:
        return int(text)
    raise bad_request(f"{name} must be given once, as a whole number from {least} to {most}", **{name: text[:60]})


def _answer(status: int, body: msgspec.Struct, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        _encode(body), status, {"Cache-Control": "no-store", **(headers or {})}, media_type="application/json"
    )
