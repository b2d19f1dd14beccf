"""The log transport: appending is the delivery, and consumers follow the log. The default, and the fastest."""

from collections.abc import Sequence

from aftercommit.event.envelope import Record
from aftercommit.relay.transport import Capabilities, Failure


class LogTransport:
    """Carries nothing: the relay's append makes an event readable in order, which is all that log consumers need."""

    name = "log"
    capabilities = Capabilities(carries=False, ordered=True, deduplicates=True, durable=True)

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Everything is accepted."""
        return ()
