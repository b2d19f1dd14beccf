"""Repair: what an operator can do about events that did not get where they should. The room's front door."""

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
    """Who acts, where nobody says it: the login and the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


class Repair:
    """Look at dead letters, retry, edit or discard them, and replay events; each change is on record with who and why.

        repair = Repair(outbox, Database(dsn))
        await repair.retry(Selection(consumer="order-totals", error_class="Timeout"), reason="the ledger is back")

    With an `Outbox`, payloads and consumers are checked against what it declares; otherwise a `Shape` with the name of
    its schema will do.
    """

    def __init__(self, declared: Outbox | Shape, database: Database, *, by: str | None = None) -> None:
        """Nothing is connected. `by` says who acts; the user of this process unless given."""
        self._declared = declared
        self._database = database
        self._by = by or this_user()

    async def letters(self, selection: Selection = EVERYTHING, *, limit: int = 100, offset: int = 0) -> LetterPage:
        """Dead letters, last seen first, without payloads."""
        limit, offset = checked_count("limit", limit, 1), checked_count("offset", offset, 0)
        async with self._session() as session:
            return await letters.list_letters(session, selection, limit, offset)

    async def groups(self, selection: Selection = EVERYTHING, *, limit: int = 100) -> list[LetterGroup]:
        """Dead letters by owner and error, the largest group first."""
        limit = checked_count("limit", limit, 1)
        async with self._session() as session:
            return await letters.group_letters(session, selection, limit)

    async def letter(self, event_id: UUID, consumer: str | None = None) -> list[LetterDetail]:
        """All that is known about the letters of one event, with the payload; LetterNotFound when there are none."""
        async with self._session() as session:
            return await letters.show_letters(session, event_id, consumer)

    async def owners(self) -> list[str]:
        """Whose letters there can be: consumers with a checkpoint, with letters, or declared; and the relay."""
        async with self._session() as session:
            return await letters.owners(session)

    async def retry(self, selection: Selection, *, reason: str = "", dry_run: bool = False) -> RepairResult:
        """Give the chosen letters all their attempts again: parked ones, unless statuses or event_ids say otherwise."""
        _refuse_everything(selection)
        return await self._act(
            lambda session: actions.retry(session, selection, by=self._by, reason=reason, dry_run=dry_run)
        )

    async def edit(
        self, event_id: UUID, payload: bytes, *, consumer: str | None = None, reason: str = "", dry_run: bool = False
    ) -> RepairResult:
        """Give a letter another payload and retry it; the log never changes, the former payload stays on record."""
        options: dict[str, Any] = {"by": self._by, "reason": reason, "dry_run": dry_run}
        return await self._act(lambda session: actions.edit(session, event_id, consumer, payload, **options))

    async def discard(self, selection: Selection, *, reason: str, dry_run: bool = False) -> RepairResult:
        """Give the chosen letters up, for a reason that is kept. They can be retried later all the same."""
        _refuse_everything(selection)
        return await self._act(
            lambda session: actions.discard(session, selection, by=self._by, reason=reason, dry_run=dry_run)
        )

    async def seek(
        self, consumer: str, to: SeekTarget, *, reason: str = "", force: bool = False, dry_run: bool = False
    ) -> SeekResult:
        """Move the checkpoint of a consumer of the log: to "start", "end", behind a position, or before a moment.

        What the inbox knows as handled is not handled again. Refused while a worker holds the consumer, unless `force`
        takes it away from the worker, which begins anew from there.
        """
        options: dict[str, Any] = {"by": self._by, "reason": reason, "force": force, "dry_run": dry_run}
        return await self._act(lambda session: seeking.seek(session, consumer, to, **options))

    async def preview(self, selection: Selection, *, to: str | None = None, again: bool = False) -> Preview:
        """What a replay would do, before it does anything."""
        async with self._session() as session:
            return await replay.preview(session, selection, to, again=again)

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
        """Freeze a set of events for a replay; `drive` then works through it.

        `to` is a consumer's name or "@transport"; dead letters go to their owners when it is not given. `again` lets a
        consumer handle what it has handled before. PastHorizon when the inbox cannot tell that any more (with `again`:
        of others, where the event goes by the bus), unless `past_horizon`. SetChanged when `expected` is given (the
        total of a preview) and the set has another number.
        """
        options = ReplayOptions(per_second, again, past_horizon, expected)

        async def begin(session: RepairSession) -> Operation:
            operation_id = await replay.start(session, selection, to, options, by=self._by, reason=reason)
            return await operations.find_operation(session, operation_id)

        return await self._act(begin)

    def driver(self, operation_id: UUID, on_progress: Callable[[ReplayProgress], None] | None = None) -> ReplayDriver:
        """What works through a replay, for callers that want to stop it halfway."""
        return ReplayDriver(self._declared, self._database, operation_id, on_progress=on_progress)

    async def drive(self, operation_id: UUID, on_progress: Callable[[ReplayProgress], None] | None = None) -> Operation:
        """Work through a replay to its end; also one whose driver has died. OperationBusy when another is at it."""
        return await self.driver(operation_id, on_progress).run()

    async def abort(self, operation_id: UUID) -> Operation:
        """Feed nothing further, and take back what was fed and not tried yet; waits until that is done."""
        async with self._session() as session:
            await operations.find_operation(session, operation_id)
            await session.rows("ask_to_abort", {"id": operation_id})
        while True:
            try:
                return await self.drive(operation_id)
            except OperationBusy:
                await asyncio.sleep(0.1)

    async def operation(self, operation_id: UUID) -> Operation:
        """One operation; RepairError when there is none of this id."""
        async with self._session() as session:
            return await operations.find_operation(session, operation_id)

    async def operations(self, kinds: Sequence[str] | None = None, *, limit: int = 50) -> list[Operation]:
        """What was done, newest first: of all kinds, or of some ("retry", "edit", "discard", "replay", "seek")."""
        limit = checked_count("limit", limit, 1)
        async with self._session() as session:
            return await operations.find_operations(session, kinds, limit)

    async def problems(self, operation_id: UUID, *, limit: int = 50) -> list[ItemProblem]:
        """Events of an operation that failed or were skipped, each with the reason."""
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
        """In one transaction, which is run again when it had to give way to another."""
        async with self._session() as session:

            async def once() -> Result:
                async with committed_async(session.connection):
                    return await work(session)

            return await past_deadlocks(once)


def _refuse_everything(selection: Selection) -> None:
    if selection.is_everything:
        raise RepairError(
            "nothing is chosen: say which letters, by event ids or by what they have in common; --status parked "
            "(statuses=('parked',)) means all that are parked"
        )
