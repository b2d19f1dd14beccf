"""Drives a replay: feeds its frozen set, window by window, and counts what becomes of it. Handles nothing itself.

Each step is one transaction that begins with the operation's row: its lock and the driver's token keep others out, so
that a driver can be killed at any point and another goes on from there.
"""

import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final
from uuid import UUID, uuid4

from aftercommit.errors import OperationBusy
from aftercommit.operate.repair.feeding import ReplayItem, ReplayPace, ReplayStep, by_way, decide
from aftercommit.operate.repair.operations import TO_OWNER, Operation, find_operation, who_is_missing
from aftercommit.operate.repair.session import RepairSession
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.commits import committed_async
from aftercommit.postgres.database import Database
from aftercommit.postgres.deadlocks import past_deadlocks
from aftercommit.postgres.resilience import close_quietly
from aftercommit.postgres.shape import Shape
from aftercommit.service import Probe, Waker, wait_for_any
from aftercommit.text import utc_second

LEASE: Final = 10.0
SHORTEST_LOOK: Final = 0.05
LONGEST_LOOK: Final = 0.5
# When nothing has moved for so long, somebody should be told who is missing.
PATIENCE: Final = 3.0


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How a replay stands. `missing` says in words who does not work, when nothing moves."""

    operation_id: UUID
    status: str
    total: int
    done: int = 0
    skipped: int = 0
    failed: int = 0
    under_way: int = 0
    missing: Sequence[str] = ()

    @property
    def waiting(self) -> int:
        """Items whose turn has not come."""
        return self.total - self.done - self.skipped - self.failed - self.under_way

    @property
    def is_over(self) -> bool:
        """Whether the operation has ended."""
        return self.status in ("done", "aborted")


class ReplayDriver:
    """One process at work on one replay."""

    def __init__(
        self,
        declared: Outbox | Shape,
        database: Database,
        operation_id: UUID,
        *,
        on_progress: Callable[[ReplayProgress], None] | None = None,
        lease_seconds: float = LEASE,
        probe: Probe | None = None,
    ) -> None:
        """Not begun. `lease_seconds` bounds the time until another driver can go on after a crash."""
        self.stopping = Waker()
        self._declared = declared
        self._database = database
        self._id = operation_id
        self._on_progress = on_progress
        strict = isinstance(declared, Outbox) and declared.ordering == "strict"
        name = f"{socket.gethostname()}:{os.getpid()}"
        self._mine = {
            "id": operation_id,
            "driver": uuid4(),
            "driven_by": name,
            "lease": lease_seconds,
            "strict": strict,
        }
        self._probe = probe

    async def run(self) -> Operation:
        """Until the replay is over, or `stopping` is set; OperationBusy when another process drives it."""
        connection = await self._database.connect()
        try:
            session = await RepairSession.find(connection, self._declared)
            operation = await find_operation(session, self._id)
            if operation.is_finished:
                return operation
            await self._take(session)
            try:
                await self._drive(session, operation)
            finally:
                if not connection.broken:
                    await session.rows("release_operation", self._mine)
            return await find_operation(session, self._id)
        finally:
            await close_quietly(connection)

    async def _take(self, session: RepairSession) -> None:
        row = await session.row("take_operation", self._mine)
        if row is None:
            raise await self._busy(session)

    async def _busy(self, session: RepairSession) -> OperationBusy:
        who, until, seconds = await session.row("who_drives", self._mine) or (None, None, 0.0)
        lease = f" Its lease ends at {utc_second(until)}" if until is not None else " It has just ended"
        return OperationBusy(
            f"another process ({who or 'unnamed'}) drives replay {self._id}: `aftercommit replay watch {self._id}` "
            f"looks on.{lease}, unless it is renewed: if that process has died, try again in "
            f"{max(1, math.ceil(seconds))} s"
        )

    async def _drive(self, session: RepairSession, operation: Operation) -> None:
        pace = ReplayPace(operation.per_second, time.monotonic())
        look, moved_at, before = SHORTEST_LOOK, time.monotonic(), None
        while not self.stopping.is_set():
            progress, fed = await past_deadlocks(lambda: self._step(session, operation, pace))
            await self._reach("replay.stepped", progress=progress)
            if progress != before:
                look, moved_at = SHORTEST_LOOK, time.monotonic()
            elif time.monotonic() - moved_at > PATIENCE:
                moved_at = time.monotonic()
                self._tell(replace(progress, missing=await who_is_missing(session, self._id, "started")))
            before = progress
            self._tell(progress)
            if progress.is_over:
                return
            # After a whole chunk there is more to feed, and those who handle it should not wait for us.
            await wait_for_any(0.0 if fed == pace.chunk else look, self.stopping)
            look = min(LONGEST_LOOK, look * 1.3)

    async def _step(self, session: RepairSession, operation: Operation, pace: ReplayPace) -> tuple[ReplayProgress, int]:
        """One transaction under our right to drive; how it stood, and how many were fed."""
        async with committed_async(session.connection):
            row = await session.row("hold_operation", self._mine)
            if row is None:
                raise OperationBusy(f"another process has taken replay {self._id} over: nothing was written")
            progress, steps = await self._go_on(session, operation, pace, row[0])
            # A step may take longer than the lease, and somebody who waits for the row would find it run out.
            await session.rows("hold_operation", self._mine)
        pace.fed += sum(step.state == "started" for step in steps)
        await self._reach("replay.fed", count=len(steps))
        return progress, len(steps)

    async def _go_on(
        self, session: RepairSession, operation: Operation, pace: ReplayPace, status: str
    ) -> tuple[ReplayProgress, Sequence[ReplayStep]]:
        """Count what has come to its end, then feed what there is room for."""
        outcomes = session.statements.part("item_outcomes")
        *counts, untried = await session.row("settle_items", self._mine, outcomes=outcomes)
        progress = ReplayProgress(self._id, status, *counts)
        if progress.status == "aborting":
            return await self._abort(session), ()
        if not progress.waiting and not progress.under_way:
            return await self._end(session, "done"), ()
        room = pace.room(time.monotonic(), progress.under_way, untried=untried) if progress.waiting else 0
        steps = await self._feed(session, operation, room) if room else []
        await self._reach("replay.feeding", count=len(steps))
        return progress, steps

    async def _feed(self, session: RepairSession, operation: Operation, limit: int) -> list[ReplayStep]:
        parts = {
            "details": session.statements.part("item_details"),
            "is_past_horizon": session.statements.part("is_past_horizon"),
            "is_wanted_again": session.statements.part("is_wanted_again"),
        }
        await session.rows("hold_horizon", {})
        again, to_owner = bool(operation.detail.get("again")), operation.target == TO_OWNER
        wanted = {**self._mine, "limit": limit, "again": again, "to_owner": to_owner}
        items = [ReplayItem(*row) for row in await session.rows("next_items", wanted, **parts)]
        delivered = [item.event_id for item in items if not item.goes_by_letter]
        if delivered:
            # Rows before letters, as the relay does it; and then what is decided about a row holds.
            await session.rows("lock_rows", {"ids": delivered})
            items = [ReplayItem(*row) for row in await session.rows("next_items", wanted, **parts)]
        past_horizon = bool(operation.detail.get("past_horizon"))
        steps = [decide(item, again=again, past_horizon=past_horizon, to_owner=to_owner) for item in items]
        steps = await self._free(session, steps)
        steps = await self._deliver(session, steps)
        await self._put_before_consumers(session, steps)
        await self._mark(session, steps, again)
        await session.wake_everybody()
        return steps

    async def _mark(self, session: RepairSession, steps: Sequence[ReplayStep], again: bool) -> None:
        """Write down what was done, and take from the inbox what is to be handled although it is there."""
        handled = [step.item.was_handled and (again or step.item.is_wanted_again) for step in steps]
        forgotten = [step.item for step, known in zip(steps, handled, strict=True) if known and step.state == "started"]
        if forgotten:
            await session.rows("forget_handled", _keys(forgotten))
        parameters = {
            "id": self._id,
            "ordinals": [step.item.ordinal for step in steps],
            "states": [step.state for step in steps],
            "formers": [step.former_status for step in steps],
            "letters": [step.item.known_status for step in steps],
            "attempts": [step.item.attempts for step in steps],
            "handled": handled,
            "notes": [step.note for step in steps],
        }
        await session.rows("mark_items", parameters)

    async def _free(self, session: RepairSession, steps: Sequence[ReplayStep]) -> list[ReplayStep]:
        """Those before the first whose letter somebody has in hand: that one keeps its turn, and nobody passes it."""
        known = by_way(steps, "letter")
        rows = await session.rows("lock_known_letters", _keys(known)) if known else []
        free = {(event_id, consumer) for event_id, consumer in rows}
        return list(takewhile(lambda step: step.way != "letter" or step.item.key in free, steps))

    async def _deliver(self, session: RepairSession, steps: Sequence[ReplayStep]) -> list[ReplayStep]:
        """Through the outbox. One whose row was taken away at this moment, by a relay or an abort, keeps its turn."""
        rows = by_way(steps, "row")
        if not rows:
            return list(steps)
        await session.rows("reopen_deliveries", _keys(rows))
        await session.rows("redeliver", _keys(rows))
        there = {row[0] for row in await session.rows("find_rows", _keys(rows))}
        return [step for step in steps if step.way != "row" or step.item.event_id in there]

    async def _put_before_consumers(self, session: RepairSession, steps: Sequence[ReplayStep]) -> None:
        known, new = by_way(steps, "letter"), by_way(steps, "new letter")
        if known:
            await session.rows("feed_known_letters", _keys(known))
        if new:
            await session.rows("feed_new_letters", _keys(new))

    async def _abort(self, session: RepairSession) -> ReplayProgress:
        """Nothing further is fed; what was fed and not tried is what it was before. What is in hand is waited for."""
        outcomes = session.statements.part("item_outcomes")
        rows = await session.rows("rows_under_way", self._mine)
        letters = await session.rows("letters_under_way", self._mine, outcomes=outcomes)
        held = [row[0] for row in rows]
        locked = {**self._mine, "ids": held, "ordinals": [row[0] for row in letters]}
        # Asked when the locks are held: whoever feeds the same item now does so before, or after.
        shared = dict(await session.rows("leave_to_others", locked))
        left = set(shared.values())
        free = [event_id for event_id in held if event_id not in left]
        mine = {**self._mine, "ids": free, "ordinals": [row[0] for row in letters if row[0] not in shared]}
        handled = {row[0] for row in await session.rows("put_back_handled", mine, outcomes=outcomes)}
        mine["ids"] = [event_id for event_id in free if event_id not in handled]
        withdrawn = [row[0] for row in await session.rows("withdraw_rows", mine, outcomes=outcomes)]
        await session.rows("withdraw_letters", mine, outcomes=outcomes)
        ended = {"withdrawn": withdrawn, "handled": list(handled), "shared": list(shared), "held": held}
        ((in_hand,),) = await session.rows("end_items", {**mine, **ended}, outcomes=outcomes)
        await session.rows("restore_attempts", mine)
        return await self._end(session, "aborted") if not in_hand else await self._progress(session, in_hand)

    async def _end(self, session: RepairSession, status: str) -> ReplayProgress:
        await session.rows("end_operation", {**self._mine, "status": status})
        return await self._progress(session)

    async def _progress(self, session: RepairSession, under_way: int = 0) -> ReplayProgress:
        now = await find_operation(session, self._id)
        return ReplayProgress(self._id, now.status, now.total, now.done, now.skipped, now.failed, under_way)

    def _tell(self, progress: ReplayProgress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)

    async def _reach(self, point: str, **detail: Any) -> None:
        if self._probe is not None:
            await self._probe(point, detail)


def _keys(items: Sequence[ReplayItem]) -> dict[str, Any]:
    return {
        "ids": [item.event_id for item in items],
        "consumers": [item.consumer for item in items],
        "ordinals": [item.ordinal for item in items],
        "positions": [item.position for item in items],
    }
