"""A checkpoint is moved by hand: a consumer of the log goes back, or passes over what it is not to handle.

The only place where a checkpoint moves without its events being handled. Nobody may hold the consumer meanwhile:
whoever does is stopped first, or (by `force`) fenced, and then begins from where it was moved to.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import psycopg

from aftercommit.consumer.names import PATIENCE
from aftercommit.errors import ConsumerNameTaken, RepairError
from aftercommit.event.envelope import rfc3339
from aftercommit.operate.repair.operations import record
from aftercommit.operate.repair.selection import Selection
from aftercommit.operate.repair.session import RepairSession
from aftercommit.outbox.handlers import ANY_TYPE

SeekTarget = Literal["start", "end"] | int | datetime
"""Where to: the first event that is kept, the tip, behind a position, or before what was published then or later."""

_NOTHING: Final = Selection()


@dataclass(frozen=True, slots=True)
class SeekResult:
    """A checkpoint that was moved, or (`dry_run`) would be, and what lies between its two places.

    Of the `events` in between that the consumer takes, `handled` ones are in its inbox, and `lettered` ones are not but
    have an open dead letter, by which they are handled wherever the checkpoint is. Of `unknown` ones, which are from
    before the inbox's horizon, nobody knows. `worker` held the consumer. `keeps_inbox`: without one, everything else
    behind the new place is handled again.
    """

    consumer: str
    before: int
    after: int
    events: int
    handled: int
    lettered: int
    unknown: int
    keeps_inbox: bool
    worker: str | None
    operation_id: UUID | None = None
    dry_run: bool = False

    @property
    def goes_back(self) -> bool:
        """Whether events come by again; otherwise some are passed over."""
        return self.after < self.before


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    position: int
    worker: str | None
    taken: list[str]
    inbox: bool


async def seek(
    session: RepairSession,
    consumer: str,
    to: SeekTarget,
    *,
    by: str,
    reason: str,
    force: bool = False,
    dry_run: bool = False,
) -> SeekResult:
    """Move the checkpoint; on record with who and why."""
    found = await _checkpoint(session, consumer)
    if not dry_run:
        _refuse_held(consumer, found, force)
        found = await _hold(session, consumer)
        _refuse_held(consumer, found, force)
    after = await _position(session, to)
    between = {"low": min(found.position, after), "high": max(found.position, after), "consumer": consumer}
    taken = None if found.taken == [ANY_TYPE] else found.taken
    events, handled, lettered, unknown = await session.row("events_between", {**between, "taken": taken})
    counted = {"events": events, "handled": handled, "lettered": lettered, "unknown": unknown}
    sought = SeekResult(
        consumer, found.position, after, **counted, keeps_inbox=found.inbox, worker=found.worker, dry_run=dry_run
    )
    if dry_run:
        return sought
    await session.rows("move_by_hand", {"consumer": consumer, "position": after})
    detail = {"from": found.position, "to": after, "forced": found.worker is not None}
    operation_id = await record(session, "seek", consumer, _NOTHING, by=by, reason=reason, detail=detail)
    await session.wake_everybody()
    return replace(sought, operation_id=operation_id)


async def _checkpoint(session: RepairSession, consumer: str) -> _Checkpoint:
    row = await session.row("checkpoint_of", {"consumer": consumer})
    if row is None:
        known = [each[0] for each in await session.rows("consumers", {})]
        raise RepairError(
            f"consumer {consumer!r} has no checkpoint, as only consumers that follow the log have one: there are "
            f"{', '.join(known) or 'none'}"
        )
    return _Checkpoint(*row)


async def _hold(session: RepairSession, consumer: str) -> _Checkpoint:
    """The same, held until the transaction ends; what a handler has in hand is waited for, but not for ever."""
    await session.rows("wait_briefly", {"patience": f"{PATIENCE * 1000:.0f}ms"})
    try:
        await session.rows("hold_horizons", {})
        checkpoint = session.statements.part("checkpoint_of")
        await session.rows("hold_consumer", {"consumer": consumer}, checkpoint=checkpoint)
    except psycopg.errors.LockNotAvailable as problem:
        raise RepairError(
            f"consumer {consumer!r} has events in hand, and has had for {PATIENCE:g} s: nothing was moved. Try again "
            "when they are handled, or stop the worker"
        ) from problem
    return await _checkpoint(session, consumer)


def _refuse_held(consumer: str, found: _Checkpoint, force: bool) -> None:
    if found.worker is not None and not force:
        raise ConsumerNameTaken(
            f"consumer {consumer!r} is at work ({found.worker}): stop that worker first, or say force=True (--force) "
            "to take the consumer away from it; it then begins from the new place"
        )


async def _position(session: RepairSession, to: SeekTarget) -> int:
    """The checkpoint that is meant: the position behind which the consumer goes on."""
    first, tip = await session.row("ends_of_log", {})
    if to == "start":
        return int(first)
    if to == "end":
        return int(tip)
    if isinstance(to, datetime):
        return await _before(session, to)
    if not isinstance(to, int) or isinstance(to, bool):
        raise RepairError(f"{to!r:.60} is no place of the log: say 'start', 'end', a position or a moment")
    if not first <= to <= tip:
        raise RepairError(
            f"position {to} is not in the log, of which {first + 1} to {tip} are kept: a checkpoint can be from "
            f"{first} ('start') to {tip} ('end')"
        )
    return to


async def _before(session: RepairSession, moment: datetime) -> int:
    if moment.tzinfo is None:
        raise RepairError(f"{moment} has no time zone: say which, like {rfc3339(moment.astimezone())}")
    row: Any = await session.row("position_before", {"moment": moment})
    return int(row[0])
