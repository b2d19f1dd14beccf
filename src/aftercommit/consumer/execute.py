"""Runs a slice's script on a connection: the asyncio half, and the blocking half in a thread of its own."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from aftercommit.consumer.outcome import Failed, failed, judge
from aftercommit.consumer.slices import Call, Query, Script, SliceFailed
from aftercommit.errors import AftercommitError, DatabaseUnavailable, HandlerTimeout
from aftercommit.event.correlation import caused_by
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import say

logger = logging.getLogger("aftercommit.consumer")
Result = TypeVar("Result")


class SwallowedDatabaseError(AftercommitError):
    """A handler caught a database error and went on, in a transaction that PostgreSQL has already given up."""


class SliceExecutor:
    """Executes slices for one consumer."""

    def __init__(self, statements: Statements, timeout: float) -> None:
        """The statements of the outbox and the time a handler may take."""
        self._statements = statements
        self._timeout = timeout

    async def run_async(self, pool: "AsyncConnectionPool[Any]", script: Script) -> int:
        """One slice on a pooled asyncio connection."""
        async with pool.connection() as connection:
            last: Call | None = None
            answer: Any = None
            try:
                async with connection.transaction():
                    while True:
                        try:
                            step = script.send(answer)
                        except StopIteration as end:
                            last, handled = None, int(end.value)
                            break
                        last = step if isinstance(step, Call) else None
                        answer = await self._step_async(connection, step)
                return handled
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is its event's failure
                raise self._blame(error, last, connection.closed) from error

    async def _step_async(self, connection: psycopg.AsyncConnection[Any], step: Query | Call) -> Any:
        if isinstance(step, Query):
            cursor = await connection.execute(self._statements[step.name], step.parameters)
            return await cursor.fetchone() if cursor.description is not None else None
        with _story(step):
            try:
                async with asyncio.timeout(self._timeout):
                    judge(await step.handler.function(*_arguments(step, connection)))
            except TimeoutError as error:
                raise HandlerTimeout(_too_long(step, self._timeout)) from error
        _refuse_swallowed(connection.info.transaction_status)
        return None

    async def run_sync(self, pool: "ConnectionPool[Any]", script: Script) -> int:
        """One slice on a pooled blocking connection, in a thread; a handler that hangs loses its connection."""
        watch = _Watch()
        running = _in_thread(lambda: self._run_in_thread(pool, script, watch))
        while True:
            done, _ = await asyncio.wait({running}, timeout=self._timeout / 4)
            if done:
                return running.result()
            overdue = watch.overdue(self._timeout)
            if overdue is not None:
                await asyncio.to_thread(watch.cut_off)
                raise SliceFailed(Failed(HandlerTimeout(_too_long(overdue, self._timeout))), _index(overdue))

    def _run_in_thread(self, pool: "ConnectionPool[Any]", script: Script, watch: "_Watch") -> int:
        with pool.connection() as connection:
            watch.connection = connection
            last: Call | None = None
            answer: Any = None
            try:
                with connection.transaction():
                    while True:
                        try:
                            step = script.send(answer)
                        except StopIteration as end:
                            last, handled = None, int(end.value)
                            watch.entered(None)
                            break
                        last = step if isinstance(step, Call) else None
                        watch.entered(last)
                        answer = self._step_sync(connection, step)
                return handled
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is its event's failure
                raise self._blame(error, last, connection.closed) from error

    def _step_sync(self, connection: psycopg.Connection[Any], step: Query | Call) -> Any:
        if isinstance(step, Query):
            cursor = connection.execute(self._statements[step.name], step.parameters)
            return cursor.fetchone() if cursor.description is not None else None
        with _story(step):
            judge(step.handler.function(*_arguments(step, connection)))
        _refuse_swallowed(connection.info.transaction_status)
        return None

    def _blame(self, error: Exception, call: Call | None, connection_lost: bool) -> Exception:
        if connection_lost:
            return DatabaseUnavailable(f"the connection was lost while a slice was at work: {error}")
        if isinstance(error, AftercommitError) and call is None:
            return error
        if call is None:
            # At the inbox or at COMMIT: with a deferred constraint any event of the slice may be the one.
            return SliceFailed(failed(error), None)
        return SliceFailed(failed(error), _index(call))


class _Watch:
    """What a slice in a thread is doing, seen from outside."""

    def __init__(self) -> None:
        self.connection: psycopg.Connection[Any] | None = None
        self._call: Call | None = None
        self._since = 0.0
        self._loop = asyncio.get_running_loop()

    def entered(self, call: Call | None) -> None:
        self._call, self._since = call, self._loop.time()

    def overdue(self, timeout: float) -> Call | None:
        return self._call if self._call is not None and self._loop.time() - self._since > timeout else None

    def cut_off(self) -> None:
        """End the transaction from outside: what the hanging handler wrote is gone, and it can write no more."""
        if self.connection is None:
            return
        pid, dsn = self.connection.info.backend_pid, self.connection.info.dsn
        password = self.connection.info.password
        try:
            with psycopg.connect(dsn, password=password, autocommit=True, connect_timeout=5) as killer:
                killer.execute("select pg_terminate_backend(%s)", (pid,))
        except psycopg.Error as problem:
            say(logger, logging.WARNING, "hanging_handler_not_cut_off", pid=pid, error=str(problem))


def _arguments(call: Call, connection: Any) -> Sequence[Any]:
    argument: Any = call.events if call.handler.batch else call.events[0]
    return (argument, connection) if call.handler.takes_transaction else (argument,)


def _story(call: Call) -> AbstractContextManager[None]:
    if len(call.events) == 1:
        return caused_by(call.events[0].event_id, call.events[0].correlation_id)
    return nullcontext()


def _index(call: Call) -> int | None:
    return call.first if len(call.events) == 1 else None


def _refuse_swallowed(status: TransactionStatus) -> None:
    if status == TransactionStatus.INERROR:
        raise SwallowedDatabaseError(
            "the handler caught a database error and returned, but the transaction is lost: let the error out, or wrap "
            "the statement that may fail in `with connection.transaction():`"
        )


def _too_long(call: Call, timeout: float) -> str:
    return f"handler {call.handler.function.__qualname__} took longer than {timeout:g} s: raise the consumer's timeout or make it quicker"


def _in_thread(function: Callable[[], Result]) -> "asyncio.Future[Result]":
    """Run in a daemon thread, so that a handler that never returns cannot keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    context = contextvars.copy_context()

    def finish(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as problem:  # noqa: BLE001 - handed to whoever waits
            error = problem
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=body, name="aftercommit handler", daemon=True).start()
    return future
