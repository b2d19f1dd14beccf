"""Feeds the items of a replay to workers and relays, and takes back those that were not tried yet.

`driver` has the parameters by which statements recognise the driver: the operation's id, its token and its lease. All
functions run in the transaction of one step.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from aftercommit.operate.repair.feeding import ReplayItem, ReplayStep, by_way, decide
from aftercommit.operate.repair.operations import TO_OWNER, Operation
from aftercommit.operate.repair.session import RepairSession


async def feed(
    session: RepairSession, operation: Operation, driver: Mapping[str, Any], limit: int
) -> Sequence[ReplayStep]:
    """Feed the next items, at most `limit`, and record their state."""
    parts = {name: session.statements.part(name) for name in ("is_past_horizon", "is_wanted_again")}
    parts["details"] = session.statements.part("item_details")
    parts["event"] = session.statements.part("item_event")
    await session.rows("hold_horizon", {})
    again, to_owner = bool(operation.detail.get("again")), operation.target == TO_OWNER
    wanted = {**driver, "limit": limit, "again": again, "to_owner": to_owner}
    items = [ReplayItem(*row) for row in await session.rows("next_items", wanted, **parts)]
    delivered = [item.event_id for item in items if not item.goes_by_letter]
    if delivered:
        # Lock rows before letters, like the relay. Then read again: now the state of the rows cannot change.
        await session.rows("lock_rows", {"ids": delivered})
        items = [ReplayItem(*row) for row in await session.rows("next_items", wanted, **parts)]
    past_horizon = bool(operation.detail.get("past_horizon"))
    steps = [decide(item, again=again, past_horizon=past_horizon, to_owner=to_owner) for item in items]
    steps = await _deliver(session, await _free(session, steps))
    if known := by_way(steps, "letter"):
        await session.rows("feed_known_letters", _keys(known))
    if new := by_way(steps, "new letter"):
        await session.rows("feed_new_letters", _keys(new))
    await _mark(session, operation, steps, again)
    await session.wake_everybody()
    return steps


async def _free(session: RepairSession, steps: Sequence[ReplayStep]) -> list[ReplayStep]:
    """The steps before the first one whose letter is in use: that one waits, and no other may overtake it."""
    known = by_way(steps, "letter")
    rows = await session.rows("lock_known_letters", _keys(known)) if known else []
    free = {(event_id, consumer) for event_id, consumer in rows}
    return list(takewhile(lambda step: step.way != "letter" or step.item.key in free, steps))


async def _deliver(session: RepairSession, steps: Sequence[ReplayStep]) -> list[ReplayStep]:
    """Deliver through the outbox. An item whose row a relay or an abort has just removed waits for a later step."""
    rows = by_way(steps, "row")
    if not rows:
        return list(steps)
    await session.rows("reopen_deliveries", _keys(rows))
    await session.rows("redeliver", _keys(rows))
    there = {event_id for event_id, *_ in await session.rows("find_rows", _keys(rows))}
    return [step for step in steps if step.way != "row" or step.item.event_id in there]


async def _mark(session: RepairSession, operation: Operation, steps: Sequence[ReplayStep], again: bool) -> None:
    """Record the steps, and remove from the inbox the events that are to be handled again."""
    handled = [step.item.was_handled and (again or step.item.is_wanted_again) for step in steps]
    forgotten = [step.item for step, known in zip(steps, handled, strict=True) if known and step.state == "started"]
    if forgotten:
        await session.rows("forget_handled", _keys(forgotten))
    parameters = {
        "id": operation.id,
        "ordinals": [step.item.ordinal for step in steps],
        "states": [step.state for step in steps],
        "formers": [step.former_status for step in steps],
        "letters": [step.item.known_status for step in steps],
        "attempts": [step.item.attempts for step in steps],
        "handled": handled,
        "notes": [step.note for step in steps],
    }
    await session.rows("mark_items", parameters)


async def take_back(session: RepairSession, driver: Mapping[str, Any]) -> int:
    """Return items that were fed but not tried to their previous state; how many are still being handled."""
    outcomes = session.statements.part("item_outcomes")
    rows = [event_id for event_id, *_ in await session.rows("rows_under_way", driver)]
    letters = [ordinal for ordinal, *_ in await session.rows("letters_under_way", driver, outcomes=outcomes)]
    # Asked while we hold the locks: another replay feeds the same item either before this or afterwards.
    shared = dict(await session.rows("leave_to_others", {**driver, "ids": rows, "ordinals": letters}))
    left = set(shared.values())
    free = [event_id for event_id in rows if event_id not in left]
    mine = {**driver, "ids": free, "ordinals": [ordinal for ordinal in letters if ordinal not in shared]}
    handled = {event_id for event_id, *_ in await session.rows("put_back_handled", mine, outcomes=outcomes)}
    mine["ids"] = [event_id for event_id in free if event_id not in handled]
    withdrawn = [event_id for event_id, *_ in await session.rows("withdraw_rows", mine, outcomes=outcomes)]
    await session.rows("withdraw_letters", mine, outcomes=outcomes)
    ended = {"withdrawn": withdrawn, "handled": list(handled), "shared": list(shared), "held": rows}
    ((in_hand,),) = await session.rows("end_items", {**mine, **ended}, outcomes=outcomes)
    await session.rows("restore_attempts", mine)
    return int(in_hand)


def _keys(items: Sequence[ReplayItem]) -> dict[str, Any]:
    return {
        "ids": [item.event_id for item in items],
        "consumers": [item.consumer for item in items],
        "ordinals": [item.ordinal for item in items],
        "positions": [item.position for item in items],
    }
