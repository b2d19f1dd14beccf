"""Moves the checkpoint of a consumer of the log by hand, back to handle events again or ahead to skip them.

No worker may hold the consumer meanwhile. With `force`, its worker is fenced and starts over from the new position.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal
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
"""The oldest event in the log, the end of the log, after a position, or before the events published from a time on."""

_NOTHING: Final = Selection()


@dataclass(frozen=True, slots=True)
class SeekResult:
    """A checkpoint that was moved, or (`dry_run`) would be, and the events between the old and the new position.

    `events` counts the events in between that the consumer takes. Of these, `handled` are in its inbox; `lettered` are
    not, but have an open dead letter, which is retried wherever the checkpoint is; `unknown` are older than the inbox,
    so nobody knows whether they were handled. `worker` held the consumer. If not `keeps_inbox`, all events after the
    new position are handled again.
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
        """Whether the consumer reads events again; otherwise it skips some."""
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
    """Move the checkpoint, and record it."""
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
            f"consumer {consumer!r} has no checkpoint: only consumers that follow the log have one. Known consumers: "
            f"{', '.join(known) or 'none'}"
        )
    return _Checkpoint(*row)


async def _hold(session: RepairSession, consumer: str) -> _Checkpoint:
    """The checkpoint, locked until the transaction ends; waits at most PATIENCE seconds for a running handler."""
    await session.rows("wait_briefly", {"patience": f"{PATIENCE * 1000:.0f}ms"})
    try:
        await session.rows("hold_horizons", {})
        await session.rows("hold_consumer", {"consumer": consumer})
    except psycopg.errors.LockNotAvailable as problem:
        raise RepairError(
            f"consumer {consumer!r} has been handling events for {PATIENCE:g} s: nothing was moved. Try again later, "
            "or stop the worker"
        ) from problem
    return await _checkpoint(session, consumer)


def _refuse_held(consumer: str, found: _Checkpoint, force: bool) -> None:
    if found.worker is not None and not force:
        raise ConsumerNameTaken(
            f"{found.worker} is running consumer {consumer!r}: stop that worker first, or give force=True (--force); "
            "it then starts over from the new position"
        )


async def _position(session: RepairSession, to: SeekTarget) -> int:
    """The new checkpoint: the position after which the consumer continues."""
    first, tip = await session.row("ends_of_log", {})
    if to == "start":
        return int(first)
    if to == "end":
        return int(tip)
    if isinstance(to, datetime):
        return await _before(session, to)
    if not isinstance(to, int) or isinstance(to, bool):
        raise RepairError(f"{to!r:.60} is not a place in the log: give 'start', 'end', a position or a datetime")
    if not first <= to <= tip:
        raise RepairError(
            f"position {to} is not in the log, which has {first + 1} to {tip}: give {first} ('start') to {tip} ('end')"
        )
    return to


async def _before(session: RepairSession, moment: datetime) -> int:
    if moment.tzinfo is None:
        raise RepairError(f"{moment} has no time zone: add one, like {rfc3339(moment.astimezone())}")
    (position,) = await session.row("position_before", {"moment": moment})
    return int(position)
