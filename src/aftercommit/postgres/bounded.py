"""Questions that end: a connection that does not wait for a server that hangs.

A server that is stopped, waits for its disk or stands behind a network that swallows packets is not gone: nothing tells
its clients, and no timeout of its own runs. So the time is kept here. What was not answered in time, or whose asker was
cancelled, closes the connection: the answer may still be on its way, and nobody else may ever read it.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from aftercommit.errors import DatabaseSilent
from aftercommit.postgres.cutting import CLOSED, cut

_LOOK_SECONDS: Final = 0.1

Result = TypeVar("Result")


class Unanswered(psycopg.OperationalError):
    """A statement was not answered in time; what became of it is not known."""


class BoundedConnection(psycopg.AsyncConnection[Any]):
    """Each of its statements is answered within so many seconds, or the connection is closed (None: it waits on)."""

    answer_timeout: float | None = None

    async def wait(
        self, gen: PQGen[Result], interval: float = _LOOK_SECONDS, *arguments: Any, **options: Any
    ) -> Result:
        """As psycopg does, except that it ends."""
        limit = self.answer_timeout
        deadline = asyncio.timeout(None)
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(limit, self._give_up, deadline) if limit is not None else None
        try:
            async with deadline:
                return await waiting.wait_async(gen, self.pgconn.socket, interval, *arguments, **options)
        except asyncio.CancelledError:
            # psycopg would wait until the server has heard that it is cancelled.
            if self._is_asking():
                self._abandon()
            raise
        except TimeoutError:
            if not deadline.expired():
                raise
            self._abandon()
            raise Unanswered(f"the database did not answer within {limit:g} s") from None
        finally:
            if alarm is not None:
                alarm.cancel()

    def _is_asking(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.ACTIVE

    def _give_up(self, deadline: asyncio.Timeout) -> None:
        # Whoever waits for notifications has asked nothing.
        if self._is_asking():
            deadline.reschedule(asyncio.get_running_loop().time())

    def _abandon(self) -> None:
        """Close it for everybody at once, and tell a server that is only slow to stop, in the background."""
        ending = cut(self, awaits_answer=True)
        self.pgconn = CLOSED
        threading.Thread(target=ending, name="cancel a statement", daemon=True).start()


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
