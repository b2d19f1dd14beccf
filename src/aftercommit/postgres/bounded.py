"""Statements with a deadline: a connection that does not wait for a server that hangs.

A server that is frozen, waits for its disk, or is behind a network that drops packets sends no error, and none of its
own timeouts fires. So the client keeps the time. If a statement times out or its task is cancelled, the connection is
closed: a late answer must not reach the next statement.
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
    """The server did not answer a statement in time; whether it ran is unknown."""


class BoundedConnection(psycopg.AsyncConnection[Any]):
    """A connection that is closed if a statement takes longer than `answer_timeout` seconds (None: no limit)."""

    answer_timeout: float | None = None

    async def wait(
        self, gen: PQGen[Result], interval: float = _LOOK_SECONDS, *arguments: Any, **options: Any
    ) -> Result:
        """psycopg's wait, with a deadline."""
        limit = self.answer_timeout
        deadline = asyncio.timeout(None)
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(limit, self._give_up, deadline) if limit is not None else None
        try:
            async with deadline:
                return await waiting.wait_async(gen, self.pgconn.socket, interval, *arguments, **options)
        except asyncio.CancelledError:
            # psycopg itself would wait until the server has confirmed the cancellation.
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
        # A connection that waits for notifications has no statement under way.
        if self._is_asking():
            deadline.reschedule(asyncio.get_running_loop().time())

    def _abandon(self) -> None:
        """Close the connection at once, and cancel the statement in the background, in case the server is just slow."""
        ending = cut(self, awaits_answer=True)
        self.pgconn = CLOSED
        threading.Thread(target=ending, name="cancel a statement", daemon=True).start()


@asynccontextmanager
async def answered_within(seconds: float) -> AsyncIterator[None]:
    """DatabaseSilent if the block takes longer than so many seconds.

    Use bounded connections inside: others would go on waiting for the server.
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
