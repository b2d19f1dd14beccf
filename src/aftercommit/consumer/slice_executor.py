"""Runs the script of a slice on a connection: asyncio handlers here, blocking ones in a thread (`blocking`)."""

import asyncio
from sys import getrefcount
from typing import Any, Final

import psycopg

from aftercommit.consumer.blocking import run_in_thread
from aftercommit.consumer.connections import ConsumerConnections, restore
from aftercommit.consumer.conversation import (
    INSIDE,
    Conversation,
    arguments,
    cancelled,
    interruptions_as_failures,
    may_have_ended,
    take_back_from,
    tell_of,
    too_long,
)
from aftercommit.consumer.loans import LentAsync, abandon, lend_async, take_back
from aftercommit.consumer.outcome import Failed, judge
from aftercommit.consumer.slices import HandlerCall, Query, Script, SliceFailed
from aftercommit.consumer.threads import Watch, in_thread
from aftercommit.event.correlation import tell, told
from aftercommit.postgres.commits import AsyncConnection, commit_async, committed_async
from aftercommit.postgres.database import SPEAK_ISO, is_direct, speaks_iso
from aftercommit.postgres.resilience import LOST, close_quietly
from aftercommit.postgres.statements import Statements

# How many seconds to wait for something that was told to end.
GRACE: Final = 5.0
_LOOK_SECONDS: Final = 0.05


class SliceExecutor:
    """Executes slices for one consumer, whose handlers may take `timeout` seconds."""

    def __init__(self, statements: Statements, timeout: float) -> None:
        self._statements = statements
        self._timeout = timeout

    async def run(self, connections: ConsumerConnections, script: Script, *, blocking: bool) -> int:
        """Run one slice; returns how many events were handled."""
        talk = Conversation(script)
        try:
            return await (self._in_thread if blocking else self._here)(connections, talk)
        except Exception:
            if talk.ended or (talk.unsure and await self._was_committed(connections, talk)):
                if talk.step is None:
                    # Everything was handled and committed; only the cleanup failed.
                    return talk.handled
                await self._return_unhandled(connections, talk)
            raise

    async def _here(self, connections: ConsumerConnections, talk: Conversation) -> int:
        async with connections.lend() as connection:
            try:
                await self._begin(connection, talk)
                while (step := talk.next_step()) is not None:
                    talk.answer = await self._step(connection, step, talk)
                await self._commit(connection, talk)
            except Exception as error:
                blamed = talk.blame(error, connection)
                await self._undo(connection)
                raise blamed from error
            return talk.handled

    async def _begin(self, connection: AsyncConnection, talk: Conversation) -> None:
        if is_direct(connection):
            await connection.execute("begin")
            return
        cursor = await connection.execute(self._statements["begin_in_pool"])
        cursor.nextset()
        row = await cursor.fetchone()
        talk.settings = row[0] if row else ()

    async def _step(self, connection: AsyncConnection, step: Query | list[HandlerCall], talk: Conversation) -> Any:
        if isinstance(step, list):
            return await self._watched(connection, step, talk) if step else None
        try:
            cursor = await connection.execute(self._statements[step.name], step.parameters, prepare=step.prepared)
        except psycopg.errors.UniqueViolation:
            if step.if_repeated is None:
                raise
            await connection.rollback()
            await self._begin(connection, talk)
            cursor = await connection.execute(self._statements[step.if_repeated], step.parameters)
        return talk.hear(await cursor.fetchone() if cursor.description is not None else None, connection.pgconn)

    async def _watched(self, connection: AsyncConnection, calls: list[HandlerCall], talk: Conversation) -> None:
        """Run the handlers in a task, which can be given up."""
        now = asyncio.get_running_loop().time
        lent = talk.lent = lend_async(connection)
        talk.call, talk.until = calls[0], now() + self._timeout
        work = asyncio.create_task(self._calls(connection, lent, calls, talk), name="aftercommit handlers")
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=max(0.0, talk.until - now()))
                if not work.done() and now() >= talk.until:
                    raise too_long(talk.call, self._timeout)
            if work.cancelled():
                raise cancelled(talk.call)
            work.result()
        finally:
            await _end(work)
            if not take_back(talk.lent):
                await asyncio.to_thread(abandon(connection, talk.lent))

    async def _calls(
        self, connection: AsyncConnection, lent: LentAsync, calls: list[HandlerCall], talk: Conversation
    ) -> None:
        """Call one handler after the other. Small handlers are many, so each call of our own counts."""
        now = asyncio.get_running_loop().time
        task = asyncio.current_task()
        assert task is not None
        with told(), interruptions_as_failures(talk):
            for call in calls:
                talk.call = call
                talk.until = until = now() + self._timeout
                handler, first = call.handler, call.events[0]
                owners = getrefcount(lent)
                if handler.batch:
                    tell_of(call)
                    answer = await handler.function(*arguments(call, lent))
                elif handler.takes_transaction:
                    tell(first.event_id, first.correlation_id)
                    answer = await handler.function(first, lent)
                else:
                    tell(first.event_id, first.correlation_id)
                    answer = await handler.function(first)
                if now() >= until:
                    # It blocked the loop, or caught its cancellation and went on. The next event is not to blame.
                    raise too_long(call, self._timeout)
                if task.cancelling():
                    raise cancelled(call)
                if answer is not None:
                    judge(answer)
                if not handler.takes_transaction:
                    continue
                if getrefcount(lent) != owners:
                    # Other code still refers to it. A task that the handler started gets one turn to use it.
                    await asyncio.sleep(0)
                    take_back_from(call, lent)
                    talk.lent = lent = lend_async(connection)
                restore(lent)
                if may_have_ended(connection, talk.mark, call):
                    await self._require_transaction(connection, talk)

    async def _require_transaction(self, connection: AsyncConnection, talk: Conversation) -> None:
        """Ask for the transaction: a handler may have ended it, or only changed the session's name."""
        row = None
        if connection.pgconn.transaction_status == INSIDE:
            row = await (await connection.execute(self._statements["current_transaction"])).fetchone()
        talk.require_transaction(row, connection.pgconn)

    async def _commit(self, connection: AsyncConnection, talk: Conversation) -> None:
        if talk.calls > 1:
            row = await (await connection.execute(self._statements["session_settings"], prepare=True)).fetchone()
            talk.require_same_settings(row[0] if row else (), connection.pgconn)
        tidies = talk.calls > 0 and is_direct(connection)
        await commit_async(connection, self._statements["commit_and_tidy"] if tidies else b"commit")
        if not speaks_iso(connection):
            await connection.execute(SPEAK_ISO)

    async def _undo(self, connection: AsyncConnection) -> None:
        """Roll back, and undo what a handler has left in the session."""
        if connection.closed:
            return
        try:
            await connection.rollback()
            if is_direct(connection):
                await connection.execute(self._statements["tidy"])
            if not speaks_iso(connection):
                await connection.execute(SPEAK_ISO)
        except psycopg.Error:
            # Nobody may use it again: it is not clean.
            await close_quietly(connection)

    async def _was_committed(self, connections: ConsumerConnections, talk: Conversation) -> bool:
        """Whether a failed slice is committed nevertheless: by a handler, or by us."""
        if talk.mark.transaction is None:
            return False
        statement, parameters = self._statements["outcome_of_transaction"], {"transaction": talk.mark.transaction}
        try:
            async with connections.lend() as connection, asyncio.timeout(GRACE):
                while True:
                    row = await (await connection.execute(statement, parameters)).fetchone()
                    if row is None or row[0] != "in progress":
                        return row is not None and row[0] == "committed"
                    await asyncio.sleep(_LOOK_SECONDS)
        except (psycopg.Error, TimeoutError, *LOST):
            return False

    async def _return_unhandled(self, connections: ConsumerConnections, talk: Conversation) -> None:
        """Run the rest of the script on a clean connection, after a handler ended the transaction."""
        talk.answer = talk.call
        while isinstance(step := talk.next_step(), Query):
            async with connections.lend() as connection, committed_async(connection):
                await connection.execute(self._statements[step.name], step.parameters)

    async def _in_thread(self, connections: ConsumerConnections, talk: Conversation) -> int:
        """Run the slice on a blocking connection in a thread; a handler that hangs loses its connection."""
        watch = Watch()
        running = in_thread(lambda: run_in_thread(self._statements, connections, talk, watch))
        try:
            while not (await asyncio.wait({running}, timeout=self._timeout / 4))[0]:
                overdue = watch.give_up_after(self._timeout)
                if overdue is not None:
                    await _abandon(running, watch)
                    talk.unsure = True
                    raise SliceFailed(Failed(too_long(overdue, self._timeout)), overdue.culprit)
            return running.result()
        except asyncio.CancelledError:
            watch.give_up()
            await _abandon(running, watch)
            raise


async def _end(work: "asyncio.Task[Any]") -> None:
    """Cancel the handlers. One that goes on in spite of that is left behind without a connection."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=GRACE)
    if work.done() and not work.cancelled():
        # Or asyncio complains about an error that nobody has seen.
        work.exception()


async def _abandon(running: "asyncio.Future[int]", watch: Watch) -> None:
    running.cancel()
    await asyncio.to_thread(watch.cut_off)
