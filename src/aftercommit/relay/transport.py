"""The port for transports. It has one batch method; each implementation declares what it can do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from aftercommit.event.envelope import Record

RELAY_NAME = "@relay"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport promises; the conformance suite checks each promise.

    `carries`: it takes the events themselves; when False, the append to the log is the only delivery.
    `ordered`: events of one aggregate arrive in the order of the batch.
    `deduplicates`: a repeated `event_id` reaches consumers once.
    `durable`: an accepted event survives a crash of the receiving side.
    """

    carries: bool = True
    ordered: bool = True
    deduplicates: bool = False
    durable: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """An event that a consumer or the destination did not accept, and why. `permanent`: a retry cannot help.

    `attempts`: how often it was tried in this delivery. With 0 the relay puts it back and spends no attempt.
    """

    event_id: UUID
    error: BaseException
    consumer: str = RELAY_NAME
    permanent: bool = False
    retry_after: float | None = None
    attempts: int = 1


class Untried(NamedTuple):
    """What a relay is about to read: events of these lanes that were never tried, with a seq above the watermark."""

    lanes: str
    watermark: int


class Transport(Protocol):
    """Carries batches of events somewhere."""

    name: str
    capabilities: Capabilities

    async def open(self) -> None:
        """Connect; raises TransportUnavailable when the destination cannot be reached."""

    async def close(self) -> None:
        """Close connections."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Deliver a batch in its order; returns the events that were not accepted.

        Raises TransportUnavailable when the destination as a whole is down: that spends no attempt.
        """


@runtime_checkable
class ReadingTransport(Transport, Protocol):
    """A transport that can read new events itself, and get ready for them by the same statement."""

    async def read_few(self, untried: Untried) -> Sequence[Record]:
        """Read a few untried events, which are delivered next; none if they are many, or if it cannot be done now."""
