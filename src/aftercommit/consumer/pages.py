"""Reads the log a page at a time. A page is a range of positions, bounded in number and in bytes.

Behind a backlog the next page is read while the handlers are busy with this one: the log never changes, so what was
read early is what would be read late.
"""

import asyncio
import logging
from typing import Any, Final

import psycopg

from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.records import BYTES_AT_ONCE, log_records
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

MAX_PAGE_BYTES: Final = BYTES_AT_ONCE
FEW: Final = 16

Page = tuple[list[Record], int]


class Pages:
    """Pages of the log for one consumer."""

    def __init__(self, outbox: Outbox, consumer: Consumer, page_size: int) -> None:
        """Pages of at most `page_size` positions."""
        self._shape = outbox.shape
        self._statements = Statements(outbox.shape)
        self._consumer = consumer
        self._size = page_size
        self._reach = page_size
        self._early: tuple[int, asyncio.Task[Page]] | None = None

    async def read(self, connection: psycopg.AsyncConnection[Any], after: int, head: int) -> Page:
        """The events after a position that the consumer takes, and the position up to which these are all."""
        page = await self._read_early(after) or await self._read(connection, after, head)
        upto = page[1]
        if upto < head:
            self._early = upto, asyncio.create_task(self._read(connection, upto, head), name="next page of the log")
        return page

    async def forget(self) -> None:
        """Drop what was read early: nobody goes on from there, or not on this connection."""
        early, self._early = self._early, None
        if early is not None:
            early[1].cancel()
            await asyncio.wait({early[1]})
            # An error would have been that of the next read, which there will not be.
            early[1].cancelled() or early[1].exception()

    async def _read_early(self, after: int) -> Page | None:
        if self._early is None or self._early[0] != after:
            await self.forget()
            return None
        reading, self._early = self._early[1], None
        return await reading

    async def _read(self, connection: psycopg.AsyncConnection[Any], after: int, head: int) -> Page:
        page = await self._range(connection, after, head)
        first = page[0][0].position if page[0] else None
        # The next event may be of a type that the consumer does not take; mostly it is its own, and nothing is asked.
        return page if first == after + 1 else await self._without_gap(connection, page, after, head)

    async def _without_gap(self, connection: psycopg.AsyncConnection[Any], page: Page, after: int, head: int) -> Page:
        """The page; where retention was told to drop what had not been read, that is said, and all of it passed by.

        Between two lives of the log lie positions that were never given: nothing is lost there.
        """
        asked = {"after": after, "head": head}
        row = await (await connection.execute(self._statements["next_in_log"], asked, prepare=True)).fetchone()
        first, lost = row or (None, 0)
        first = head + 1 if first is None else int(first)
        records, upto = page
        if first <= after + 1:
            return page
        if lost:
            log_event(
                logger,
                logging.WARNING,
                "consumer_events_lost",
                consumer=self._consumer.name,
                position=after,
                lost=lost,
                remedy="they were dropped from the log before they were read: if the consumer has to handle them, "
                "restore them from a backup and publish them again",
            )
        return records, max(upto, min(first - 1, head))

    async def _range(self, connection: psycopg.AsyncConnection[Any], after: int, head: int) -> Page:
        upto = min(head, after + self._reach)
        asked = {"after": after, "upto": upto, "types": self._consumer.types}
        # A few are measured as they are read. Of many that is not cheap, and measuring first is.
        if upto - after > FEW and await self._fits(connection, asked):
            rows = await (await connection.execute(self._statements["read_log"], asked, prepare=True)).fetchall()
            self._reach = min(self._size, self._reach * 2)
            return log_records(rows, self._shape), upto
        bounded = {**asked, "max_bytes": MAX_PAGE_BYTES}
        rows = await (await connection.execute(self._statements["read_log_cut"], bounded, prepare=True)).fetchall()
        records = log_records(rows, self._shape)
        if not records:
            # None that the consumer takes; or dropped by retention since they were measured.
            return [], upto
        if sum(len(record.payload) for record in records) < MAX_PAGE_BYTES // 2:
            # Nothing was cut off.
            return records, upto
        # What lies behind the last event was not looked at. Measuring payloads that do not fit is work for nothing,
        # so the next pages do not reach as far.
        upto = records[-1].position or upto
        self._reach = min(self._size, max(1, upto - after) * 2)
        return records, upto

    async def _fits(self, connection: psycopg.AsyncConnection[Any], asked: dict[str, Any]) -> bool:
        row = await (await connection.execute(self._statements["page_bytes"], asked, prepare=True)).fetchone()
        return row is None or row[0] <= MAX_PAGE_BYTES
