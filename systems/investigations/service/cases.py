"""Opens, finds, lists and closes investigations. Each change and its event are one transaction."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from systems.host.http import Connection, changing
from systems.investigations.events import InvestigationClosed, InvestigationOpened, outbox
from systems.investigations.service.errors import AlreadyThere, NotThere

# Characters that need no escaping in URLs and permissions.
INVESTIGATION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
# A user who may read few of many investigations gets a short page and a cursor instead of a long wait.
LOOKED_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Case:
    """One investigation. `number` is its position in the list of all."""

    investigation_id: str
    number: int
    title: str
    status: Literal["open", "closed"]
    created_at: datetime
    created_by: str
    closed_at: datetime | None
    closed_by: str | None


@dataclass(frozen=True, slots=True)
class Cases:
    """Investigations, newest first. `next_before` continues where this page stopped."""

    cases: list[Case]
    next_before: int | None


_OPEN: Final = """
    insert into investigations.investigation (id, title, created_by) values (%s, %s, %s)
    on conflict (id) do nothing
    returning id, number, title, status, created_at, created_by, closed_at, closed_by
"""
# The id comes from the row's number. If a caller has already used that id, the next number is tried.
_OPEN_UNNAMED: Final = """
    with drawn as (select nextval(pg_get_serial_sequence('investigations.investigation', 'number')) as number)
    insert into investigations.investigation (id, number, title, created_by) overriding system value
    select 'INV-' || number, number, %s, %s from drawn
    on conflict (id) do nothing
    returning id, number, title, status, created_at, created_by, closed_at, closed_by
"""
_ONE: Final = """
    select id, number, title, status, created_at, created_by, closed_at, closed_by
    from investigations.investigation where id = %s
"""
_SOME: Final = """
    select id, number, title, status, created_at, created_by, closed_at, closed_by
    from investigations.investigation where number < %s order by number desc limit %s
"""
_CLOSE: Final = """
    update investigations.investigation set status = 'closed', closed_at = clock_timestamp(), closed_by = %s
    where id = %s and status = 'open'
    returning id, number, title, status, created_at, created_by, closed_at, closed_by
"""


async def open_case(connection: Connection, title: str, by: str, investigation_id: str | None = None) -> Case:
    """Open an investigation with the given id or the next free `INV-…`."""
    async with changing(connection):
        case = await _opened(connection, title, by, investigation_id)
        await outbox.publish(connection, InvestigationOpened(case.investigation_id, case.title, by))
    return case


async def _opened(connection: Connection, title: str, by: str, investigation_id: str | None) -> Case:
    if investigation_id is not None:
        row = await (await connection.execute(_OPEN, (investigation_id, title, by))).fetchone()
        if row is None:
            raise AlreadyThere(investigation_id)
        return Case(*row)
    while True:
        row = await (await connection.execute(_OPEN_UNNAMED, (title, by))).fetchone()
        if row is not None:
            return Case(*row)


async def find_case(connection: Connection, investigation_id: str) -> Case:
    """The investigation with this id."""
    row = await (await connection.execute(_ONE, (investigation_id,))).fetchone()
    if row is None:
        raise NotThere(investigation_id)
    return Case(*row)


async def list_cases(
    connection: Connection, visible: Callable[[str], bool], *, before: int | None, limit: int
) -> Cases:
    """Up to `limit` visible investigations, newest first."""
    start = before if before is not None else 2**63 - 1
    rows = await (await connection.execute(_SOME, (start, LOOKED_AT_ONCE))).fetchall()
    found: list[Case] = []
    for row in rows:
        case = Case(*row)
        if visible(case.investigation_id):
            found.append(case)
            if len(found) == limit:
                return Cases(found, case.number)
    return Cases(found, rows[-1][1] if len(rows) == LOOKED_AT_ONCE else None)


async def close_case(connection: Connection, investigation_id: str, by: str) -> Case:
    """Accept no more logs. Waits for running batches. Does nothing if the investigation is closed."""
    async with changing(connection):
        row = await (await connection.execute(_CLOSE, (by, investigation_id))).fetchone()
        if row is None:
            return await find_case(connection, investigation_id)
        await outbox.publish(connection, InvestigationClosed(investigation_id, by))
    return Case(*row)
