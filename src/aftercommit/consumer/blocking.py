"""Runs a slice with blocking handlers in a thread, as `slice_executor` does with asyncio handlers."""

from sys import getrefcount
from typing import Any

import psycopg

from aftercommit.consumer.connections import ConsumerConnections, restore
from aftercommit.consumer.conversation import (
    INSIDE,
    Conversation,
    arguments,
    interruptions_as_failures,
    may_have_ended,
    take_back_from,
    tell_of,
)
from aftercommit.consumer.loans import LentSync, abandon, lend_sync, take_back
from aftercommit.consumer.outcome import judge
from aftercommit.consumer.slices import HandlerCall, Query
from aftercommit.consumer.threads import Watch
from aftercommit.event.correlation import told
from aftercommit.postgres.commits import commit
from aftercommit.postgres.database import SPEAK_ISO, is_direct, speaks_iso
from aftercommit.postgres.statements import Statements


def run_in_thread(statements: Statements, connections: ConsumerConnections, talk: Conversation, watch: Watch) -> int:
    """Run one slice; returns how many events were handled."""
    with connections.lend_sync() as connection:
        watch.connection = connection
        try:
            _begin(statements, connection, talk)
            while (step := talk.next_step()) is not None:
                watch.enter(None)
                talk.answer = _step(statements, connection, step, talk, watch)
            watch.enter(None)
            _commit(statements, connection, talk)
        except Exception as error:
            blamed = talk.blame(error, connection)
            _undo(statements, connection)
            raise blamed from error
        finally:
            if watch.leave():
                connection.close()
        return talk.handled


def _begin(statements: Statements, connection: psycopg.Connection[Any], talk: Conversation) -> None:
    if is_direct(connection):
        connection.execute("begin")
        return
    cursor = connection.execute(statements["begin_in_pool"])
    cursor.nextset()
    row = cursor.fetchone()
    talk.settings = row[0] if row else ()


def _step(
    statements: Statements,
    connection: psycopg.Connection[Any],
    step: Query | list[HandlerCall],
    talk: Conversation,
    watch: Watch,
) -> Any:
    if isinstance(step, Query):
        try:
            cursor = connection.execute(statements[step.name], step.parameters)
        except psycopg.errors.UniqueViolation:
            if step.if_repeated is None:
                raise
            connection.rollback()
            _begin(statements, connection, talk)
            cursor = connection.execute(statements[step.if_repeated], step.parameters)
        return talk.hear(cursor.fetchone() if cursor.description is not None else None, connection.pgconn)
    lent = talk.lent = lend_sync(connection)
    try:
        with told(), interruptions_as_failures(talk):
            _calls(statements, connection, lent, step, talk, watch)
    finally:
        if not take_back(talk.lent):
            abandon(connection, talk.lent)()
    return None


def _calls(
    statements: Statements,
    connection: psycopg.Connection[Any],
    lent: LentSync,
    calls: list[HandlerCall],
    talk: Conversation,
    watch: Watch,
) -> None:
    for call in calls:
        talk.call = call
        watch.enter(call)
        tell_of(call)
        owners = getrefcount(lent)
        judge(call.handler.function(*arguments(call, lent)))
        watch.enter(None)
        if not call.handler.takes_transaction:
            continue
        if getrefcount(lent) != owners:
            take_back_from(call, lent)
            talk.lent = lent = lend_sync(connection)
        restore(lent)
        if may_have_ended(connection, talk.mark, call):
            inside = connection.pgconn.transaction_status == INSIDE
            row = connection.execute(statements["current_transaction"]).fetchone() if inside else None
            talk.require_transaction(row, connection.pgconn)


def _commit(statements: Statements, connection: psycopg.Connection[Any], talk: Conversation) -> None:
    if talk.calls > 1:
        row = connection.execute(statements["session_settings"]).fetchone()
        talk.require_same_settings(row[0] if row else (), connection.pgconn)
    tidies = talk.calls > 0 and is_direct(connection)
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
