"""Reads the log a page at a time. A page is a range of positions, bounded in number and in bytes."""

from typing import Any, Final

import psycopg

from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.records import log_records
from aftercommit.postgres.statements import Statements

MAX_PAGE_BYTES: Final = 8 << 20


class Pages:
    """Pages of the log for one consumer."""

    def __init__(self, outbox: Outbox, consumer: Consumer, size: int) -> None:
        """Pages of at most `size` positions."""
        self._shape = outbox.shape
        self._statements = Statements(outbox.shape)
        self._consumer = consumer
        self._size = size
        self._reach = size

    async def head(self, connection: psycopg.AsyncConnection[Any]) -> int:
        """The last position of the log."""
        row = await (await connection.execute(self._statements["head"])).fetchone()
        return int(row[0]) if row else 0

    async def read(self, connection: psycopg.AsyncConnection[Any], after: int, head: int) -> tuple[list[Record], int]:
        """The events after a position that the consumer takes, and the position up to which these are all."""
        upto = min(head, after + self._reach)
        asked = {"after": after, "upto": upto, "types": self._consumer.types}
        row = await (await connection.execute(self._statements["page_bytes"], asked)).fetchone()
        if row is None or row[0] <= MAX_PAGE_BYTES:
            rows = await (await connection.execute(self._statements["read_log"], asked)).fetchall()
            self._reach = min(self._size, self._reach * 2)
            return log_records(rows, self._shape), upto
        bounded = {**asked, "max_bytes": MAX_PAGE_BYTES}
        rows = await (await connection.execute(self._statements["read_log_cut"], bounded)).fetchall()
        records = log_records(rows, self._shape)
        # What lies behind the last event was not looked at. Measuring payloads that do not fit is work for nothing,
        # so the next pages do not reach as far.
        upto = records[-1].position or upto
        self._reach = min(self._size, max(1, upto - after) * 2)
        return records, upto
