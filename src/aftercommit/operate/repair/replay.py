"""A replay before it runs: which events it would take, whether it may, and the frozen set. The driver does the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import sql

from aftercommit.errors import PastHorizon, RepairError, SelectionError, SetChanged
from aftercommit.event.envelope import rfc3339
from aftercommit.operate.repair.operations import TO_OWNER, TO_TRANSPORT, record
from aftercommit.operate.repair.selection import RELAY, Selection
from aftercommit.operate.repair.session import RepairSession
from aftercommit.outbox.handlers import ANY_TYPE


@dataclass(frozen=True, slots=True)
class Preview:
    """What a replay would do. Of `total` items, `handled` ones are skipped unless they are to be handled again.

    `past_horizon` counts those of which the inbox no longer knows whether they were handled.
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


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a replay goes: at most `per_second` items; `again` although they were handled; `past_horizon` knowingly.

    `expected` is how many items the preview had: the operator has agreed to these, and to no others.
    """

    per_second: float | None = None
    again: bool = False
    past_horizon: bool = False
    expected: int | None = None

    def __post_init__(self) -> None:
        """Refuse a rate at which nothing would ever happen."""
        if self.per_second is not None and not 0 < self.per_second < float("inf"):
            raise RepairError(f"a rate of {self.per_second!r} per second is no rate: give a positive number")


@dataclass(frozen=True, slots=True)
class _Set:
    """The statement that chooses the items, with its parameters."""

    target: str
    selection: Selection
    chosen: sql.Composable
    parameters: dict[str, Any]
    keeps_inbox: bool = True


async def preview(session: RepairSession, selection: Selection, to: str | None, *, again: bool = False) -> Preview:
    """Count before anything is done. Nothing is changed."""
    return await _preview(session, await _set(session, selection, to), again)


async def start(
    session: RepairSession, selection: Selection, to: str | None, options: ReplayOptions, *, by: str, reason: str
) -> UUID:
    """Freeze the set and write the operation down; a driver can begin. PastHorizon when it might handle twice."""
    frozen = await _set(session, selection, to)
    _refuse_again(frozen, options)
    await session.rows("hold_horizon", {})
    found = await _preview(session, frozen, options.again)
    if found.past_horizon and found.horizon is not None and not options.past_horizon:
        # To handle them again is what is wanted of one consumer; behind the bus the event passes all the others too.
        by_whom = f" by others than {frozen.target!r}" if options.again else ""
        raise PastHorizon(
            f"{found.past_horizon} of {found.total} events were published before {rfc3339(found.horizon)}, and what "
            f"was handled before then the inbox does not know any more: they might be handled twice{by_whom}. Leave "
            f"them out (--since {rfc3339(found.horizon)}), or accept it with --past-horizon",
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
    row = await session.row("freeze", {**frozen.parameters, "id": operation_id}, chosen=frozen.chosen)
    _refuse_others(row[0], options.expected)
    return operation_id


async def _preview(session: RepairSession, chosen: _Set, again: bool) -> Preview:
    details = session.statements.part("item_details")
    parts = {name: session.statements.part(name) for name in ("is_past_horizon", "is_wanted_again")}
    parameters = {**chosen.parameters, "again": again, "to_owner": chosen.target == TO_OWNER}
    row = await session.row("preview", parameters, chosen=chosen.chosen, details=details, **parts)
    types = await session.rows("preview_types", chosen.parameters, chosen=chosen.chosen, details=details)
    return Preview(*(chosen.target, *row, [(name, count) for name, count in types]))


async def _set(session: RepairSession, selection: Selection, to: str | None) -> _Set:
    target = to or (TO_OWNER if selection.is_of_letters else None)
    if target is None:
        raise RepairError(
            "events of the log are replayed to a consumer or through the transport: say to='consumer-name' or "
            "to='@transport' (--to NAME, --through-transport)"
        )
    if selection.is_of_letters:
        return _letters(session, selection, target)
    if target == TO_OWNER:
        raise SelectionError(
            "only dead letters have an owner: choose them by consumer, error class or status, or say to"
        )
    if selection.is_everything:
        raise SelectionError(
            "a replay of the whole log is not chosen by saying nothing: give from_position=1 to mean it"
        )
    if target == TO_TRANSPORT:
        return _for_transport(session, selection, target, None, None)
    return await _for_consumer(session, selection, target)


def _letters(session: RepairSession, selection: Selection, target: str) -> _Set:
    if target not in (TO_OWNER, TO_TRANSPORT):
        if selection.consumer not in (None, target):
            raise SelectionError(
                f"dead letters of {selection.consumer!r} do not go to {target!r}: choose events of the log instead, by "
                "type, aggregate, scope, time or position"
            )
        selection, target = replace(selection, consumer=target), TO_OWNER
    selection = selection if selection.statuses else replace(selection, statuses=("parked",))
    chosen = session.statements.part("chosen_letters", which=session.which_letters(selection))
    parameters = {**session.parameters(selection), "to_transport": target == TO_TRANSPORT}
    return _Set(target, selection, chosen, parameters)


async def _for_consumer(session: RepairSession, selection: Selection, name: str) -> _Set:
    row = await session.row("consumer_of", {"consumer": name})
    declared = session.outbox.consumers.get(name) if session.outbox is not None else None
    if row is None:
        known = [each[0] for each in await session.rows("known_owners", {})]
        if declared is None and (name not in known or name == RELAY):
            raise RepairError(
                f"consumer {name!r} is not known: there are {', '.join(known) or 'none'}. One behind the bus that has "
                "no dead letters yet is found in your declarations, with --app"
            )
        return _for_transport(session, selection, name, name, declared.types if declared is not None else None)
    checkpoint, taken, inbox = row
    keeps_inbox = declared.inbox if declared is not None else inbox
    types = None if taken == [ANY_TYPE] else taken
    chosen = session.statements.part("chosen_for_consumer", which=session.which_events(selection))
    parameters = {"target": name, "checkpoint": checkpoint, "taken": types}
    return _Set(name, selection, chosen, {**session.parameters(selection), **parameters}, keeps_inbox)


def _for_transport(
    session: RepairSession, selection: Selection, target: str, consumer: str | None, taken: Sequence[str] | None
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
    }
    return _Set(target, selection, chosen, parameters)


def _refuse_others(total: int, expected: int | None) -> None:
    if expected is not None and total != expected:
        raise SetChanged(
            f"the selection has {total} items now, and had {expected} when they were counted: look again, and say "
            f"expected={total} if all of them are meant",
            expected,
            total,
        )


def _refuse_again(chosen: _Set, options: ReplayOptions) -> None:
    if options.again and chosen.target == TO_TRANSPORT:
        raise RepairError(
            "through the transport an event reaches every consumer, and again would mean all of them: say which one is "
            "to handle it again, with --to NAME"
        )
    if not chosen.keeps_inbox and not options.again:
        raise RepairError(
            f"consumer {chosen.target!r} is declared with inbox=False, so nobody knows which of these it has handled: "
            "all of them would be handled again. Say again=True (--again) if that is meant"
        )
