"""Reads the log a page at a time. A page is a range of positions, limited in number and in bytes.

With a backlog, the next page is read while handlers work on this one. An event in the log does not change, so it makes
no difference when it is read. The consumers of a worker that have come to the end of the log share what they read next.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from aftercommit.consumer.lease import Lease
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.records import BYTES_AT_ONCE, FEW_BYTES, FEW_EVENTS, read_log_records
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

MAX_PAGE_BYTES: Final = BYTES_AT_ONCE
FEW: Final = FEW_EVENTS

Page = tuple[list[Record], int]


class LatestPage:
    """The last few events of the log, read once for all consumers of a worker."""

    def __init__(self, outbox: Outbox) -> None:
        self._shape = outbox.shape
        self._statements = Statements(outbox.shape)
        self._news = self._statements.render("read_news", read_log_cut=self._statements.part("read_log_cut")).encode()
        self._range = range(0)
        self._reading: asyncio.Future[Sequence[Record]] | None = None

    def forget(self) -> None:
        """A session is over: nothing that was read counts any more."""
        if self._reading is not None:
            self._reading.cancel()
        self._range, self._reading = range(0), None

    def keep(self, records: Sequence[Record]) -> None:
        """These are the last events of the log, without a gap between them."""
        self._range = range(records[0].position or 0, (records[-1].position or 0) + 1)
        self._reading = asyncio.get_running_loop().create_future()
        self._reading.set_result(records)

    def end_after(self, position: int) -> int | None:
        """How far the events after this position go that are here already; None if the next one is not."""
        return self._range[-1] if position + 1 in self._range else None

    async def read_news(
        self, connection: AsyncConnection, after: int, checkpoints: Sequence[str], token: UUID
    ) -> int | None:
        """Read what is new for consumers that have all come to a position; returns the end of the log.

        None if that needs a look: there is nothing new for all of them, more than a few events, or a gap.
        """
        asked = {
            "after": after,
            "upto": after + FEW,
            "types": None,
            "lane": 0,
            "lanes": 1,
            "max_bytes": FEW_BYTES,
            "checkpoints": list(checkpoints),
            "token": token,
        }
        records = await read_log_records(connection, self._news, asked, self._shape)
        is_all = 0 < len(records) < FEW and sum(len(record.payload) for record in records) < FEW_BYTES // 2
        if not is_all or records[0].position != after + 1:
            return None
        self.keep(records)
        return records[-1].position

    async def read(self, connection: AsyncConnection, after: int, head: int) -> Page | None:
        """All events after a position, of any type, if they are few and there is no gap before them."""
        if head - after > FEW:
            return None
        if self._reading is None or after + 1 not in self._range or head not in self._range:
            self._range = range(after + 1, head + 1)
            self._reading = asyncio.ensure_future(self._read(connection, after, head))
        # A consumer that is cut off must not end the reading of the others.
        records = await asyncio.shield(self._reading)
        records = [record for record in records if after < (record.position or 0) <= head]
        if not records or records[0].position != after + 1:
            return None
        return records, records[-1].position or after

    async def _read(self, connection: AsyncConnection, after: int, head: int) -> Sequence[Record]:
        asked = {"after": after, "upto": head, "types": None, "lane": 0, "lanes": 1, "max_bytes": MAX_PAGE_BYTES}
        return await read_log_records(connection, self._statements["read_log_cut"], asked, self._shape)


class Pages:
    """Pages of the log for one consumer, or for one of its lanes, of at most `page_size` positions."""

    def __init__(self, outbox: Outbox, lease: Lease, page_size: int, latest: LatestPage) -> None:
        self._latest = latest
        self._shape = outbox.shape
        self._statements = Statements(outbox.shape)
        self._consumer = lease.consumer
        self._lane = {"lane": lease.lane, "lanes": lease.consumer.lanes}
        self._size = page_size
        self._reach = page_size
        self._early: tuple[int, asyncio.Task[Page]] | None = None

    async def read(self, connection: AsyncConnection, after: int, head: int) -> Page:
        """The next events after a position that the consumer takes, and the position up to which they are complete."""
        page = await self._read_early(after) or await self._read(connection, after, head)
        upto = page[1]
        if upto < head:
            self._early = upto, asyncio.create_task(self._read(connection, upto, head), name="next page of the log")
        return page

    async def forget(self) -> None:
        """Drop the page that was read early."""
        early, self._early = self._early, None
        if early is not None:
            early[1].cancel()
            await asyncio.wait({early[1]})
            # Its error, if any, belongs to a read that nobody makes.
            early[1].cancelled() or early[1].exception()

    async def _read_early(self, after: int) -> Page | None:
        if self._early is None or self._early[0] != after:
            await self.forget()
            return None
        reading, self._early = self._early[1], None
        return await reading

    async def _read(self, connection: AsyncConnection, after: int, head: int) -> Page:
        if self._consumer.lanes == 1:
            shared = await self._latest.read(connection, after, min(head, after + self._size))
            if shared is not None:
                return shared
        page = await self._range(connection, after, head)
        first = page[0][0].position if page[0] else None
        # Mostly the next event is one that the consumer takes, and nothing has to be asked.
        return page if first == after + 1 else await self._without_gap(connection, page, after, head)

    async def _without_gap(self, connection: AsyncConnection, page: Page, after: int, head: int) -> Page:
        """The page without the gap before it: log what retention dropped before it was read, and skip it.

        Between two lives of the log there are positions that were never used: nothing is lost there.
        """
        asked = {"after": after, "head": head}
        row = await (await connection.execute(self._statements["next_in_log"], asked, prepare=True)).fetchone()
        first, lost = row or (None, 0)
        first = head + 1 if first is None else int(first)
        records, upto = page
        if first <= after + 1:
            return page
        if lost:
            remedy = (
                "retention dropped them before they were read: if the consumer has to handle them, restore them from a "
                "backup and publish them again"
            )
            fields = {"consumer": self._consumer.name, "position": after, "lost": lost, "remedy": remedy}
            log_event(logger, logging.WARNING, "consumer_events_lost", **fields)
        return records, max(upto, min(first - 1, head))

    async def _range(self, connection: AsyncConnection, after: int, head: int) -> Page:
        upto = min(head, after + self._reach)
        asked = {"after": after, "upto": upto, "types": self._consumer.types, **self._lane}
        # A few are measured while they are read. For many, it is cheaper to measure first.
        if upto - after > FEW and await self._fits(connection, asked):
            records = await read_log_records(connection, self._statements["read_log"], asked, self._shape)
            self._reach = min(self._size, self._reach * 2)
            return records, upto
        bounded = {**asked, "max_bytes": MAX_PAGE_BYTES}
        records = await read_log_records(connection, self._statements["read_log_cut"], bounded, self._shape)
        if not records:
            # The consumer takes none of them, or retention has dropped them since they were measured.
            return [], upto
        if sum(len(record.payload) for record in records) < MAX_PAGE_BYTES // 2:
            # Nothing was cut off.
            return records, upto
        # The page was cut after the last event. Measuring payloads that do not fit is wasted work, so the next pages
        # are shorter.
        upto = records[-1].position or upto
        self._reach = min(self._size, max(1, upto - after) * 2)
        return records, upto

    async def _fits(self, connection: AsyncConnection, asked: dict[str, Any]) -> bool:
        row = await (await connection.execute(self._statements["page_bytes"], asked, prepare=True)).fetchone()
        return row is None or row[0] <= MAX_PAGE_BYTES
