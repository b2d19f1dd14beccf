"""Prepares a replay: chooses the events, checks that it is allowed, and records the set. The driver then runs it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from aftercommit.errors import PastHorizon, RepairError, SelectionError, SetChanged
from aftercommit.event.envelope import rfc3339
from aftercommit.operate.repair.letters import unknown_consumer
from aftercommit.operate.repair.looking import BUDGET, COUNTED, search_letters, within_look
from aftercommit.operate.repair.operations import TO_OWNER, TO_TRANSPORT, record
from aftercommit.operate.repair.selection import RELAY, Selection
from aftercommit.operate.repair.session import RepairSession
from aftercommit.outbox.handlers import ANY_TYPE


@dataclass(frozen=True, slots=True)
class Preview:
    """What a replay would do. Of `total` items, `handled` are skipped unless they are to be handled again.

    `past_horizon` counts the items older than the inbox, so that nobody knows whether they were handled. If not
    `is_exact`, there are at least `total` items, and the other counts are of these. `selection` is what was looked at:
    for a condition without an index not the whole log (`looked_at_all`), but the positions in it.
    """

    target: str
    total: int
    events: int
    open_letters: int
    handled: int
    past_horizon: int
    horizon: datetime | None
    first_position: int | None
    last_position: int | None
    first_created_at: datetime | None
    last_created_at: datetime | None
    types: Sequence[tuple[str, int]]
    is_exact: bool = True
    looked_at_all: bool = True
    selection: Selection = field(default_factory=Selection)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a replay: at most `per_second` items; `again`: also handled ones; `past_horizon`: also unknown ones.

    `expected` is the number of items that the operator has confirmed.
    """

    per_second: float | None = None
    again: bool = False
    past_horizon: bool = False
    expected: int | None = None

    def __post_init__(self) -> None:
        """Refuse a rate that is not a positive number."""
        if self.per_second is not None and not 0 < self.per_second < float("inf"):
            raise RepairError(f"per_second={self.per_second!r} is not a rate: give a positive number")


@dataclass(frozen=True, slots=True)
class _Set:
    """The statement that chooses the items, with its parameters."""

    target: str
    selection: Selection
    chosen: sql.Composable
    parameters: dict[str, Any]
    keeps_inbox: bool = True
    missed_some: bool = False


async def preview(
    session: RepairSession, selection: Selection, to: str | None, *, again: bool = False, exact: bool = True
) -> Preview:
    """Count what a replay would do. Changes nothing. Must run in a transaction."""
    if exact:
        return replace(await _preview(session, await _set(session, selection, to), again), selection=selection)
    looked_at, is_all = await within_look(session, selection)
    await session.rows("preview_plan", {})
    if is_all and not selection.is_of_letters:
        with suppress(psycopg.errors.QueryCanceled):
            async with session.connection.transaction():
                await session.rows("preview_budget", {"budget": BUDGET})
                found = await _preview(session, await _set(session, selection, to, exact=False), again)
                return replace(found, selection=selection)
        looked_at, is_all = await within_look(session, selection, searched=True)
    chosen = await _set(session, looked_at, to, exact=False)
    return replace(await _preview(session, chosen, again), selection=looked_at, looked_at_all=is_all)


async def start(
    session: RepairSession, selection: Selection, to: str | None, options: ReplayOptions, *, by: str, reason: str
) -> UUID:
    """Record the operation and its set of events. PastHorizon if events might be handled twice."""
    frozen = await _set(session, selection, to)
    _refuse_again(frozen, options)
    await session.rows("hold_horizon", {})
    found = await _preview(session, frozen, options.again)
    if found.past_horizon and found.horizon is not None and not options.past_horizon:
        # With `again` one consumer is meant to handle them again, but behind the bus the event reaches the others too.
        by_whom = f" by consumers other than {frozen.target!r}" if options.again else ""
        raise PastHorizon(
            f"{found.past_horizon} of {found.total} events were published before {rfc3339(found.horizon)}. The inbox "
            f"does not go back that far, so they might be handled twice{by_whom}. Leave them out "
            f"(--since {rfc3339(found.horizon)}), or accept that with --past-horizon",
            found.past_horizon,
        )
    detail = {"again": options.again, "past_horizon": options.past_horizon}
    operation_id = await record(
        session,
        "replay",
        frozen.target,
        selection,
        by=by,
        reason=reason,
        detail=detail,
        per_second=options.per_second,
        status="running",
    )
    (total,) = await session.row("freeze", {**frozen.parameters, "id": operation_id}, chosen=frozen.chosen)
    _refuse_others(total, options.expected)
    return operation_id


async def _preview(session: RepairSession, chosen: _Set, again: bool) -> Preview:
    details = session.statements.part("item_details")
    parts = {name: session.statements.part(name) for name in ("is_past_horizon", "is_wanted_again")}
    parameters = {**chosen.parameters, "again": again, "to_owner": chosen.target == TO_OWNER}
    row = await session.row("preview", parameters, chosen=chosen.chosen, details=details, **parts)
    *counts, names, numbers, copies = row
    most = chosen.parameters["most"]
    is_exact = not chosen.missed_some and (most is None or (copies or 0) < most)
    return Preview(*(chosen.target, *counts, list(zip(names, numbers, strict=True)), is_exact))


async def _set(session: RepairSession, selection: Selection, to: str | None, *, exact: bool = True) -> _Set:
    target = to or (TO_OWNER if selection.is_of_letters else None)
    if target is None:
        raise RepairError(
            "events of the log need a target: give to='consumer-name' or to='@transport' (--to NAME, "
            "--through-transport)"
        )
    if selection.is_of_letters:
        return await _letters(session, selection, target, exact)
    if target == TO_OWNER:
        raise SelectionError(
            "only dead letters have an owner: choose them by consumer, error class or status, or give `to`"
        )
    if selection.is_everything:
        raise SelectionError("the selection is empty: to replay the whole log, give from_position=1")
    if target == TO_TRANSPORT:
        return _for_transport(session, selection, target, None, None, exact)
    return await _for_consumer(session, selection, target, exact)


async def _letters(session: RepairSession, selection: Selection, target: str, exact: bool) -> _Set:
    if target not in (TO_OWNER, TO_TRANSPORT):
        if selection.consumer not in (None, target):
            raise SelectionError(
                f"dead letters of {selection.consumer!r} cannot be replayed to {target!r}: choose events of the log "
                "instead, by type, aggregate, scope, time or position"
            )
        selection, target = replace(selection, consumer=target), TO_OWNER
    selection = selection if selection.statuses else replace(selection, statuses=("parked",))
    search = await search_letters(session, selection, wanted=COUNTED, exact=exact)
    chosen = session.statements.part("chosen_letters", **search.parts(session, selection))
    parameters = {**search.parameters, "to_transport": target == TO_TRANSPORT, "most": _most(exact)}
    return _Set(target, selection, chosen, parameters, missed_some=await search.missed_some(session))


def _most(exact: bool) -> int | None:
    return None if exact else COUNTED


async def _for_consumer(session: RepairSession, selection: Selection, name: str, exact: bool) -> _Set:
    row = await session.row("consumer_of", {"consumer": name})
    declared = session.outbox.consumers.get(name) if session.outbox is not None else None
    if row is None:
        known = [each[0] for each in await session.rows("known_owners", {})]
        if declared is None and (name not in known or name == RELAY):
            raise RepairError(unknown_consumer(name, known))
        declared_types = declared.types if declared is not None else None
        return _for_transport(session, selection, name, name, declared_types, exact)
    checkpoint, taken, inbox = row
    keeps_inbox = declared.inbox if declared is not None else inbox
    types = None if taken == [ANY_TYPE] else taken
    chosen = session.statements.part("chosen_for_consumer", which=session.which_events(selection))
    parameters = {"target": name, "checkpoint": checkpoint, "taken": types, "most": _most(exact)}
    return _Set(name, selection, chosen, {**session.parameters(selection), **parameters}, keeps_inbox)


def _for_transport(
    session: RepairSession,
    selection: Selection,
    target: str,
    consumer: str | None,
    taken: Sequence[str] | None,
    exact: bool,
) -> _Set:
    chosen = session.statements.part(
        "chosen_for_transport",
        which=session.which_events(selection),
        which_rows=session.which_events(selection, position="null::bigint"),
    )
    parameters = {
        **session.parameters(selection),
        "target": consumer,
        "taken": list(taken) if taken is not None else None,
        "most": _most(exact),
    }
    return _Set(target, selection, chosen, parameters)


def _refuse_others(total: int, expected: int | None) -> None:
    if expected is not None and total != expected:
        raise SetChanged(
            f"the selection has {total} items now, and had {expected} when it was counted: check it again, and give "
            f"expected={total} to replay all of them",
            expected,
            total,
        )


def _refuse_again(chosen: _Set, options: ReplayOptions) -> None:
    if options.again and chosen.target == TO_TRANSPORT:
        raise RepairError(
            "through the transport, an event reaches every consumer, so `again` would affect all of them: name the one "
            "that is to handle it again with --to NAME"
        )
    if not chosen.keeps_inbox and not options.again:
        raise RepairError(
            f"consumer {chosen.target!r} is declared with inbox=False, so it would handle all of these again. Give "
            "again=True (--again) to accept that"
        )
