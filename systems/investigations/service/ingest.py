"""Stores what producers send. One transaction: which lines are new, and their events; answered when it is committed."""

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
    """What became of one line: `stored` now, or a `duplicate` of one that is stored already."""

    event_id: UUID
    status: Literal["stored", "duplicate"]


class Stored(msgspec.Struct, frozen=True):
    """What became of a request, line by line in its order."""

    results: list[Outcome]
    stored: int
    duplicates: int


# The row lock lets batches in side by side and makes a closing wait for them, and them for it. Names are written in one
# order by everybody: two batches with the same lines wait for each other, and never in a circle.
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
# Asked only when the investigation is closed, and in a statement of its own: the one that waited for the closing would
# not see lines that were stored while it waited.
_KNOWN: Final = """
    select count(*) from investigations.stored_log
    where investigation_id = %(id)s and event_id = any(%(event_ids)s::uuid[])
"""


async def store(connection: Connection, investigation_id: str, logs: Sequence[ProducedLog]) -> Stored:
    """Store the lines that are new. Refused as a whole when one of them cannot be stored.

    A closed investigation takes nothing new; but whoever has lost the answer to a request may still ask for it again.
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
    """Those names that nobody has used in this investigation; from now on they are used."""
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
    """Of lines with one name in one batch, the first is stored."""
    outcomes = []
    for event in events:
        event_id = event.payload.event_id
        outcomes.append(Outcome(event_id, "stored" if event_id in fresh else "duplicate"))
        fresh.discard(event_id)
    return outcomes
