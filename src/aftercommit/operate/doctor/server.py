"""Checks of the server and of our way to it: durability, settings, connections, clocks, notifications."""

import time
from collections.abc import Iterator
from uuid import uuid4

from psycopg import sql

from aftercommit.operate.doctor.findings import Check, CheckContext, CheckProblem, problem, warning
from aftercommit.operate.health import holds_too_long
from aftercommit.postgres.database import Database

OLDEST_VERSION = 15
_NEARLY_FULL, _FULL = 0.75, 0.9
_CLOCK_SECONDS = 2.0
_PROVING_SECONDS = 2.0


def _version(context: CheckContext) -> Iterator[CheckProblem]:
    number, version, in_recovery, _, _ = context.rows("doctor_server")[0]
    if number // 10_000 < OLDEST_VERSION:
        yield problem(f"PostgreSQL {version} is too old", f"use PostgreSQL {OLDEST_VERSION} or later")
    if in_recovery:
        yield problem(
            "this server is a standby and refuses to write", "connect to the primary: target_session_attrs=primary"
        )


def _durability(context: CheckContext) -> Iterator[CheckProblem]:
    settings = context.settings("fsync", "full_page_writes", "synchronous_commit")
    for name, why in (
        ("fsync", "a crash of the machine can destroy the database"),
        ("full_page_writes", "a crash of the machine can leave torn pages behind"),
    ):
        if settings[name] != "on":
            yield problem(
                f"{name} is {settings[name]}: {why}", f"alter system set {name} = on; select pg_reload_conf()"
            )
    if settings["synchronous_commit"] == "off":
        yield warning(
            "synchronous_commit is off: a crash takes the last commits back, also events that others have seen by then",
            "alter system set synchronous_commit = on; or leave it, if a short loss is acceptable on both sides",
        )


def _isolation(context: CheckContext) -> Iterator[CheckProblem]:
    settings = context.settings("default_transaction_isolation", "default_transaction_read_only")
    role = sql.Identifier(context.user).as_string()
    if settings["default_transaction_isolation"] != "read committed":
        yield problem(
            f"transactions of this user begin as {settings['default_transaction_isolation']}: relays and workers would "
            "fail with serialization errors",
            f"alter role {role} set default_transaction_isolation = 'read committed'; your own may differ",
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
                "put a pooler in front (transaction mode is fine), close what is idle, or raise the limit",
            )


def _listen(context: CheckContext) -> Iterator[CheckProblem]:
    if not hears(Database(context.database.listen_dsn), context.database):
        yield warning(
            "notifications do not arrive: probably a pooler in transaction mode. Relays and workers poll instead",
            "give AFTERCOMMIT_LISTEN_URL (listen_dsn) an address that leads past the pooler",
        )


def hears(listening: Database, sending: Database) -> bool:
    """Whether what is sent on one way arrives on the other."""
    channel = f"aftercommit_proof_{uuid4().hex[:16]}"
    with listening.connect_sync() as listener, sending.connect_sync() as sender:
        listener.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        try:
            sender.execute("select pg_notify(%s, '')", (channel,))
            return any(listener.notifies(timeout=_PROVING_SECONDS, stop_after=1))
        finally:
            # A pooler would leave a connection of its pool listening for whoever gets it next.
            listener.execute("unlisten *")


def _clock(context: CheckContext) -> Iterator[CheckProblem]:
    began, before = time.monotonic(), context.now()
    (there,) = context.rows("doctor_clock")[0]
    # Half of the way there and back. Nobody knows which half took longer: so much may be the way and not the clocks.
    half = (time.monotonic() - began) / 2
    difference = abs((there - before).total_seconds() - half)
    if difference - half > _CLOCK_SECONDS:
        yield warning(
            f"the clock here and the clock of the database differ by {difference:.1f} s: leases and retries go by the "
            "database's, occurred_at by the one here",
            "let NTP keep both",
        )


def _transactions(context: CheckContext) -> Iterator[CheckProblem]:
    yield from context.problems("transactions")
    _may_make, _may_drop, may_see_others = context.rows("doctor_rights")[0]
    if not may_see_others:
        user = sql.Identifier(context.user).as_string()
        yield warning(
            "how long other users' transactions are open cannot be seen by this user",
            f"grant pg_read_all_stats to {user}",
        )


def _prepared(context: CheckContext) -> Iterator[CheckProblem]:
    yield from context.problems("prepared transactions")


def _slots(context: CheckContext) -> Iterator[CheckProblem]:
    yield from context.problems("replication slots")
    for holder in context.overview.holders:
        if holder.kind == "replication slot" and not holds_too_long(holder, context.limits):
            yield warning(f"{holder} holds {'; '.join(holder.holds)}", holder.remedy)


SERVER = (
    Check("server", "a version that is supported, and it can be written to", _version),
    Check("durability", "what is committed survives a crash", _durability),
    Check("isolation", "transactions begin as read committed", _isolation),
    Check("connections", "there is room for more connections", _connections),
    Check("notifications", "LISTEN works through this address", _listen),
    Check("clocks", "the clocks agree", _clock),
)
HELD_UP = (
    Check("transactions", "no open transaction holds anything up", _transactions),
    Check("prepared transactions", "none holds anything up", _prepared),
    Check("replication slots", "none keeps rows or WAL for nobody", _slots),
)
