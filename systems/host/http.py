"""What the routes of all systems share: database connections, transactions, JSON that is read strictly, answers."""

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
from aftercommit.http import Problem, bad_request, silent, unavailable
from aftercommit.postgres import (
    SPEAK_ISO,
    BoundedConnection,
    Unanswered,
    answered_within,
    committed_async,
    connect_timeout,
    options_for,
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
# What a reader of JSON complains of quotes what it has read, and that may be megabytes.
LONGEST_COMPLAINT: Final = 300
# Two escapes that make one character, and what is left of them where a text was cut between the two.
_PAIR: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def pool_of(database: Database, name: str) -> Pool:
    """Connections for the routes of one system; none is open yet."""
    # It would say at each request what the services beside it say once: that the database is away.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    patience = {"connect_timeout": connect_timeout(database.answer_timeout)}

    async def configure(connection: BoundedConnection) -> None:
        connection.answer_timeout = database.answer_timeout
        # Times in other forms, which a database may be set to, cannot be read.
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
        kwargs={"prepare_threshold": None, **options_for(database.dsn, application_name=name, **patience)},
        configure=configure,
    )


class RequestPool:
    """The database connections of one system's routes, one for each request. None is open before the lifespan begins.

    A request is answered 503 when the database does not answer in time. `again` tells the client how to repeat a change
    without harm, because nobody knows whether the first one was committed.
    """

    def __init__(self, database: Database, name: str, again: str) -> None:
        """Nothing is connected."""
        self._pool = pool_of(database, name)
        self._within = database.answer_timeout
        self._again = again
        self._checks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Connections are open."""
        await self._pool.open()
        try:
            yield
        finally:
            # What is being connected to a server that hangs is not waited for.
            await self._pool.close(CLOSE_SECONDS)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """A connection for a request that changes nothing."""
        async with self._lent("try again", None) as connection:
            yield connection

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[Connection]:
        """A connection for a request that changes something, and may have done so although it is answered 503."""
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
            raise unavailable("The database is busy, or cannot be reached: nothing was done; try again") from problem
        except (DatabaseSilent, Unanswered) as problem:
            # What hangs is the server, or the way to it: nobody else is to wait on a connection of the same.
            await self._pool.drain()
            raise silent(self._within, remedy, outcome) from problem
        except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
            await self._look_over()
            raise _lost(remedy, outcome) from problem

    async def _look_over(self) -> None:
        """A server that was started again has left more than one behind; whoever comes next gets none of them."""
        check = asyncio.create_task(self._pool.check())
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)
        # Not cancelled when it takes long: it holds connections that have to come back.
        await asyncio.wait({check}, timeout=self._within)


def _lost(remedy: str, outcome: str | None) -> Problem:
    details = {"outcome": outcome} if outcome is not None else None
    return Problem(503, f"The database cannot be reached: {remedy}", details=details, retry_after=1)


@asynccontextmanager
async def changing(connection: Connection) -> AsyncIterator[None]:
    """A transaction that changes something. It waits for locks, but not so long that all connections come to wait."""
    async with committed_async(connection):
        await connection.execute(_BRIEFLY)
        yield


@asynccontextmanager
async def at_one_moment(connection: Connection) -> AsyncIterator[None]:
    """A transaction that reads: who may see something and what there is to see are of one and the same moment."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        yield


def refuse_repeated_names(body: bytes) -> None:
    """400 where an object of this JSON has two fields of one name: readers do not agree on which of them counts."""
    json.loads(body, object_pairs_hook=_names_once, parse_int=len, parse_float=len)


def _names_once(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        twice = next(name for name in names if sum(name == each for each, _ in pairs) > 1)
        raise bad_request(f"The field {twice!r:.100} appears more than once: send it once", field=twice[:100])


def no_json(body: bytes, problem: Exception) -> Problem:
    """What a body is answered that is no JSON."""
    half = _HALF.search(_PAIR.sub(b"", body.replace(rb"\\", b"")))
    if half is None:
        return bad_request(f"The body cannot be read as JSON: {shortened(str(problem))}")
    # Readers of JSON call this a truncated input. Browsers write it when a text is cut by length.
    said = f"{half[0].decode()} is half of a character: cut texts between characters, and not within one"
    return bad_request(f"The body cannot be read as JSON: {said}")


def shortened(text: str, most: int = LONGEST_COMPLAINT) -> str:
    """A text of which so much may be told, and that there was more."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def answer(status: int, body: msgspec.Struct, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON, which nobody keeps."""
    return Response(
        _encode(body), status, {"Cache-Control": "no-store", **(headers or {})}, media_type="application/json"
    )
