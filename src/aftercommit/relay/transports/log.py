"""The log transport, the default: the append to the log is the delivery, and consumers follow the log."""

from collections.abc import Sequence

from aftercommit.event.envelope import Record
from aftercommit.relay.transport import Capabilities, Failure


class LogTransport:
    """Carries nothing: the relay's append makes events readable in order, and log consumers need no more."""

    name = "log"
    capabilities = Capabilities(carries=False, ordered=True, deduplicates=True, durable=True)

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Everything is accepted."""
        return ()
