"""A slice's script and how far it has come, and whose failure it is when something fails. Nothing is asked here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn

from aftercommit.consumer.interrupts import from_signal
from aftercommit.consumer.loans import LentAsync, LentSync, MisusedConnection, take_back
from aftercommit.consumer.outcome import Failed, failed
from aftercommit.consumer.slices import HandlerCall, Query, Script, SliceFailed, name_of
from aftercommit.errors import AftercommitError, DatabaseUnavailable, HandlerTimeout, NotCommitted
from aftercommit.event.correlation import tell
from aftercommit.text import readable

AnyConnection = psycopg.AsyncConnection[Any] | psycopg.Connection[Any]

# The server ends sessions that wait too long inside a transaction; then it is the handler that waited.
ENDED_BY_WAITING: Final = frozenset({"25P03", "25P04"})
# Settings of which the server tells its clients each change.
REPORTED: Final = (b"TimeZone", b"DateStyle", b"client_encoding", b"IntervalStyle", b"standard_conforming_strings")
# A plain number: it is compared after every call of a handler.
INSIDE: Final = int(TransactionStatus.INTRANS)


class SwallowedDatabaseError(AftercommitError):
    """A handler caught a database error and went on, in a transaction that PostgreSQL has already given up."""


class HandlerCancelled(AftercommitError):
    """The handler cancelled its own task, or let out the cancellation of something that it waited for."""


class HandlerInterrupted(AftercommitError):
    """The handler raised KeyboardInterrupt or SystemExit, which are not its to raise."""


class ChangedSettings(AftercommitError):
    """A handler changed settings of the session, which the events behind it in the same transaction would have had."""


class ConnectionLost(DatabaseUnavailable):
    """The connection broke while a slice was at work; what it wrote is undone."""


class Mark:
    """By what a slice knows its transaction again: a name that ends with it, and its number."""

    def __init__(self) -> None:
        """Not begun."""
        self.transaction: str | None = None
        self._name: bytes | None = None
        self._settings: tuple[bytes | None, ...] = ()

    def begin(self, name: str, transaction: str, server: PGconn) -> None:
        """As the first statement of the slice has set it. A pooler may keep the name from us."""
        self.transaction = transaction
        shown = server.parameter_status(b"application_name")
        self._name = shown if shown == name.encode() else None
        self._settings = _reported(server)

    def is_gone(self, server: PGconn) -> bool:
        """Whether the transaction may have ended, without a question. It always may where a pooler hides the name."""
        if server.transaction_status == TransactionStatus.IDLE:
            return True
        return self._name is None or server.parameter_status(b"application_name") != self._name

    def holds(self, transaction: str, server: PGconn) -> bool:
        """Whether it is the same transaction after all; then a handler has chosen another name."""
        if transaction != self.transaction:
            return False
        if self._name is not None:
            self._name = server.parameter_status(b"application_name")
        return True

    def changed(self, server: PGconn) -> list[str]:
        """The reported settings that are not what they were."""
        now = _reported(server)
        return [name.decode() for name, old, new in zip(REPORTED, self._settings, now, strict=True) if old != new]


class Conversation:
    """A script and how far it has come, so that an error can be laid at the right door."""

    def __init__(self, script: Script) -> None:
        """Not begun."""
        self.step: Query | list[HandlerCall] | None = None
        self.answer: Any = None
        self.handled = 0
        self.mark = Mark()
        # What handlers work on, and until when the one at work may take.
        self.lent: LentAsync | LentSync | None = None
        # What was set in the session before the slice, as name=value. A connection of our own begins with nothing.
        self.settings: Sequence[str] = ()
        self.until = 0.0
        # How many calls shared the transaction.
        self.calls = 0
        # A handler has ended the transaction; or it may have ended otherwise, and the server has to be asked.
        self.ended = False
        self.unsure = False
        self._call: HandlerCall | None = None
        self._script = script

    @property
    def call(self) -> HandlerCall:
        """The handler that is at work."""
        assert self._call is not None
        return self._call

    @call.setter
    def call(self, call: HandlerCall) -> None:
        self._call = call

    def next_step(self) -> Query | list[HandlerCall] | None:
        """What to do next, or None when only COMMIT is left."""
        try:
            self.step = self._script.send(self.answer)
        except StopIteration as end:
            self.step, self.handled = None, int(end.value)
        if isinstance(self.step, list):
            self.calls = len(self.step)
        return self.step

    def hear(self, row: Any, server: PGconn) -> Any:
        """The answer to a query; the first one says by what the transaction is known."""
        if self.mark.transaction is None and row is not None:
            *_, name, transaction = row[3]
            self.mark.begin(name, transaction, server)
        return row

    def blame(self, error: Exception, connection: AnyConnection) -> Exception:
        """Whose failure it is: an event's, the database's, or (an error of our own statement) nobody's to retry."""
        call = self._call if isinstance(self.step, list) else None
        if call is not None:
            self.unsure = connection.closed or self.mark.is_gone(connection.pgconn)
        if isinstance(error, SliceFailed):
            return error
        if isinstance(error, psycopg.Rollback) and call is not None:
            return SliceFailed(Failed(_rolled_back(call)), call.culprit)
        if connection.broken and _is_the_connections(error):
            return ConnectionLost(f"the connection was lost during a slice: {readable(error).strip()}")
        if call is not None:
            return SliceFailed(failed(error), call.culprit)
        if isinstance(self.step, Query) or (
            isinstance(error, AftercommitError) and not isinstance(error, NotCommitted)
        ):
            return error
        # At COMMIT: with a deferred constraint any event of the slice may be the one. Or the server did commit, and
        # what failed came after that: it has to be asked, unless it said no.
        self.unsure = not isinstance(error, NotCommitted)
        return SliceFailed(failed(error), None)

    def require_transaction(self, row: tuple[str] | None, server: PGconn) -> None:
        """The transaction that a handler has left behind, if any, must be the one that the slice began."""
        if row is None or not self.mark.holds(row[0], server):
            self.ended = True
            raise MisusedConnection(f"handler {name_of(self.call.handler)} ended the transaction it was given")

    def require_same_settings(self, now: Sequence[str], server: PGconn) -> None:
        """Events that share a transaction share its settings: they may do so while no handler changes any."""
        changed = {each.partition("=")[0] for each in set(self.settings).symmetric_difference(now)}
        names = [*sorted(changed), *self.mark.changed(server)]
        if names:
            error = ChangedSettings(
                f"a handler changed {', '.join(names)}: its events are handled one by one from now on"
            )
            raise SliceFailed(Failed(error), None)


def may_have_ended(connection: AnyConnection, mark: Mark, call: HandlerCall) -> bool:
    """A handler has returned: whether the transaction may be over. Errors that the handler hid come out here."""
    server = connection.pgconn
    status = server.transaction_status
    if status == INSIDE or status == TransactionStatus.IDLE:
        return mark.is_gone(server)
    if status == TransactionStatus.INERROR:
        raise SwallowedDatabaseError(
            "the handler caught a database error and returned, but the transaction is lost: let the error out, "
            "or wrap the statement that may fail in `with connection.transaction():`"
        )
    if status == TransactionStatus.UNKNOWN:
        raise MisusedConnection("the connection was closed when the handler returned: leave it open")
    raise _still_in_use(call)


def take_back_from(call: HandlerCall, lent: LentAsync | LentSync) -> None:
    """End the loan of a handler that has returned; it failed when something is still at work on the connection."""
    if not take_back(lent):
        raise _still_in_use(call)


@contextmanager
def interruptions_as_failures(talk: Conversation) -> Iterator[None]:
    """A handler that raises KeyboardInterrupt or SystemExit has failed. One that a signal raised ends the program."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if from_signal(error):
            raise
        raise HandlerInterrupted(
            f"handler {name_of(talk.call.handler)} raised {error!r}: it ends this attempt and not the program. "
            "Raise another error, or return Retry(after=…) or Park(reason)"
        ) from error


def arguments(call: HandlerCall, connection: AnyConnection) -> Sequence[Any]:
    """What a handler is called with."""
    argument: Any = call.events if call.handler.batch else call.events[0]
    return (argument, connection) if call.handler.takes_transaction else (argument,)


def tell_of(call: HandlerCall) -> None:
    """Which event causes what the handler publishes."""
    if len(call.events) == 1:
        tell(call.events[0].event_id, call.events[0].correlation_id)
    else:
        tell(None, None)


def too_long(call: HandlerCall, timeout: float) -> HandlerTimeout:
    """The error for a handler that did not return in time."""
    return HandlerTimeout(
        f"handler {name_of(call.handler)} took longer than {timeout:g} s: "
        "raise the consumer's timeout or make it quicker"
    )


def cancelled(call: HandlerCall) -> HandlerCancelled:
    """The error for a handler whose cancellation nobody asked for."""
    return HandlerCancelled(
        f"handler {name_of(call.handler)} was cancelled: it cancelled its own task, or waited for something cancelled"
    )


def _reported(server: PGconn) -> tuple[bytes | None, ...]:
    return tuple(server.parameter_status(name) for name in REPORTED)


def _is_the_connections(error: Exception) -> bool:
    """What a handler did to its connection is no loss of the connection, nor is what it waited for in vain."""
    if isinstance(error, MisusedConnection | HandlerTimeout | HandlerCancelled):
        return False
    return getattr(error, "sqlstate", None) not in ENDED_BY_WAITING


def _still_in_use(call: HandlerCall) -> MisusedConnection:
    return MisusedConnection(
        f"the connection was still in use when the handler returned ({name_of(call.handler)}): a stream, COPY or "
        "pipeline was open, or a task or thread was at work on it. Read streams to their end, leave `with` blocks, and "
        "wait for tasks and threads"
    )


def _rolled_back(call: HandlerCall) -> MisusedConnection:
    return MisusedConnection(
        f"handler {name_of(call.handler)} raised psycopg.Rollback: return Retry(after=…) or Park(reason), or raise "
        "another error, to have its writes undone"
    )
