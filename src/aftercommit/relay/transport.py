"""The port to wherever events are carried. One batch method; what an implementation can do is declared, not guessed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from aftercommit.event.envelope import Record

RELAY_NAME = "@relay"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport promises; the conformance suite checks each promise it makes.

    `carries`: it takes the events themselves; when False the append to the log is all the delivery there is.
    `ordered`: events of one aggregate arrive in the order of the batch.
    `deduplicates`: a repeated `event_id` reaches consumers once.
    `durable`: what was accepted survives a crash of the receiving side.
    """

    carries: bool = True
    ordered: bool = True
    deduplicates: bool = False
    durable: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """One event that was not accepted, by whom, and why. `permanent`: trying again cannot help.

    `attempts` says how often it was tried in this delivery; with 0 it is put back, and no attempt is spent.
    """

    event_id: UUID
    error: BaseException
    consumer: str = RELAY_NAME
    permanent: bool = False
    retry_after: float | None = None
    attempts: int = 1


class Transport(Protocol):
    """Carries batches of events somewhere."""

    name: str
    capabilities: Capabilities

    async def open(self) -> None:
        """Get ready; TransportUnavailable when the destination cannot be reached."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Hand over a batch, in its order; the answer lists what was not accepted, and everything else was.

        Raises TransportUnavailable when the destination as a whole is down: then no attempt is spent.
        """
        ...
