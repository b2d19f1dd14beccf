"""Runs a slice's script on a connection: the asyncio half here, the blocking half in a thread of its own."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from aftercommit.consumer.connections import Connections, restore
from aftercommit.consumer.outcome import Failed, failed, judge
from aftercommit.consumer.slices import Call, Query, Script, SliceFailed, name_of
from aftercommit.consumer.threads import Watch, in_thread
from aftercommit.errors import AftercommitError, DatabaseUnavailable, HandlerTimeout
from aftercommit.event.correlation import tell, told
from aftercommit.postgres.statements import Statements
from aftercommit.text import readable

AnyConnection = psycopg.AsyncConnection[Any] | psycopg.Connection[Any]

# The server ends sessions that wait too long inside a transaction; then it is the handler that waited.
ENDED_BY_WAITING: Final = frozenset({"25P03", "25P04"})


# A plain number: it is compared after every call of a handler.
_INSIDE: Final = int(TransactionStatus.INTRANS)


class SwallowedDatabaseError(AftercommitError):
    """A handler caught a database error and went on, in a transaction that PostgreSQL has already given up."""


class MisusedConnection(AftercommitError):
    """A handler closed its connection, or raised psycopg.Rollback through the transaction it was given."""


class HandlerCancelled(AftercommitError):
    """Something that the handler waited for was cancelled, and the handler let that out."""


class ConnectionLost(DatabaseUnavailable):
    """The connection broke while a slice was at work; what it wrote is undone."""


class SliceExecutor:
    """Executes slices for one consumer."""

    def __init__(self, statements: Statements, timeout: float) -> None:
        """The statements of the outbox and the time a handler may take."""
        self._statements = statements
        self._timeout = timeout

    async def run_async(self, connections: Connections, script: Script) -> int:
        """One slice on an asyncio connection."""
        async with connections.lend() as connection:
            restore(connection)
            talk = _Conversation(script)
            try:
                async with connection.transaction():
                    while (step := talk.next_step()) is not None:
                        talk.answer = await self._step_async(connection, step, talk)
            except Exception as error:
                raise _blame(error, talk.doing, connection) from error
            return talk.handled

    async def _step_async(
        self, connection: psycopg.AsyncConnection[Any], step: Query | list[Call], talk: "_Conversation"
    ) -> Any:
        if isinstance(step, Query):
            cursor = await connection.execute(self._statements[step.name], step.parameters, prepare=step.prepared)
            row = await cursor.fetchone() if cursor.description is not None else None
            if step.commits:
                await connection.execute("commit")
            return row
        task = asyncio.current_task()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                return await self._calls_async(connection, step, talk, limit)
        except TimeoutError as error:
            if limit.expired():
                raise _too_long(talk.call, self._timeout) from error
            raise
        except asyncio.CancelledError as error:
            if task is None or task.cancelling():
                raise
            # Nobody cancelled us: it came out of something the handler waited for, and must not end the consumer.
            raise HandlerCancelled(f"handler {name_of(talk.call.handler)} waited for something cancelled") from error
        except psycopg.Rollback as error:
            raise _rolled_back(talk.call) from error

    async def _calls_async(
        self, connection: psycopg.AsyncConnection[Any], calls: list[Call], talk: "_Conversation", limit: asyncio.Timeout
    ) -> Call | None:
        """One handler after the other; returns the one that ended the transaction, if one did.

        A timer per call costs more than a small handler. One is set for all, a little late, and set anew only when
        that little has passed: each call has its time, and at most a tenth more.
        """
        now = asyncio.get_running_loop().time
        late = self._timeout / 10
        set_anew_at = 0.0
        with told():
            for call in calls:
                talk.call = call
                started = now()
                if started >= set_anew_at:
                    limit.reschedule(started + self._timeout + late)
                    set_anew_at = started + late
                handler, first = call.handler, call.events[0]
                if handler.batch:
                    _tell(call)
                    answer = await handler.function(*_arguments(call, connection))
                else:
                    # The same, written out: for a small handler each call of ours counts.
                    tell(first.event_id, first.correlation_id)
                    given = (first, connection) if handler.takes_transaction else (first,)
                    answer = await handler.function(*given)
                if limit.expired():
                    # It caught its own cancellation and went on; the event behind it is not to blame.
                    raise _too_long(call, self._timeout)
                if answer is not None:
                    judge(answer)
                if handler.takes_transaction and _ended(connection):
                    return call
        return None

    async def run_sync(self, connections: Connections, script: Script) -> int:
        """One slice on a blocking connection, in a thread; a handler that hangs loses its connection."""
        watch = Watch()
        running = in_thread(lambda: self._run_in_thread(connections, script, watch))
        try:
            while not (await asyncio.wait({running}, timeout=self._timeout / 4))[0]:
                overdue = watch.give_up_after(self._timeout)
                if overdue is not None:
                    await _abandon(running, watch)
                    raise SliceFailed(Failed(_too_long(overdue, self._timeout)), overdue.culprit)
            return running.result()
        except asyncio.CancelledError:
            watch.give_up()
            await _abandon(running, watch)
            raise

    def _run_in_thread(self, connections: Connections, script: Script, watch: Watch) -> int:
        with connections.lend_sync() as connection:
            restore(connection)
            watch.connection = connection
            talk = _Conversation(script)
            try:
                with connection.transaction():
                    while (step := talk.next_step()) is not None:
                        watch.enter(None)
                        talk.answer = self._step_sync(connection, step, talk, watch)
                    watch.enter(None)
            except Exception as error:
                raise _blame(error, talk.doing, connection) from error
            finally:
                watch.leave()
            return talk.handled

    def _step_sync(
        self, connection: psycopg.Connection[Any], step: Query | list[Call], talk: "_Conversation", watch: Watch
    ) -> Any:
        if isinstance(step, Query):
            cursor = connection.execute(self._statements[step.name], step.parameters)
            row = cursor.fetchone() if cursor.description is not None else None
            if step.commits:
                connection.execute("commit")
            return row
        with told():
            for call in step:
                talk.call = call
                watch.enter(call)
                _tell(call)
                try:
                    judge(call.handler.function(*_arguments(call, connection)))
                except psycopg.Rollback as error:
                    raise _rolled_back(call) from error
                if _ended(connection):
                    return call
        return None


async def _abandon(running: "asyncio.Future[int]", watch: Watch) -> None:
    running.cancel()
    await asyncio.to_thread(watch.cut_off)


class _Conversation:
    """A script and how far it has come, so that an error can be laid at the right door."""

    def __init__(self, script: Script) -> None:
        self.step: Query | list[Call] | None = None
        self.answer: Any = None
        self.handled = 0
        self._call: Call | None = None
        self._script = script

    @property
    def call(self) -> Call:
        """The handler that is at work."""
        assert self._call is not None
        return self._call

    @call.setter
    def call(self, call: Call) -> None:
        self._call = call

    @property
    def doing(self) -> Query | Call | None:
        """The statement or the handler at work, or None at COMMIT."""
        return self._call if isinstance(self.step, list) else self.step

    def next_step(self) -> Query | list[Call] | None:
        """What to do next, or None when only COMMIT is left."""
        self._call = None
        try:
            self.step = self._script.send(self.answer)
        except StopIteration as end:
            self.step, self.handled = None, int(end.value)
        return self.step


def _blame(error: Exception, step: Query | Call | None, connection: AnyConnection) -> Exception:
    """Whose failure it is: an event's, the database's, or (an error of our own statement) nobody's to retry."""
    if isinstance(error, SliceFailed):
        return error
    if connection.broken and getattr(error, "sqlstate", None) not in ENDED_BY_WAITING:
        return ConnectionLost(f"the connection was lost while a slice was at work: {readable(error).strip()}")
    if isinstance(step, Call):
        return SliceFailed(failed(error), step.culprit)
    if isinstance(step, Query) or isinstance(error, AftercommitError):
        return error
    # At COMMIT: with a deferred constraint any event of the slice may be the one.
    return SliceFailed(failed(error), None)


def _arguments(call: Call, connection: AnyConnection) -> Sequence[Any]:
    argument: Any = call.events if call.handler.batch else call.events[0]
    return (argument, connection) if call.handler.takes_transaction else (argument,)


def _tell(call: Call) -> None:
    if len(call.events) == 1:
        tell(call.events[0].event_id, call.events[0].correlation_id)
    else:
        tell(None, None)


def _ended(connection: AnyConnection) -> bool:
    """Whether a handler that returned had ended the transaction; errors that it hid come out here."""
    status = connection.pgconn.transaction_status
    if status == _INSIDE:
        restore(connection)
        return False
    if status == TransactionStatus.INERROR:
        raise SwallowedDatabaseError(
            "the handler caught a database error and returned, but the transaction is lost: let the error out, "
            "or wrap the statement that may fail in `with connection.transaction():`"
        )
    if status == TransactionStatus.UNKNOWN:
        raise MisusedConnection("the connection was closed when the handler returned: leave it open")
    restore(connection)
    return status == TransactionStatus.IDLE


def _rolled_back(call: Call) -> MisusedConnection:
    return MisusedConnection(
        f"handler {name_of(call.handler)} raised psycopg.Rollback: return Retry(after=…) or Park(reason), or raise "
        "another error, to have its writes undone"
    )


def _too_long(call: Call, timeout: float) -> HandlerTimeout:
    return HandlerTimeout(
        f"handler {name_of(call.handler)} took longer than {timeout:g} s: "
        "raise the consumer's timeout or make it quicker"
    )
