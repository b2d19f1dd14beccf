"""Calls asyncio handlers, one after the other, in a task that can be given up."""

import asyncio
from sys import getrefcount
from typing import Any, Final

from aftercommit.consumer.calls import Calls, Recovery
from aftercommit.consumer.conversation import (
    INSIDE,
    Conversation,
    arguments,
    cancelled,
    interruptions_as_failures,
    may_have_ended,
    recovery_from,
    take_back_from,
    tell_of,
    too_long,
)
from aftercommit.consumer.loans import LentAsync, abandon, lend_async, take_back
from aftercommit.consumer.outcome import Failed, judge
from aftercommit.event.correlation import tell, told
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.handler_connections import restore
from aftercommit.postgres.statements import Statements

# How many seconds to wait for something that was told to end.
GRACE: Final = 5.0
# A slice that takes longer stops between two events, commits what it has and leaves the rest to the next one.
STOP_SECONDS: Final = 0.1


class HandlerCalls:
    """Calls the handlers of one consumer, which may take `timeout` seconds."""

    def __init__(self, statements: Statements, timeout: float) -> None:
        self._statements = statements
        self._timeout = timeout

    async def call(self, connection: AsyncConnection, step: Calls, talk: Conversation) -> None:
        """Run the handlers in a task, which can be given up."""
        now = asyncio.get_running_loop().time
        talk.lent = lend_async(connection)
        talk.call, talk.until = step.calls[0], now() + self._timeout
        work = asyncio.create_task(self._calls(connection, step, talk), name="aftercommit handlers")
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=max(0.0, talk.until - now()))
                if not work.done() and now() >= talk.until:
                    late = too_long(talk.call, self._timeout)
                    if (
                        talk.call.handler.takes_transaction
                        or step.recover(Failed(late), touched=False) is Recovery.UNDO
                    ):
                        raise late
                    # It acts outside the transaction, and the calls before it need not be repeated.
                    return
            if work.cancelled():
                raise cancelled(talk.call)
            work.result()
        finally:
            await _end(work)
            if not take_back(talk.lent):
                await asyncio.to_thread(abandon(connection, talk.lent))

    async def _calls(self, connection: AsyncConnection, step: Calls, talk: Conversation) -> None:
        """Call one handler after the other. Small handlers are many, so each call of our own counts."""
        now, task = asyncio.get_running_loop().time, asyncio.current_task()
        assert task is not None
        lent, stop_at = talk.lent, now() + STOP_SECONDS
        assert isinstance(lent, LentAsync)
        with told(), interruptions_as_failures(talk):
            while (call := step.following()) is not None:
                if step.guard_events and (savepoint := step.savepoint()):
                    await connection.execute(self._statements[savepoint])
                began = now()
                talk.call, talk.until = call, began + self._timeout
                handler = call.handler
                lent.touched = False
                references = getrefcount(lent)
                try:
                    if handler.batch:
                        tell_of(call)
                        answer = await handler.function(*arguments(call, lent))
                    else:
                        first = call.event
                        tell(first.event_id, first.correlation_id)
                        answer = await (
                            handler.function(first, lent) if handler.takes_transaction else handler.function(first)
                        )
                    ended = now()
                    if ended - began >= self._timeout:
                        # It blocked the loop, or caught its cancellation and went on. The next event is not to blame.
                        raise too_long(call, self._timeout)
                    if answer is not None:
                        judge(answer)
                except Exception as error:
                    if task.cancelling():
                        raise
                    lent = await self._after(error, connection, lent, step, talk)
                    continue
                if task.cancelling():
                    raise cancelled(call)
                step.made(ended - began, touched=lent.touched)
                if handler.takes_transaction:
                    talk.touched = talk.touched or lent.touched
                    # Compared here: a call with `lent` as an argument would count as one more reference.
                    if getrefcount(lent) != references:
                        lent = await self._lend_another(connection, lent, talk)
                    restore(lent)
                    # Without a statement, no handler can have ended it.
                    if talk.touched and may_have_ended(connection, talk.mark, call):
                        await self._require_transaction(connection, talk)
                if ended > stop_at and step.may_stop():
                    return

    async def _lend_another(self, connection: AsyncConnection, lent: LentAsync, talk: Conversation) -> LentAsync:
        """A new connection for the next handler, because other code still refers to this one."""
        # A task that the handler started gets one turn to use it.
        await asyncio.sleep(0)
        talk.touched = True
        take_back_from(talk.call, lent)
        talk.lent = again = lend_async(connection)
        return again

    async def _after(
        self, error: Exception, connection: AsyncConnection, lent: LentAsync, step: Calls, talk: Conversation
    ) -> LentAsync:
        """After a handler has failed: undo what it wrote if that is possible alone, or raise the error."""
        touched = lent.touched or talk.session_is_kept(connection)
        talk.touched = talk.touched or touched
        recovery = recovery_from(error, connection, step, talk.mark, touched=touched)
        if recovery is Recovery.UNDO or not take_back(lent):
            raise error
        if recovery is Recovery.SAVEPOINT:
            await connection.execute(self._statements["back_to_savepoint"])
        talk.lent = again = lend_async(connection)
        return again

    async def _require_transaction(self, connection: AsyncConnection, talk: Conversation) -> None:
        """Ask for the transaction: a handler may have ended it, or only changed the session's name."""
        row = None
        if connection.pgconn.transaction_status == INSIDE:
            row = await (await connection.execute(self._statements["current_transaction"])).fetchone()
        talk.require_transaction(row, connection.pgconn)


async def _end(work: "asyncio.Task[Any]") -> None:
    """Cancel the handlers. One that goes on in spite of that is left behind without a connection."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=GRACE)
    if work.done() and not work.cancelled():
        # Or asyncio complains about an error that nobody has seen.
        work.exception()
