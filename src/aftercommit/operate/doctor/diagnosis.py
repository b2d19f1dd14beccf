"""Runs the checks in order and collects their findings."""

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Any

import psycopg

from aftercommit.clock import utc_now
from aftercommit.errors import AftercommitError
from aftercommit.operate.doctor.findings import Check, CheckContext, Finding, Level
from aftercommit.operate.doctor.flow import FLOW
from aftercommit.operate.doctor.server import SERVER, STATE
from aftercommit.operate.doctor.tables import MIGRATIONS, TABLES
from aftercommit.operate.health import HealthLimits
from aftercommit.operate.overview import explained
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import Shape

_GRAVE = (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
_AGAIN = "fix that, and run this again"

CHECKS = (*SERVER, MIGRATIONS, *TABLES, *STATE, *FLOW)

ChooseShape = Callable[[psycopg.Connection[Any]], Shape]


def diagnose(
    database: Database,
    choose_shape: ChooseShape,
    *,
    declared: Collection[str] | None = None,
    limits: HealthLimits | None = None,
    users_by_header: bool = False,
    now: Callable[[], datetime] = utc_now,
) -> list[Finding]:
    """The findings of all checks; without a connection, only that finding.

    `choose_shape` returns the outbox, given the connection. `declared` has the consumers that the application declares,
    if it is known. `limits` are those of `status`. `users_by_header` means that readers are identified by `X-User-Id`.
    """
    try:
        connection = database.connect_sync()
    except AftercommitError as error:
        return [Finding("connection", "problem", str(error), "the other checks need a connection: fix this first")]
    with connection:
        at = f"{database.safe_dsn}, as user {connection.info.user!r}"
        version = connection.info.parameter_status("server_version") or "of an unknown version"
        found = [Finding("connection", "ok", f"PostgreSQL {version} at {at}")]
        try:
            shape = choose_shape(connection)
            context = CheckContext(
                connection, database, shape, declared, now, limits or HealthLimits(), users_by_header
            )
        except AftercommitError as error:
            return [*found, Finding("outbox", "problem", str(error), "name the outbox")]
        except psycopg.Error as error:
            said = f"the search for outboxes failed: {_said(error)}"
            return [*found, Finding("outbox", "problem", said, _AGAIN)]
        return [*found, *_all(context)]


def _all(context: CheckContext) -> Iterator[Finding]:
    for check in CHECKS:
        found = list(_one(context, check))
        yield from found
        if check is MIGRATIONS and any(each.level == "problem" for each in found):
            # The other checks need the tables.
            return


def _one(context: CheckContext, check: Check) -> Iterator[Finding]:
    found = []
    try:
        with explained(context.connection, context.shape), context.connection.transaction():
            context.rows("overview_patience")
            for trouble in check.look(context):
                found.append(Finding(check.name, trouble.level, trouble.found, trouble.remedy))
    except (psycopg.Error, AftercommitError) as error:
        level: Level = "problem" if _is_grave(context, error) else "warning"
        found.append(Finding(check.name, level, f"the check failed: {_said(error)}", _AGAIN))
    yield from found or [Finding(check.name, "ok", check.fine)]


def _is_grave(context: CheckContext, error: Exception) -> bool:
    """Whether the error would also stop relays and workers, or hides everything else."""
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    return context.connection.closed or isinstance(cause, _GRAVE)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())
