"""Runs the checks in order and collects what they find. A check that cannot look is a finding of its own."""

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Any

import psycopg

from aftercommit.clock import utc_now
from aftercommit.errors import AftercommitError
from aftercommit.operate.doctor.findings import Check, CheckContext, Finding, Level
from aftercommit.operate.doctor.flow import FLOW
from aftercommit.operate.doctor.lives import LIVES
from aftercommit.operate.doctor.server import HELD_UP, SERVER
from aftercommit.operate.doctor.service_tokens import SERVICE_TOKENS
from aftercommit.operate.doctor.tables import MIGRATIONS, TABLES
from aftercommit.operate.health import HealthLimits
from aftercommit.operate.overview import explained
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import Shape

_GRAVE = (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
_AGAIN = "mend that, and ask again"

CHECKS = (*SERVER, MIGRATIONS, *TABLES, *LIVES, *HELD_UP, *FLOW, SERVICE_TOKENS)

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
    """Everything that the checks find; where there is no connection, that alone.

    `choose_shape` names the outbox once connected; `declared` are the consumers of the application, where it is known.
    `limits` say what of the flow is a problem, as for `status`; `users_by_header`, that readers are named by
    `X-User-Id`.
    """
    try:
        connection = database.connect_sync()
    except AftercommitError as error:
        return [Finding("connection", "problem", str(error), "until it can be reached, nothing else can be looked at")]
    with connection:
        at = f"{database.safe_dsn}, as user {connection.info.user!r}"
        found = [Finding("connection", "ok", f"PostgreSQL {_version(connection)} at {at}")]
        try:
            shape = choose_shape(connection)
            context = CheckContext(
                connection, database, shape, declared, now, limits or HealthLimits(), users_by_header
            )
        except AftercommitError as error:
            return [*found, Finding("outbox", "problem", str(error), "say which outbox is meant")]
        except psycopg.Error as error:
            said = f"could not be looked for: {_said(error)}"
            return [*found, Finding("outbox", "problem", said, _AGAIN)]
        return [*found, *_all(context)]


def _all(context: CheckContext) -> Iterator[Finding]:
    for check in CHECKS:
        found = list(_one(context, check))
        yield from found
        if check is MIGRATIONS and any(each.level == "problem" for each in found):
            # Of tables that are not there, or not as the code needs them, nothing more can be said.
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
        found.append(Finding(check.name, level, f"could not be looked at: {_said(error)}", _AGAIN))
    yield from found or [Finding(check.name, "ok", check.fine)]


def _is_grave(context: CheckContext, error: Exception) -> bool:
    """Whether what keeps us from looking would keep relays and workers from their work, or hides everything."""
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    return context.connection.closed or isinstance(cause, _GRAVE)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())


def _version(connection: psycopg.Connection[Any]) -> str:
    return connection.info.parameter_status("server_version") or "of an unknown version"
