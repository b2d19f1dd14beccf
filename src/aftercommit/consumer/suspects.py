"""Events that may have killed a worker or the server: handled one by one, each start counted before it is made."""

from aftercommit.consumer.host import Host
from aftercommit.consumer.lease import HeldLease, Lease
from aftercommit.consumer.outcome import Failed
from aftercommit.errors import AftercommitError
from aftercommit.event.envelope import Record
from aftercommit.postgres.commits import AsyncConnection


class HandlerNeverFinished(AftercommitError):
    """The process died each time this event was handled."""


class Suspects:
    """`left` of the next events are suspects of one worker."""

    def __init__(self, lease: Lease, page_size: int, host: Host) -> None:
        self.left = 0
        self._lease = lease
        self._retry_count = lease.consumer.retry_count
        self._page_size = page_size
        self._host = host
        self._lost = False
        self._lost_at = 0
        self._losses = 0

    def connection_lost(self) -> None:
        """The connection of a slice broke, and the database with it."""
        self._lost = True

    def start(self, held: HeldLease) -> None:
        """The worker begins at this lease's position: the next page is suspect if a worker, or twice a server, died."""
        if self._lost:
            self._losses = self._losses + 1 if held.position == self._lost_at else 1
            self._lost, self._lost_at = False, held.position
        else:
            self._losses = 0
        self.left = self._page_size if held.died or held.unfinished or self._losses > 1 else 0

    def passed(self, events: int) -> None:
        """So many events got to their end."""
        self.left = max(0, self.left - max(1, events))

    async def admit(self, connection: AsyncConnection, record: Record) -> Failed | None:
        """Count a start of this event; a failure after too many, because it must not kill workers for ever."""
        starts = await self._lease.count_start(connection, record.position or 0)
        await self._host.reach("consumer.suspect", starts=starts, position=record.position)
        if starts <= self._retry_count + 1:
            return None
        error = HandlerNeverFinished(
            f"handling began {starts - 1} times and the process died each time: fix the cause, then retry"
        )
        return Failed(error, permanent=True)
