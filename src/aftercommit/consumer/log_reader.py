"""Reads the log for one consumer, and alone knows where to read next."""

from dataclasses import dataclass

from aftercommit.consumer.pages import Pages
from aftercommit.consumer.slices import SliceItem, prepare
from aftercommit.consumer.waiting import CheckpointWait
from aftercommit.consumer.worker_slices import WorkerParts
from aftercommit.postgres.commits import AsyncConnection


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """A page of the log: the events that are still to be handled, of `count` that the consumer takes."""

    items: list[SliceItem]
    count: int


class LogReader:
    """`position`: the log is read up to here."""

    def __init__(self, parts: WorkerParts, pages: Pages, wait: CheckpointWait) -> None:
        self.position = 0
        self.wait = wait
        self._parts = parts
        self._pages = pages

    def seek(self, position: int) -> None:
        """Read on after this position."""
        self.position = position

    async def forget(self) -> None:
        """Drop what was read early."""
        await self._pages.forget()

    async def read(self, connection: AsyncConnection, head: int, *, any_letters: bool) -> ReadAhead | None:
        """The next page; None when there is nothing new, or when the next event waits for newer code.

        Without `any_letters`, the consumer is known to have no open letter.
        """
        if head <= self.position or await self.wait.goes_on(connection, self.position):
            return None
        records, upto = await self._pages.read(connection, self.position, head)
        items = prepare(self._parts.consumer, records, attempt=1)
        await self._parts.host.reach("consumer.read", events=len(items), position=self.position)
        items, upto = await self.wait.cut(connection, items, self.position, upto)
        if upto <= self.position:
            return None
        count = len(items)
        if items and any_letters:
            items = await self._parts.letters.without_open_letters(connection, items)
        self.position = upto
        return ReadAhead(items, count)
