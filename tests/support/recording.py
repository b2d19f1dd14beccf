"""Transports for tests of the relay: they record what they are given and fail as they are told."""

from collections.abc import Callable, Sequence
from uuid import UUID

from aftercommit.event.envelope import Record
from aftercommit.relay.transport import Capabilities, Failure


class RecordingTransport:
    """Accepts and remembers everything, unless `refuse` says otherwise."""

    name = "recording"
    capabilities = Capabilities(carries=True, ordered=True, deduplicates=False, durable=False)

    def __init__(self, refuse: Callable[[Record], BaseException | None] | None = None) -> None:
        """Empty."""
        self.records: list[Record] = []
        self.refuse = refuse
        self.down: BaseException | None = None

    @property
    def ids(self) -> list[UUID]:
        """Ids in the order of delivery."""
        return [record.event_id for record in self.records]

    async def open(self) -> None:
        """Raise when the destination is declared down."""
        if self.down is not None:
            raise self.down

    async def close(self) -> None:
        """Nothing to close."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Remember what is accepted, report what is refused."""
        if self.down is not None:
            raise self.down
        failures = []
        for record in records:
            problem = self.refuse(record) if self.refuse is not None else None
            if problem is not None:
                failures.append(Failure(record.event_id, problem))
            else:
                self.records.append(record)
        return failures
