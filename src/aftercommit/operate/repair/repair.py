"""Repair: the actions that operators can take on dead letters, events and checkpoints."""

import asyncio
import getpass
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

from aftercommit.errors import OperationBusy, RepairError
from aftercommit.operate.repair import actions, letters, operations, replay, seeking
from aftercommit.operate.repair.actions import RepairResult
from aftercommit.operate.repair.driver import ReplayDriver, ReplayProgress
from aftercommit.operate.repair.letters import LetterDetail, LetterGroup, LetterPage
from aftercommit.operate.repair.operations import ItemProblem, Operation
from aftercommit.operate.repair.replay import Preview, ReplayOptions
from aftercommit.operate.repair.seeking import SeekResult, SeekTarget
from aftercommit.operate.repair.selection import Selection, checked_count
from aftercommit.operate.repair.session import RepairSession
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.commits import committed_async
from aftercommit.postgres.database import Database
from aftercommit.postgres.deadlocks import past_deadlocks
from aftercommit.postgres.resilience import close_quietly
from aftercommit.postgres.shape import Shape

EVERYTHING = Selection()

Result = TypeVar("Result")


def this_user() -> str:
    """The default name of the operator: login and machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


class Repair:
    """Show, retry, edit or discard dead letters, replay events and move checkpoints. Every change is recorded.

        repair = Repair(outbox, Database(dsn))
        await repair.retry(Selection(consumer="order-totals", error_class="Timeout"), reason="the ledger is back")

    With an `Outbox`, payloads and consumers are checked against its declarations. A `Shape` with the name of the schema
    is enough otherwise.
    """

    def __init__(self, declared: Outbox | Shape, database: Database, *, by: str | None = None) -> None:
        """Does not connect. `by` is the operator's name; by default, the user of this process."""
        self._declared = declared
        self._database = database
        self._by = by or this_user()

    async def letters(
        self, selection: Selection = EVERYTHING, *, limit: int = 100, offset: int = 0, exact: bool = False
    ) -> LetterPage:
        """Dead letters, last seen first, without payloads. Unless `exact`, counts and searches them up to a limit."""
        limit, offset = checked_count("limit", limit, 1), checked_count("offset", offset, 0)
        async with self._session() as session:
            return await letters.list_letters(session, selection, limit, offset, exact=exact)

    async def groups(
        self, selection: Selection = EVERYTHING, *, limit: int = 100, exact: bool = False
    ) -> list[LetterGroup]:
        """Dead letters by owner and error, the largest group first. Unless `exact`, counts them up to a limit."""
        limit = checked_count("limit", limit, 1)
        async with self._session() as session:
            return await letters.group_letters(session, selection, limit, exact=exact)

    async def letter(self, event_id: UUID, consumer: str | None = None) -> list[LetterDetail]:
        """The letters of one event in full, with the payload; LetterNotFound if there are none."""
        async with self._session() as session:
            return await letters.show_letters(session, event_id, consumer)

    async def owners(self) -> list[str]:
        """All possible owners of letters: consumers with a checkpoint, with letters, or declared; and the relay."""
        async with self._session() as session:
            return await letters.owners(session)

    async def retry(
        self, selection: Selection, *, reason: str = "", dry_run: bool = False, exact: bool = False
    ) -> RepairResult:
        """Retry letters with a fresh set of attempts: parked ones, unless the selection has statuses or event_ids.

        A `dry_run` counts and searches letters up to a limit, unless it is `exact`.
        """
        _refuse_everything(selection)
        options: dict[str, Any] = {"by": self._by, "reason": reason, "dry_run": dry_run, "exact": exact}
        return await self._act(lambda session: actions.retry(session, selection, **options))

    async def edit(
        self, event_id: UUID, payload: bytes, *, consumer: str | None = None, reason: str = "", dry_run: bool = False
    ) -> RepairResult:
        """Replace the payload of a letter and retry it. The log does not change; the old payload is recorded."""
        options: dict[str, Any] = {"by": self._by, "reason": reason, "dry_run": dry_run}
        return await self._act(lambda session: actions.edit(session, event_id, consumer, payload, **options))

    async def discard(
        self, selection: Selection, *, reason: str, dry_run: bool = False, exact: bool = False
    ) -> RepairResult:
        """Discard the selected letters, for a reason that is recorded. They can still be retried later.

        A `dry_run` counts and searches letters up to a limit, unless it is `exact`.
        """
        _refuse_everything(selection)
        options: dict[str, Any] = {"by": self._by, "reason": reason, "dry_run": dry_run, "exact": exact}
        return await self._act(lambda session: actions.discard(session, selection, **options))

    async def seek(
        self, consumer: str, to: SeekTarget, *, reason: str = "", force: bool = False, dry_run: bool = False
    ) -> SeekResult:
        """Move the checkpoint of a consumer of the log: to "start", "end", after a position, or before a time.

        Events in the inbox are not handled again. Refused while a worker holds the consumer; with `force`, that worker
        loses its lease and starts over from the new position.
        """
        options: dict[str, Any] = {"by": self._by, "reason": reason, "force": force, "dry_run": dry_run}
        return await self._act(lambda session: seeking.seek(session, consumer, to, **options))

    async def preview(
        self, selection: Selection, *, to: str | None = None, again: bool = False, exact: bool = False
    ) -> Preview:
        """What a replay would do. Changes nothing. Unless `exact`, counts and searches events up to a limit."""
        return await self._act(lambda session: replay.preview(session, selection, to, again=again, exact=exact))

    async def start(
        self,
        selection: Selection,
        *,
        to: str | None = None,
        per_second: float | None = None,
        again: bool = False,
        past_horizon: bool = False,
        expected: int | None = None,
        reason: str = "",
    ) -> Operation:
        """Record the set of events for a replay; `drive` then works through it.

        `to` is a consumer's name or "@transport"; without it, dead letters go to their owners. `again` lets a consumer
        handle events that it has handled before. Raises PastHorizon if some events are older than the inbox, so that
        nobody knows whether they were handled (with `again`, only where other consumers behind the bus are affected);
        `past_horizon` accepts that. Raises SetChanged if the set does not have `expected` events.
        """
        options = ReplayOptions(per_second, again, past_horizon, expected)

        async def begin(session: RepairSession) -> Operation:
            operation_id = await replay.start(session, selection, to, options, by=self._by, reason=reason)
            return await operations.find_operation(session, operation_id)

        return await self._act(begin)

    def driver(self, operation_id: UUID, on_progress: Callable[[ReplayProgress], None] | None = None) -> ReplayDriver:
        """The object that works through a replay, for callers that want to stop it."""
        return ReplayDriver(self._declared, self._database, operation_id, on_progress=on_progress)

    async def drive(self, operation_id: UUID, on_progress: Callable[[ReplayProgress], None] | None = None) -> Operation:
        """Work through a replay to its end, also after a driver has died. OperationBusy if another one is active."""
        return await self.driver(operation_id, on_progress).run()

    async def abort(self, operation_id: UUID) -> Operation:
        """Abort a replay: feed no more events, take back those that were not tried yet, and wait until that is done."""
        async with self._session() as session:
            await operations.find_operation(session, operation_id)
            await session.rows("ask_to_abort", {"id": operation_id})
        while True:
            try:
                return await self.drive(operation_id)
            except OperationBusy:
                await asyncio.sleep(0.1)

    async def operation(self, operation_id: UUID) -> Operation:
        """One operation; RepairError if there is none with this id."""
        async with self._session() as session:
            return await operations.find_operation(session, operation_id)

    async def operations(self, kinds: Sequence[str] | None = None, *, limit: int = 50) -> list[Operation]:
        """Operations, newest first: all, or only some kinds ("retry", "edit", "discard", "replay", "seek")."""
        limit = checked_count("limit", limit, 1)
        async with self._session() as session:
            return await operations.find_operations(session, kinds, limit)

    async def problems(self, operation_id: UUID, *, limit: int = 50) -> list[ItemProblem]:
        """The events of an operation that failed or were skipped, each with the reason."""
        limit = checked_count("limit", limit, 1)
        async with self._session() as session:
            return await operations.problems(session, operation_id, limit)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[RepairSession]:
        connection = await self._database.connect()
        try:
            yield await RepairSession.find(connection, self._declared)
        finally:
            await close_quietly(connection)

    async def _act(self, work: Callable[[RepairSession], Awaitable[Result]]) -> Result:
        """Run in one transaction, and again after a deadlock."""
        async with self._session() as session:

            async def once() -> Result:
                async with committed_async(session.connection):
                    return await work(session)

            return await past_deadlocks(once)


def _refuse_everything(selection: Selection) -> None:
    if selection.is_everything:
        raise RepairError(
            "no letters chosen: give event ids or selection options. --status parked (statuses=('parked',)) chooses "
            "all that are parked"
        )
