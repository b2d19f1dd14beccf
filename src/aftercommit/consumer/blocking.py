"""Runs a slice with blocking handlers in a thread, as `slice_executor` does with asyncio handlers."""

import contextlib
import time
from sys import getrefcount
from typing import Any

import psycopg

from aftercommit.consumer.calls import Calls, Recovery
from aftercommit.consumer.conversation import (
    INSIDE,
    Conversation,
    arguments,
    interruptions_as_failures,
    may_have_ended,
    recovery_from,
    take_back_from,
    tell_of,
)
from aftercommit.consumer.loans import LentSync, abandon, lend_sync, take_back
from aftercommit.consumer.opening import Opening
from aftercommit.consumer.outcome import judge
from aftercommit.consumer.slices import Query, SliceResult
from aftercommit.consumer.threads import Watch
from aftercommit.event.correlation import told
from aftercommit.postgres.commits import commit
from aftercommit.postgres.database import SPEAK_ISO, is_direct, speaks_iso
from aftercommit.postgres.handler_connections import ConsumerConnections, restore
from aftercommit.postgres.statements import Statements


def run_in_thread(
    statements: Statements, connections: ConsumerConnections, talk: Conversation, watch: Watch, stop_seconds: float
) -> SliceResult:
    """Run one slice; returns what became of its events. After `stop_seconds`, it stops between two events."""
    with connections.lend_sync() as connection:
        watch.connection = connection
        try:
            talk.borrow(connection)
            talk.answer = _open(statements, connection, talk.first_step(), talk)
            while (step := talk.next_step()) is not None:
                watch.enter(None)
                talk.answer = _step(statements, connection, step, talk, watch, stop_seconds)
            watch.enter(None)
            _commit(statements, connection, talk)
        except Exception as error:
            blamed = talk.blame(error, connection)
            _undo(statements, connection)
            raise blamed from error
        finally:
            if watch.leave() or talk.session_is_kept(connection):
                connection.close()
        return talk.outcome


def _open(statements: Statements, connection: psycopg.Connection[Any], step: Query, talk: Conversation) -> Any:
    """Begin the transaction and run its first statement."""
    try:
        if is_direct(connection) and step.prepared:
            row = _open_at_once(connection, Opening(connection, statements, step))
        else:
            row = _open_in_steps(statements, connection, step.name, step.parameters, talk)
    except psycopg.errors.UniqueViolation:
        if step.if_repeated is None:
            raise
        connection.rollback()
        row = _open_in_steps(statements, connection, step.if_repeated, step.parameters, talk)
    return talk.hear(row, connection.pgconn)


def _open_at_once(connection: psycopg.Connection[Any], opening: Opening) -> Any:
    if (preparation := opening.preparation) is not None:
        with contextlib.suppress(psycopg.errors.DuplicatePreparedStatement):
            connection.execute(preparation)
    try:
        cursor = connection.execute(opening.message)
    except psycopg.errors.InvalidSqlStatementName:
        connection.rollback()
        opening.forget()
        return _open_at_once(connection, opening)
    cursor.nextset()
    return cursor.fetchone()


def _open_in_steps(
    statements: Statements,
    connection: psycopg.Connection[Any],
    name: str,
    parameters: dict[str, Any],
    talk: Conversation,
) -> Any:
    if is_direct(connection):
        connection.execute("begin")
    else:
        cursor = connection.execute(statements["begin_in_pool"])
        cursor.nextset()
        row = cursor.fetchone()
        talk.settings = row[0] if row else ()
    return connection.execute(statements[name], parameters).fetchone()


def _step(
    statements: Statements,
    connection: psycopg.Connection[Any],
    step: Query | Calls,
    talk: Conversation,
    watch: Watch,
    stop_seconds: float,
) -> Any:
    if isinstance(step, Query):
        cursor = connection.execute(statements[step.name], step.parameters)
        return cursor.fetchone() if cursor.description is not None else None
    talk.lent = lend_sync(connection)
    try:
        with told(), interruptions_as_failures(talk):
            _calls(statements, connection, step, talk, watch, time.monotonic() + stop_seconds)
    finally:
        if not take_back(talk.lent):
            abandon(connection, talk.lent)()
    return None


def _calls(
    statements: Statements,
    connection: psycopg.Connection[Any],
    step: Calls,
    talk: Conversation,
    watch: Watch,
    stop_at: float,
) -> None:
    lent = talk.lent
    assert isinstance(lent, LentSync)
    while (call := step.following()) is not None:
        if step.guard_events and (savepoint := step.savepoint()):
            connection.execute(statements[savepoint])
        talk.call, began = call, time.monotonic()
        watch.enter(call)
        tell_of(call)
        lent.touched = False
        references = getrefcount(lent)
        try:
            judge(call.handler.function(*arguments(call, lent)))
        except Exception as error:  # noqa: BLE001 - raised again, or the event's own failure
            watch.enter(None)
            lent = _after(error, statements, connection, lent, step, talk)
            continue
        watch.enter(None)
        ended = time.monotonic()
        step.made(ended - began, touched=lent.touched)
        if call.handler.takes_transaction:
            talk.touched = talk.touched or lent.touched
            if getrefcount(lent) != references:
                talk.touched = True
                take_back_from(call, lent)
                talk.lent = lent = lend_sync(connection)
            restore(lent)
            # Without a statement, no handler can have ended it.
            if talk.touched and may_have_ended(connection, talk.mark, call):
                inside = connection.pgconn.transaction_status == INSIDE
                row = connection.execute(statements["current_transaction"]).fetchone() if inside else None
                talk.require_transaction(row, connection.pgconn)
        if ended > stop_at and step.may_stop():
            return


def _after(
    error: Exception,
    statements: Statements,
    connection: psycopg.Connection[Any],
    lent: LentSync,
    step: Calls,
    talk: Conversation,
) -> LentSync:
    """After a handler has failed: undo what it wrote if that is possible alone, or raise the error."""
    touched = lent.touched or talk.session_is_kept(connection)
    talk.touched = talk.touched or touched
    recovery = recovery_from(error, connection, step, talk.mark, touched=touched)
    if recovery is Recovery.UNDO or not take_back(lent):
        raise error
    if recovery is Recovery.SAVEPOINT:
        connection.execute(statements["back_to_savepoint"])
    talk.lent = again = lend_sync(connection)
    return again


def _commit(statements: Statements, connection: psycopg.Connection[Any], talk: Conversation) -> None:
    if talk.calls > 1 and talk.touched:
        row = connection.execute(statements["session_settings"]).fetchone()
        talk.require_same_settings(row[0] if row else (), connection.pgconn)
    tidies = talk.touched and is_direct(connection)
    commit(connection, statements["commit_and_tidy"] if tidies else b"commit")
    if not speaks_iso(connection):
        connection.execute(SPEAK_ISO)


def _undo(statements: Statements, connection: psycopg.Connection[Any]) -> None:
    """Roll back, and undo what a handler has left in the session."""
    if connection.closed:
        return
    try:
        connection.rollback()
        if is_direct(connection):
            connection.execute(statements["tidy"])
        if not speaks_iso(connection):
            connection.execute(SPEAK_ISO)
    except psycopg.Error:
        # Nobody may use it again: it is not clean.
        connection.close()
