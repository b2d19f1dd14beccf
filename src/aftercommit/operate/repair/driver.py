"""Drives a replay: feeds its events in small steps and counts their outcomes. Workers and relays handle the events.

Each step is one transaction that first locks the operation's row and checks the driver's token. So only one driver is
active, and if it is killed at any point, another one can continue.
"""

import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from uuid import UUID, uuid4

from aftercommit.errors import OperationBusy
from aftercommit.operate.repair import items
from aftercommit.operate.repair.feeding import ReplayPace, ReplayStep
from aftercommit.operate.repair.operations import Operation, find_operation, who_is_missing
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
# If nothing has changed for this long, report which workers or relays are missing.
PATIENCE: Final = 3.0


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The progress of a replay. If nothing changes, `missing` has messages about workers and relays that do not run."""

    operation_id: UUID
    status: str
    total: int
    done: int = 0
    skipped: int = 0
    failed: int = 0
    under_way: int = 0
    missing: Sequence[str] = ()

    @classmethod
    def of(cls, now: Operation, under_way: int = 0) -> Self:
        """The progress that an operation records."""
        return cls(now.id, now.status, now.total, now.done, now.skipped, now.failed, under_way)

    @property
    def waiting(self) -> int:
        """Items that were not fed yet."""
        return self.total - self.done - self.skipped - self.failed - self.under_way

    @property
    def is_over(self) -> bool:
        """Whether the operation has ended."""
        return self.status in ("done", "aborted")


class ReplayDriver:
    """Works through one replay in this process."""

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
        """After a crash, another driver can continue once `lease_seconds` have passed."""
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
        """Run until the replay has ended, or `stopping` is set; OperationBusy if another process drives it."""
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
        if await session.row("take_operation", self._mine) is not None:
            return
        who, until, seconds = await session.row("who_drives", self._mine) or (None, None, 0.0)
        lease = f"Its lease ends at {utc_second(until)}, unless renewed" if until is not None else "It has just ended"
        raise OperationBusy(
            f"another process ({who or 'unnamed'}) drives replay {self._id}: see `aftercommit replay watch "
            f"{self._id}`. {lease}. If that process has died, try again in {max(1, math.ceil(seconds))} s"
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
            # After a full chunk there is more to feed: go on at once, so that workers need not wait.
            await wait_for_any(0.0 if fed == pace.chunk else look, self.stopping)
            look = min(LONGEST_LOOK, look * 1.3)

    async def _step(self, session: RepairSession, operation: Operation, pace: ReplayPace) -> tuple[ReplayProgress, int]:
        """One transaction, while we hold the operation; returns the progress and how many items were fed."""
        async with committed_async(session.connection):
            row = await session.row("hold_operation", self._mine)
            if row is None:
                raise OperationBusy(f"another process has taken over replay {self._id}: nothing was written")
            progress, steps = await self._go_on(session, operation, pace, row[0])
            # A step may take longer than the lease: renew it, or a driver that waits for the row would take over.
            await session.rows("hold_operation", self._mine)
        pace.fed += sum(step.state == "started" for step in steps)
        await self._reach("replay.fed", count=len(steps))
        return progress, len(steps)

    async def _go_on(
        self, session: RepairSession, operation: Operation, pace: ReplayPace, status: str
    ) -> tuple[ReplayProgress, Sequence[ReplayStep]]:
        """Count the finished items, then feed as many as there is room for."""
        outcomes = session.statements.part("item_outcomes")
        *counts, untried = await session.row("settle_items", self._mine, outcomes=outcomes)
        progress = ReplayProgress(self._id, status, *counts)
        if progress.status == "aborting":
            in_hand = await items.take_back(session, self._mine)
            return (await self._progress(session, in_hand) if in_hand else await self._end(session, "aborted")), ()
        if not progress.waiting and not progress.under_way:
            return await self._end(session, "done"), ()
        room = pace.room(time.monotonic(), progress.under_way, untried=untried) if progress.waiting else 0
        steps = await items.feed(session, operation, self._mine, room) if room else []
        await self._reach("replay.feeding", count=len(steps))
        return progress, steps

    async def _end(self, session: RepairSession, status: str) -> ReplayProgress:
        await session.rows("end_operation", {**self._mine, "status": status})
        return await self._progress(session)

    async def _progress(self, session: RepairSession, under_way: int = 0) -> ReplayProgress:
        return ReplayProgress.of(await find_operation(session, self._id), under_way)

    def _tell(self, progress: ReplayProgress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)

    async def _reach(self, point: str, **detail: Any) -> None:
        if self._probe is not None:
            await self._probe(point, detail)
