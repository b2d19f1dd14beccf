"""Checks of the server and the connection to it: durability, settings, connections, clocks, notifications."""

import time
from collections.abc import Iterator
from uuid import uuid4

import psycopg
from psycopg import sql

from aftercommit.operate.doctor.findings import Check, CheckContext, CheckProblem, problem, warning
from aftercommit.operate.health import holds_too_long
from aftercommit.postgres import lives
from aftercommit.postgres.database import Database

OLDEST_VERSION = 15
_NEARLY_FULL, _FULL = 0.75, 0.9
_CLOCK_SECONDS = 2.0
_PROVING_SECONDS = 2.0


def _version(context: CheckContext) -> Iterator[CheckProblem]:
    if context.server.number // 10_000 < OLDEST_VERSION:
        yield problem(f"PostgreSQL {context.server.version} is too old", f"use PostgreSQL {OLDEST_VERSION} or later")
    if context.server.in_recovery:
        yield problem(
            "this server is a standby and read-only", "connect to the primary: add target_session_attrs=primary"
        )


def _durability(context: CheckContext) -> Iterator[CheckProblem]:
    settings = context.settings("fsync", "full_page_writes", "synchronous_commit")
    for name, why in (
        ("fsync", "a crash of the machine can destroy the database"),
        ("full_page_writes", "a crash of the machine can corrupt pages"),
    ):
        if settings[name] != "on":
            yield problem(
                f"{name} is {settings[name]}: {why}", f"alter system set {name} = on; select pg_reload_conf()"
            )
    if settings["synchronous_commit"] == "off":
        yield warning(
            "synchronous_commit is off: a crash can lose the last commits, including events that were delivered",
            "alter system set synchronous_commit = on; leave it off only if you can accept that",
        )


def _isolation(context: CheckContext) -> Iterator[CheckProblem]:
    settings = context.settings("default_transaction_isolation", "default_transaction_read_only")
    role = sql.Identifier(context.user).as_string()
    if settings["default_transaction_isolation"] != "read committed":
        yield problem(
            f"the default isolation level of this user is {settings['default_transaction_isolation']}: relays and "
            "workers would fail with serialization errors",
            f"alter role {role} set default_transaction_isolation = 'read committed'; your own transactions may differ",
        )
    if settings["default_transaction_read_only"] != "off":
        yield problem(
            "transactions of this user are read-only", f"alter role {role} set default_transaction_read_only = off"
        )


def _connections(context: CheckContext) -> Iterator[CheckProblem]:
    for what, used, allowed in context.rows("doctor_connections"):
        share = used / max(allowed, 1)
        if share >= _NEARLY_FULL:
            kind = problem if share >= _FULL else warning
            yield kind(
                f"{used} of {allowed} connections of {what} are in use",
                "use a pooler (transaction mode works), close idle connections, or raise the limit",
            )


def _listen(context: CheckContext) -> Iterator[CheckProblem]:
    if not hears(Database(context.database.listen_dsn), context.database):
        yield warning(
            "notifications do not arrive, probably because of a pooler in transaction mode. Relays and workers poll "
            "instead",
            "set AFTERCOMMIT_LISTEN_URL (listen_dsn) to an address that bypasses the pooler",
        )


def hears(listening: Database, sending: Database) -> bool:
    """Whether a notification sent through one address arrives at the other."""
    channel = f"aftercommit_proof_{uuid4().hex[:16]}"
    with listening.connect_sync() as listener, sending.connect_sync() as sender:
        listener.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        try:
            sender.execute("select pg_notify(%s, '')", (channel,))
            return any(listener.notifies(timeout=_PROVING_SECONDS, stop_after=1))
        finally:
            # With a pooler, the server connection would keep listening for its next client.
            listener.execute("unlisten *")


def _clock(context: CheckContext) -> Iterator[CheckProblem]:
    began, before = time.monotonic(), context.now()
    (there,) = context.rows("doctor_clock")[0]
    # Half of the round trip. We cannot know which direction took longer, so the clocks may agree up to this much.
    half = (time.monotonic() - began) / 2
    difference = abs((there - before).total_seconds() - half)
    if difference - half > _CLOCK_SECONDS:
        yield warning(
            f"the clock of this machine and the clock of the database differ by {difference:.1f} s: leases and retries "
            "use the database's, occurred_at the application's",
            "synchronize both with NTP",
        )


def _transactions(context: CheckContext) -> Iterator[CheckProblem]:
    yield from context.problems("transactions")
    if not context.rights.may_see_others:
        user = sql.Identifier(context.user).as_string()
        yield warning("this user cannot see the age of other users' transactions", f"grant pg_read_all_stats to {user}")


def _slots(context: CheckContext) -> Iterator[CheckProblem]:
    yield from context.problems("replication slots")
    for holder in context.overview.holders:
        if holder.kind == "replication slot" and not holds_too_long(holder, context.limits):
            yield warning(f"{holder} holds {'; '.join(holder.holds)}", holder.remedy)


def _life(context: CheckContext) -> Iterator[CheckProblem]:
    """Whether a restore has ended the log's life and the next one has not begun.

    The check of consumers compares their checkpoints with the end of the log. Bookmarks and positions of bots in the
    same database cannot be compared: they do not say which log they belong to.
    """
    for number, *told in context.rows("present_life"):
        identity = [_told(context, question) for question in ("server_identifier", "server_timeline")]
        reason = lives.difference(lives.Server(*told[:4]), lives.Server(*identity, *told[4:]))
        if reason is not None:
            yield problem(
                f"{reason}; life {number} of the log has ended, and the next has not begun",
                "start a relay, which begins the new life, or run `aftercommit restored`",
            )


def _told(context: CheckContext, question: str) -> int | None:
    """A fact about the server, or None if this user may not ask."""
    try:
        with context.connection.transaction():
            return next((int(row[0]) for row in context.rows(question)), None)
    except (*lives.NOT_TOLD, psycopg.errors.InternalError_):
        return None


SERVER = (
    Check("server", "a supported version that accepts writes", _version),
    Check("durability", "committed data survives a crash", _durability),
    Check("isolation", "the default isolation level is read committed", _isolation),
    Check("connections", "there is room for more connections", _connections),
    Check("notifications", "LISTEN works through this address", _listen),
    Check("clocks", "the clocks agree", _clock),
)
STATE = (
    Check("life", "there is no restore that the log has not noticed", _life),
    Check("transactions", "no open transaction blocks others", _transactions),
    Check("prepared transactions", "none blocks others", lambda context: context.problems("prepared transactions")),
    Check("replication slots", "none keeps old rows or unread WAL", _slots),
)
