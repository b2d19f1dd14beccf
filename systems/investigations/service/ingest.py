"""Stores log lines: in one transaction, finds the new lines and publishes their events."""

from collections.abc import Sequence
from typing import Final, Literal
from uuid import UUID

import msgspec

from aftercommit import Draft
from aftercommit.errors import ContractViolation
from aftercommit.postgres import uuid_array
from systems.host.http import Connection, changing
from systems.investigations.events import outbox
from systems.investigations.service.errors import Closed, NotThere
from systems.investigations.service.produced_logs import ProducedLog, drafts, first_refused


class Outcome(msgspec.Struct, frozen=True):
    """The result for one line: `stored` now, or a `duplicate` of a stored line."""

    event_id: UUID
    status: Literal["stored", "duplicate"]


class Stored(msgspec.Struct, frozen=True):
    """The result of a request, line by line."""

    results: list[Outcome]
    stored: int
    duplicates: int


# The shared row lock lets batches run in parallel, and makes closing wait for them and them for closing. Ids are
# inserted in a fixed order, so that two batches with the same lines cannot deadlock.
_ADMIT: Final = """
    with investigation as (
        select status from investigations.investigation where id = %(id)s for share
    ),
    fresh as (
        insert into investigations.stored_log (investigation_id, event_id)
        select %(id)s, given.event_id
        from investigation, unnest(%(event_ids)s::uuid[]) as given (event_id)
        where investigation.status = 'open'
        order by given.event_id
        on conflict do nothing
        returning event_id
    )
    select (select status from investigation), array(select event_id from fresh)
"""
# Runs only if the investigation is closed. It must be a separate statement: one that waited for the closing would not
# see lines stored meanwhile.
_KNOWN: Final = """
    select count(*) from investigations.stored_log
    where investigation_id = %(id)s and event_id = any(%(event_ids)s::uuid[])
"""


async def store(connection: Connection, investigation_id: str, logs: Sequence[ProducedLog]) -> Stored:
    """Store the new lines, or none of them if one cannot be stored.

    A closed investigation accepts no new lines, but a repeated request for stored lines still gets its answer.
    """
    events = drafts(logs, investigation_id)
    try:
        async with changing(connection):
            fresh = await _admit(connection, investigation_id, [event.payload.event_id for event in events])
            results = _outcomes(events, fresh)
            new = [event for event, outcome in zip(events, results, strict=True) if outcome.status == "stored"]
            await outbox.publish(connection, new)
    except ContractViolation as problem:
        refused = first_refused(events)
        if refused is None:
            raise
        raise refused from problem
    return Stored(results, len(new), len(events) - len(new))


async def _admit(connection: Connection, investigation_id: str, event_ids: Sequence[UUID]) -> set[UUID]:
    """Record these ids, and return those that are new in this investigation."""
    parameters = {"id": investigation_id, "event_ids": uuid_array(event_ids)}
    row = await (await connection.execute(_ADMIT, parameters)).fetchone()
    assert row is not None
    status, fresh = row
    if status is None:
        raise NotThere(investigation_id)
    if status != "open":
        known = await (await connection.execute(_KNOWN, parameters)).fetchone()
        if known is None or known[0] < len(set(event_ids)):
            raise Closed(investigation_id)
    return set(fresh)


def _outcomes(events: Sequence[Draft], fresh: set[UUID]) -> list[Outcome]:
    """One result per line. Of lines with the same id in one batch, the first is stored."""
    outcomes = []
    for event in events:
        event_id = event.payload.event_id
        outcomes.append(Outcome(event_id, "stored" if event_id in fresh else "duplicate"))
        fresh.discard(event_id)
    return outcomes
