"""What the routes of all systems share: database connections, transactions, strict JSON, responses."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from starlette.responses import Response

from aftercommit import Database
from aftercommit.access import Reader
from aftercommit.errors import DatabaseSilent
from aftercommit.http import Problem, bad_request, database_silent, unavailable
from aftercommit.postgres import (
    SPEAK_ISO,
    BoundedConnection,
    Unanswered,
    answered_within,
    committed_async,
    connect_timeout,
    connection_options,
    speaks_iso,
)

PATIENCE_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 0.25
MOST_CONNECTIONS: Final = 10
_BRIEFLY: Final = "set local lock_timeout = '3s'"
LARGEST: Final = 2**63 - 1

Connection = psycopg.AsyncConnection[Any]
Pool = AsyncConnectionPool[BoundedConnection]
Asks = Callable[[str | None, Mapping[str, str], str | None], Awaitable[Reader]]
_encode: Final = msgspec.json.Encoder().encode
# JSON errors quote the input, which may be megabytes.
LONGEST_COMPLAINT: Final = 300
# Two escapes that form one character, and one of them alone, where a text was cut between the two.
_PAIR: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def pool_of(database: Database, name: str) -> Pool:
    """A pool for the routes of one system; nothing is connected yet."""
    # It would log for each request that the database is away; the services beside it log that once.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    patience = {"connect_timeout": connect_timeout(database.answer_timeout)}

    async def configure(connection: BoundedConnection) -> None:
        connection.answer_timeout = database.answer_timeout
        # psycopg cannot read times in the other formats that a database may use.
        if not speaks_iso(connection):
            await connection.execute(SPEAK_ISO)
            await connection.commit()

    return AsyncConnectionPool(
        database.dsn,
        connection_class=BoundedConnection,
        min_size=1,
        max_size=MOST_CONNECTIONS,
        open=False,
        # Server-side prepared statements do not survive transaction pooling.
        kwargs={"prepare_threshold": None, **connection_options(database.dsn, application_name=name, **patience)},
        configure=configure,
    )


class RequestPool:
    """The database connections of one system's routes, one for each request.

    If the database does not answer in time, the request gets 503. `again` tells the client how to repeat a change
    safely, because it may have been committed.
    """

    def __init__(self, database: Database, name: str, again: str) -> None:
        """Nothing is connected before the lifespan begins."""
        self._pool = pool_of(database, name)
        self._within = database.answer_timeout
        self._again = again
        self._checks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Keeps the pool open."""
        await self._pool.open()
        try:
            yield
        finally:
            # Do not wait for connection attempts to a server that hangs.
            await self._pool.close(CLOSE_SECONDS)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """A connection for a request that changes nothing."""
        async with self._lent("try again", None) as connection:
            yield connection

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[Connection]:
        """A connection for a request that changes something. After 503, the change may have been committed."""
        async with self._lent(self._again, "unknown") as connection:
            yield connection

    @asynccontextmanager
    async def _lent(self, remedy: str, outcome: str | None) -> AsyncIterator[Connection]:
        try:
            async with (
                self._pool.connection(timeout=min(PATIENCE_SECONDS, self._within)) as connection,
                answered_within(self._within),
            ):
                yield connection
        except psycopg.errors.LockNotAvailable as problem:
            raise unavailable("Another request holds a lock on the same data. Try again in a moment") from problem
        except PoolTimeout as problem:
            raise unavailable("The database is busy or cannot be reached. Nothing was changed; try again") from problem
        except (DatabaseSilent, Unanswered) as problem:
            # The server or the network hangs: keep other requests from waiting on these connections.
            await self._pool.drain()
            raise database_silent(self._within, remedy, outcome) from problem
        except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
            await self._look_over()
            raise _lost(remedy, outcome) from problem

    async def _look_over(self) -> None:
        """After a server restart several connections are broken; remove all of them before the next request."""
        check = asyncio.create_task(self._pool.check())
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)
        # Not cancelled if it takes long: the connections it holds must return to the pool.
        await asyncio.wait({check}, timeout=self._within)


def _lost(remedy: str, outcome: str | None) -> Problem:
    details = {"outcome": outcome} if outcome is not None else None
    return Problem(503, f"Lost the connection to the database: {remedy}", details=details, retry_after=1)


@asynccontextmanager
async def changing(connection: Connection) -> AsyncIterator[None]:
    """A transaction that changes something. It waits for locks only briefly, so that the pool does not run dry."""
    async with committed_async(connection):
        await connection.execute(_BRIEFLY)
        yield


@asynccontextmanager
async def at_one_moment(connection: Connection) -> AsyncIterator[None]:
    """A read-only transaction: permissions and data come from one snapshot."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        yield


def refuse_repeated_names(body: bytes) -> None:
    """400 if an object has two fields of one name: parsers disagree on which of them counts."""
    json.loads(body, object_pairs_hook=_names_once, parse_int=len, parse_float=len)


def _names_once(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        twice = next(name for name in names if sum(name == each for each, _ in pairs) > 1)
        raise bad_request(f"The field {twice!r:.100} appears more than once: send it once", field=twice[:100])


def no_json(body: bytes, problem: Exception) -> Problem:
    """The refusal of a body that is not JSON."""
    half = _HALF.search(_PAIR.sub(b"", body.replace(rb"\\", b"")))
    if half is None:
        return bad_request(f"The body is not valid JSON: {shortened(str(problem))}")
    # msgspec calls this a truncated input. Browsers write it when a script cuts a text by length.
    said = f"{half[0].decode()} is half of a character: cut texts between characters"
    return bad_request(f"The body is not valid JSON: {said}")


def shortened(text: str, most: int = LONGEST_COMPLAINT) -> str:
    """The text, cut to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def answer(status: int, body: msgspec.Struct, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response that caches must not store."""
    return Response(
        _encode(body), status, {"Cache-Control": "no-store", **(headers or {})}, media_type="application/json"
    )
