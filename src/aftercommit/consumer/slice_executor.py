"""Runs the script of a slice on a connection: asyncio handlers here, blocking ones in a thread (`blocking`)."""

import asyncio
import contextlib
from typing import Any, Final

import psycopg

from aftercommit.consumer import handler_calls
from aftercommit.consumer.blocking import run_in_thread
from aftercommit.consumer.calls import Calls
from aftercommit.consumer.conversation import (
    Conversation,
    too_long,
)
from aftercommit.consumer.handler_calls import GRACE, HandlerCalls
from aftercommit.consumer.opening import OpenedSlice, Opening, rows_of
from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slices import Query, Script, SliceFailed, SliceResult
from aftercommit.consumer.threads import Watch, in_thread
from aftercommit.postgres.commits import AsyncConnection, commit_async, committed_async
from aftercommit.postgres.database import SPEAK_ISO, is_direct, speaks_iso
from aftercommit.postgres.handler_connections import ConsumerConnections
from aftercommit.postgres.resilience import LOST, close_quietly
from aftercommit.postgres.statements import Statements

_LOOK_SECONDS: Final = 0.05


class SliceExecutor:
    """Executes slices for one consumer, whose handlers may take `timeout` seconds."""

    def __init__(self, statements: Statements, timeout: float) -> None:
        self._statements = statements
        self._timeout = timeout
        self._handlers = HandlerCalls(statements, timeout)

    async def run(
        self, connections: ConsumerConnections, script: Script, *, blocking: bool, opened: OpenedSlice | None = None
    ) -> SliceResult:
        """Run one slice; returns what became of its events. `opened`: its transaction is open."""
        talk = Conversation(script)
        try:
            if opened is not None:
                async with opened.resources:
                    return await self._run(opened.connection, talk, opened.row)
            if blocking:
                return await self._in_thread(connections, talk)
            async with connections.lend() as connection:
                return await self._run(connection, talk)
        except Exception:
            if talk.ended or (talk.unsure and await self._was_committed(connections, talk)):
                if talk.step is None:
                    # Everything was handled and committed; only the cleanup failed.
                    return talk.outcome
                await self._return_unhandled(connections, talk)
            raise

    async def open_early(self, connection: AsyncConnection, query: Query) -> list[Any]:
        """Begin a transaction for events that have not come yet; returns the rows of its first statement."""
        return await self._open_at_once(connection, Opening(connection, self._statements, query))

    async def _run(self, connection: AsyncConnection, talk: Conversation, opened: Any = None) -> SliceResult:
        try:
            talk.borrow(connection)
            first = talk.first_step()
            if opened is None:
                talk.answer = await self._open(connection, first, talk)
            else:
                talk.answer = talk.hear(opened, connection.pgconn)
            while (step := talk.next_step()) is not None:
                talk.answer = await self._step(connection, step, talk)
            await self._commit(connection, talk)
        except Exception as error:
            blamed = talk.blame(error, connection)
            await self._undo(connection)
            raise blamed from error
        if talk.session_is_kept(connection):
            await close_quietly(connection)
        return talk.outcome

    async def _open(self, connection: AsyncConnection, step: Query, talk: Conversation) -> Any:
        """Begin the transaction and run its first statement."""
        try:
            if is_direct(connection) and step.prepared:
                row, *_ = await self._open_at_once(connection, Opening(connection, self._statements, step))
            else:
                row = await self._open_in_steps(connection, step.name, step.parameters, talk)
        except psycopg.errors.UniqueViolation:
            if step.if_repeated is None:
                raise
            await connection.rollback()
            row = await self._open_in_steps(connection, step.if_repeated, step.parameters, talk)
        return talk.hear(row, connection.pgconn)

    async def _open_at_once(self, connection: AsyncConnection, opening: Opening) -> list[Any]:
        if (preparation := opening.preparation) is not None:
            # A session may have kept this statement when it lost another. Its name stands for one text only.
            with contextlib.suppress(psycopg.errors.DuplicatePreparedStatement):
                await connection.execute(preparation)
        try:
            cursor = await connection.execute(opening.message)
        except psycopg.errors.InvalidSqlStatementName:
            await connection.rollback()
            opening.forget()
            return await self._open_at_once(connection, opening)
        cursor.nextset()
        return rows_of(cursor)

    async def _open_in_steps(
        self, connection: AsyncConnection, name: str, parameters: dict[str, Any], talk: Conversation
    ) -> Any:
        if is_direct(connection):
            await connection.execute("begin")
        else:
            cursor = await connection.execute(self._statements["begin_in_pool"])
            cursor.nextset()
            row = await cursor.fetchone()
            talk.settings = row[0] if row else ()
        return await (await connection.execute(self._statements[name], parameters)).fetchone()

    async def _step(self, connection: AsyncConnection, step: Query | Calls, talk: Conversation) -> Any:
        if isinstance(step, Calls):
            return await self._handlers.call(connection, step, talk) if step.calls else None
        cursor = await connection.execute(self._statements[step.name], step.parameters, prepare=step.prepared)
        return await cursor.fetchone() if cursor.description is not None else None

    async def _commit(self, connection: AsyncConnection, talk: Conversation) -> None:
        if talk.calls > 1 and talk.touched:
            row = await (await connection.execute(self._statements["session_settings"], prepare=True)).fetchone()
            talk.require_same_settings(row[0] if row else (), connection.pgconn)
        tidies = talk.touched and is_direct(connection)
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

    async def _in_thread(self, connections: ConsumerConnections, talk: Conversation) -> SliceResult:
        """Run the slice on a blocking connection in a thread; a handler that hangs loses its connection."""
        watch = Watch()
        running = in_thread(
            lambda: run_in_thread(self._statements, connections, talk, watch, handler_calls.STOP_SECONDS)
        )
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


async def _abandon(running: "asyncio.Future[SliceResult]", watch: Watch) -> None:
    running.cancel()
    await asyncio.to_thread(watch.cut_off)
