"""The progress of a slice's script, and who is to blame when something fails. It sends nothing to the server."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from sys import getrefcount
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn

from aftercommit.consumer.calls import Calls, HandlerCall, Recovery, name_of
from aftercommit.consumer.interrupts import from_signal
from aftercommit.consumer.loans import LentAsync, LentSync, MisusedConnection, take_back
from aftercommit.consumer.outcome import Failed, failed
from aftercommit.consumer.slices import Query, Script, SliceFailed, SliceResult
from aftercommit.errors import AftercommitError, DatabaseUnavailable, HandlerTimeout, NotCommitted
from aftercommit.event.correlation import tell
from aftercommit.postgres.commits import AnyConnection
from aftercommit.text import readable

# The server ends sessions that wait too long inside a transaction; then it is the handler that waited.
ENDED_BY_WAITING: Final = frozenset({"25P03", "25P04"})
# Settings of which the server tells its clients each change.
REPORTED: Final = (b"TimeZone", b"DateStyle", b"client_encoding", b"IntervalStyle", b"standard_conforming_strings")
# A plain number: it is compared after every call of a handler.
INSIDE: Final = int(TransactionStatus.INTRANS)


class SwallowedDatabaseError(AftercommitError):
    """A handler caught a database error and went on in an aborted transaction."""


class HandlerCancelled(AftercommitError):
    """The handler cancelled its own task, or waited for something that was cancelled."""


class HandlerInterrupted(AftercommitError):
    """The handler raised KeyboardInterrupt or SystemExit."""


class ChangedSettings(AftercommitError):
    """A handler changed settings of the session; later events of the same transaction would have them too."""


class ConnectionLost(DatabaseUnavailable):
    """The connection broke while a slice was at work; its writes are undone."""


class Mark:
    """How a slice recognises its transaction: by its number, and by an application name that ends with it."""

    def __init__(self) -> None:
        self.transaction: str | None = None
        self._name: bytes | None = None
        self._settings: tuple[bytes | None, ...] = ()

    def begin(self, name: str, transaction: str, server: PGconn) -> None:
        """Take over what the first statement of the slice has set. A pooler may hide the name."""
        self.transaction = transaction
        shown = server.parameter_status(b"application_name")
        self._name = shown if shown == name.encode() else None
        self._settings = _reported(server)

    def is_gone(self, server: PGconn) -> bool:
        """Whether the transaction may have ended, without asking the server; always True if a pooler hides the name."""
        return server.transaction_status == TransactionStatus.IDLE or self.is_hidden(server)

    def is_hidden(self, server: PGconn) -> bool:
        """Whether the session shows another name than the slice has set, or a pooler hides it."""
        return self._name is None or server.parameter_status(b"application_name") != self._name

    def holds(self, transaction: str, server: PGconn) -> bool:
        """Whether it is the same transaction after all, and a handler only chose another name."""
        if transaction != self.transaction:
            return False
        if self._name is not None:
            self._name = server.parameter_status(b"application_name")
        return True

    def changed(self, server: PGconn) -> list[str]:
        """The reported settings that have changed."""
        now = _reported(server)
        return [name.decode() for name, old, new in zip(REPORTED, self._settings, now, strict=True) if old != new]


class Conversation:
    """A script and how far it has come, which tells whose failure an error is."""

    def __init__(self, script: Script) -> None:
        self.step: Query | Calls | None = None
        self.answer: Any = None
        self.result: SliceResult | None = None
        self.mark = Mark()
        # The handlers' connection, and the time until which the handler at work must return.
        self.lent: LentAsync | LentSync | None = None
        # Settings of the session before the slice, as name=value. A direct connection begins without any.
        self.settings: Sequence[str] = ()
        self.until = 0.0
        # How many calls shared the transaction, and whether any of them used its connection.
        self.calls = 0
        self.touched = False
        # Ended by a handler; unsure: it may have ended otherwise, and the server has to be asked.
        self.ended = False
        self.unsure = False
        self._call: HandlerCall | None = None
        self._owners = 0
        self._script = script

    def borrow(self, connection: AnyConnection) -> None:
        """The slice begins on this connection."""
        self._owners = getrefcount(connection.pgconn)

    def session_is_kept(self, connection: AnyConnection) -> bool:
        """Whether a handler has kept the bare session, with which it could act unseen: the next slice gets another."""
        return self.touched and getrefcount(connection.pgconn) > self._owners + (self.lent is not None)

    @property
    def call(self) -> HandlerCall:
        """The handler at work."""
        assert self._call is not None
        return self._call

    @call.setter
    def call(self, call: HandlerCall) -> None:
        self._call = call

    def first_step(self) -> Query:
        """The statement that opens the slice."""
        step = self.next_step()
        assert isinstance(step, Query)
        return step

    def next_step(self) -> Query | Calls | None:
        """What to do next, or None when only COMMIT is left."""
        try:
            self.step = self._script.send(self.answer)
        except StopIteration as end:
            self.step, self.result = None, end.value
        if isinstance(self.step, Calls):
            self.calls = len(self.step.calls)
        return self.step

    @property
    def outcome(self) -> SliceResult:
        """What became of the events, once only COMMIT is left."""
        assert self.result is not None
        return self.result

    def hear(self, row: Any, server: PGconn) -> Any:
        """Pass on the answer to the first statement, which identifies the transaction."""
        if row is not None:
            *_, name, transaction = row[3]
            self.mark.begin(name, transaction, server)
        return row

    def blame(self, error: Exception, connection: AnyConnection) -> Exception:
        """Turn an error into a failure of an event or a lost connection; one of our own statement stays as it is."""
        blamed = self._blame(error, connection)
        if isinstance(blamed, SliceFailed) and isinstance(self.step, Calls):
            blamed.failures = self.step.failures
        return blamed

    def _blame(self, error: Exception, connection: AnyConnection) -> Exception:
        call = self._call if isinstance(self.step, Calls) else None
        if call is not None:
            self.unsure = connection.closed or self.mark.is_gone(connection.pgconn)
        if isinstance(error, SliceFailed):
            return error
        if isinstance(error, psycopg.Rollback) and call is not None:
            misused = MisusedConnection(
                f"handler {name_of(call.handler)} raised psycopg.Rollback: to undo its writes, raise another error, or "
                "return Retry(after=…) or Park(reason)"
            )
            return SliceFailed(Failed(misused), call.culprit)
        if connection.broken and _is_the_connections(error):
            return ConnectionLost(f"the connection was lost during a slice: {readable(error).strip()}")
        if call is not None:
            return SliceFailed(failed(error), call.culprit)
        if isinstance(self.step, Query) and self.touched and isinstance(error, psycopg.Error):
            # Our statement after the handlers: what they have done to the session may be the cause.
            return SliceFailed(failed(error), None)
        if isinstance(self.step, Query) or (
            isinstance(error, AftercommitError) and not isinstance(error, NotCommitted)
        ):
            return error
        # At COMMIT: with a deferred constraint any event may be to blame. Or the server did commit and something failed
        # after that: it has to be asked, unless it said no.
        self.unsure = not isinstance(error, NotCommitted)
        return SliceFailed(failed(error), None)

    def require_transaction(self, row: tuple[str] | None, server: PGconn) -> None:
        """Check that the transaction after a handler is the one that the slice began."""
        if row is None or not self.mark.holds(row[0], server):
            self.ended = True
            raise MisusedConnection(f"handler {name_of(self.call.handler)} ended the transaction it was given")

    def require_same_settings(self, now: Sequence[str], server: PGconn) -> None:
        """Check that no handler changed a setting: events that share a transaction share its settings."""
        changed = {each.partition("=")[0] for each in set(self.settings).symmetric_difference(now)}
        names = [*sorted(changed), *self.mark.changed(server)]
        if names:
            error = ChangedSettings(
                f"a handler changed {', '.join(names)}: its events are handled one by one from now on"
            )
            raise SliceFailed(Failed(error), None)


def may_have_ended(connection: AnyConnection, mark: Mark, call: HandlerCall) -> bool:
    """Whether the transaction may be over after a handler returned. Raises errors that the handler hid."""
    server = connection.pgconn
    status = server.transaction_status
    if status == INSIDE:
        return mark.is_hidden(server)
    if status == TransactionStatus.IDLE:
        return True
    if status == TransactionStatus.INERROR:
        raise SwallowedDatabaseError(
            "the handler caught a database error and returned, but the transaction is aborted: do not catch the "
            "error, or wrap the statement that may fail in `with connection.transaction():`"
        )
    if status == TransactionStatus.UNKNOWN:
        raise MisusedConnection("the connection was closed when the handler returned: leave it open")
    raise _still_in_use(call)


def recovery_from(error: Exception, connection: AnyConnection, calls: Calls, mark: Mark, *, touched: bool) -> Recovery:
    """How a slice goes on after a handler that failed. `touched`: it has used the connection."""
    if isinstance(error, psycopg.Rollback | MisusedConnection) or connection.closed:
        return Recovery.UNDO
    server = connection.pgconn
    can_go_on = server.transaction_status == INSIDE or (
        touched and server.transaction_status == TransactionStatus.INERROR
    )
    if not can_go_on or mark.is_hidden(server):
        return Recovery.UNDO
    return calls.recover(failed(error), touched=touched)


def take_back_from(call: HandlerCall, lent: LentAsync | LentSync) -> None:
    """Take the connection back from a handler; it fails if something is still at work on the connection."""
    if not take_back(lent):
        raise _still_in_use(call)


@contextmanager
def interruptions_as_failures(talk: Conversation) -> Iterator[None]:
    """Let a handler fail that raises KeyboardInterrupt or SystemExit; one from a signal ends the program."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if from_signal(error):
            raise
        raise HandlerInterrupted(
            f"handler {name_of(talk.call.handler)} raised {error!r}, which ends this attempt and not the program. "
            "Raise another error, or return Retry(after=…) or Park(reason)"
        ) from error


def arguments(call: HandlerCall, connection: AnyConnection) -> Sequence[Any]:
    """The arguments for a handler."""
    argument: Any = call.batch if call.handler.batch else call.event
    return (argument, connection) if call.handler.takes_transaction else (argument,)


def tell_of(call: HandlerCall) -> None:
    """Set which event causes what the handler publishes."""
    if len(call.batch) <= 1:
        tell(call.event.event_id, call.event.correlation_id)
    else:
        tell(None, None)


def too_long(call: HandlerCall, timeout: float) -> HandlerTimeout:
    """The error for a handler that did not return in time."""
    return HandlerTimeout(
        f"handler {name_of(call.handler)} took longer than {timeout:g} s: "
        "raise the consumer's timeout or make it quicker"
    )


def cancelled(call: HandlerCall) -> HandlerCancelled:
    """The error for a handler that was cancelled, but not by us."""
    return HandlerCancelled(
        f"handler {name_of(call.handler)} was cancelled: it cancelled its own task, or waited for something cancelled"
    )


def _reported(server: PGconn) -> tuple[bytes | None, ...]:
    return tuple(server.parameter_status(name) for name in REPORTED)


def _is_the_connections(error: Exception) -> bool:
    """Whether the connection was lost, and not misused by a handler or ended because a handler waited too long."""
    if isinstance(error, MisusedConnection | HandlerTimeout | HandlerCancelled):
        return False
    return getattr(error, "sqlstate", None) not in ENDED_BY_WAITING


def _still_in_use(call: HandlerCall) -> MisusedConnection:
    return MisusedConnection(
        f"the connection was still in use when the handler returned ({name_of(call.handler)}): a stream, COPY or "
        "pipeline was open, or a task or thread used it. Read streams to their end, leave `with` blocks, and wait for "
        "tasks and threads"
    )
