"""How far a question looks: what an index finds is counted up to a limit, anything else is searched in part.

Actions never use these limits. They change everything that their selection matches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from psycopg import sql

from aftercommit.operate.repair.selection import OPEN, STATUSES, Selection
from aftercommit.operate.repair.session import RepairSession

COUNTED: Final = 10_000
"""A question that is not exact counts no more matches than this."""
LOOKED: Final = 100_000
"""A question that is not exact looks at no more events or letters than this, where no index has its condition."""
BUDGET: Final = "250ms"
"""How long an index may take to answer a question that is not exact. Then a part of the log is searched."""


@dataclass(frozen=True, slots=True)
class LetterSearch:
    """Where to look for letters: the part of a statement, its parameters, and whether that can leave some out."""

    letters: sql.SQL
    parameters: dict[str, Any]
    is_bounded: bool = False

    def parts(self, session: RepairSession, selection: Selection) -> dict[str, sql.Composable]:
        """The parts of a statement that reads the selected letters."""
        return {"letters": self.letters, "which": session.which_letters(selection)}

    async def missed_some(self, session: RepairSession) -> bool:
        """Whether there are letters at which it has not looked."""
        return self.is_bounded and bool((await session.row("has_more_letters", self.parameters))[0])


async def search_letters(
    session: RepairSession, selection: Selection, *, wanted: int, looked: int | None = None, exact: bool = False
) -> LetterSearch:
    """Where to look for `wanted` letters of a selection, among at most `looked`.

    By owner and status, letters have an index in the order in which they were last seen. Any other condition, except
    keys, has none: then the letters of each owner that were last seen are searched.
    """
    parameters = session.parameters(selection)
    by_aggregate = selection.aggregate_id is not None and set(selection.statuses or STATUSES) <= set(OPEN)
    if exact or selection.event_ids or by_aggregate:
        return LetterSearch(session.statements.part("all_letters"), parameters)
    lines = [
        (owner, status)
        for owner, status in await session.rows("letter_lines", {})
        if selection.consumer in (None, owner) and status in (selection.statuses or STATUSES)
    ]
    is_bounded = not replace(selection, consumer=None, statuses=()).is_everything
    most = LOOKED if looked is None else looked
    share = max(1, most // max(1, len(lines)))
    is_bounded = is_bounded or wanted > most
    look = share if is_bounded else wanted
    places = {"owners": [owner for owner, _ in lines], "line_statuses": [status for _, status in lines], "look": look}
    return LetterSearch(session.statements.part("letters_by_line"), {**parameters, **places}, is_bounded)


async def within_look(
    session: RepairSession, selection: Selection, *, searched: bool = False
) -> tuple[Selection, bool]:
    """The part of a selection of events at which a question looks, as positions; and whether it is all of it.

    Only conditions without an index need a bound (payload values, most scopes, and a type of aggregates alone), and
    those that have to be `searched` because the index leaves too many events.
    """
    scope = await _indexed_scope(session, selection)
    if not (searched or _needs_look(selection, scope)):
        return selection, True
    low = selection.from_position or 1
    if selection.since is not None:
        (before,) = await session.row("position_before", {"moment": selection.since})
        low = max(low, before + 1)
    narrow = Selection(aggregate_id=selection.aggregate_id, scope={} if selection.aggregate_id else scope)
    parameters = {**session.parameters(narrow), "low": low, "look": LOOKED}
    edge, head = await session.row("edge_of_look", parameters, which=session.which_events(narrow))
    high = head if selection.to_position is None else selection.to_position
    if edge is None or edge > high:
        return selection, True
    return replace(selection, from_position=low, to_position=edge - 1), False


async def _indexed_scope(session: RepairSession, selection: Selection) -> Mapping[str, Any]:
    """The part of the selected scope by which the log has an index."""
    if not selection.scope:
        return {}
    parameters = {"names": list(selection.scope), "schema": session.shape.schema}
    indexed = [name for (name,) in await session.rows("indexed_scopes", parameters)]
    return {name: value for name, value in selection.scope.items() if name in indexed}


def _needs_look(selection: Selection, indexed_scope: Mapping[str, Any]) -> bool:
    if selection.is_of_letters or selection.event_ids or selection.correlation_id:
        return False
    if selection.where:
        return True
    by_index = (selection.types, selection.aggregate_id, indexed_scope, selection.since, selection.until)
    return bool(selection.aggregate_type is not None or selection.scope) and not any(by_index)


def letters_of_each(groups: Sequence[Any]) -> int:
    """How many letters of each of these groups are counted."""
    return min(COUNTED, max(100, 2 * LOOKED // max(1, len(groups))))
