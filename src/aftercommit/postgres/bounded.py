"""Questions that end: a connection that does not wait for a server that hangs.

A server that is stopped, waits for its disk or stands behind a network that swallows packets is not gone: nothing tells
its clients, and no timeout of its own runs. So the time is kept here. What was not answered in time, or whose asker was
cancelled, closes the connection: the answer may still be on its way, and nobody else may ever read it.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import capabilities, generators, waiting
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGcancelConn

from aftercommit.errors import DatabaseSilent
from aftercommit.telemetry import say

logger = logging.getLogger("aftercommit.database")

# A server that only was slow is told that nobody waits any more; one that hangs is not waited for.
TELL_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.1

Result = TypeVar("Result")
# Nobody else holds them, and asyncio forgets a task that nobody holds.
_telling: Final[set[asyncio.Task[None]]] = set()


class Unanswered(psycopg.OperationalError):
    """A statement was not answered in time; what became of it is not known."""


class BoundedConnection(psycopg.AsyncConnection[Any]):
    """Each of its statements is answered within so many seconds, or the connection is closed (None: it waits on)."""

    answers_within: float | None = None
    _is_given_up = False

    async def wait(
        self, gen: PQGen[Result], interval: float = _LOOK_SECONDS, *arguments: Any, **options: Any
    ) -> Result:
        """As psycopg does, except that it ends."""
        limit = self.answers_within
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(limit, self._give_up) if limit is not None else None
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval, *arguments, **options)
        except asyncio.CancelledError:
            # psycopg would wait until the server has heard that it is cancelled.
            if self._is_asking():
                self._tell_server()
                self.pgconn.finish()
            raise
        except psycopg.Error:
            # An answer that is cut in the middle can look like anything.
            if self._is_given_up:
                raise Unanswered(f"the database did not answer within {limit:g} s") from None
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    def _is_asking(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.ACTIVE

    def _give_up(self) -> None:
        # Whoever waits for notifications has asked nothing.
        if self._is_asking():
            self._is_given_up = True
            self._tell_server()
            # The one who waits sees the end of the connection, and closes it. Were it closed here, its number might be
            # another connection's before that.
            with socket.socket(fileno=os.dup(self.pgconn.socket)) as wire, suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    def _tell_server(self) -> None:
        """Otherwise a slow server would go on working for nobody, and get more of it with each who tries again."""
        if capabilities.has_cancel_safe():
            with suppress(psycopg.Error):
                request = self.pgconn.cancel_conn()
                request.start()
                task = asyncio.get_running_loop().create_task(_told(request), name="cancel a statement")
                _telling.add(task)
                task.add_done_callback(_telling.discard)


async def _told(request: PGcancelConn) -> None:
    try:
        async with asyncio.timeout(TELL_SECONDS):
            await waiting.wait_conn_async(generators.cancel(request), _LOOK_SECONDS)
    except (psycopg.Error, TimeoutError) as problem:
        say(logger, logging.DEBUG, "statement_not_cancelled", error=repr(problem)[:300])
    finally:
        request.finish()


@asynccontextmanager
async def answered_within(seconds: float) -> AsyncIterator[None]:
    """DatabaseSilent when the block is not through after so many seconds, whatever of it the database left waiting.

    Connections on which it asks have to be bounded ones: others wait for the answer in spite of it.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as problem:
        if not limit.expired():
            raise
        raise DatabaseSilent(seconds) from problem
    except Unanswered as problem:
        raise DatabaseSilent(seconds) from problem
