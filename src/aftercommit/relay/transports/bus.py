"""The bus: events go to handlers in this process, and an event counts as delivered when all of them have taken it."""

from collections.abc import Sequence
from typing import Protocol

from aftercommit.event.envelope import Record
from aftercommit.relay.transport import Capabilities, Failure


class Dispatch(Protocol):
    """What the bus needs of whoever runs the handlers."""

    async def open(self) -> None:
        """Get ready."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...

    async def dispatch(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Run the handlers and report who could not take what."""
        ...


class BusTransport:
    """In-process delivery with the inbox of each consumer; needs no broker."""

    name = "bus"
    capabilities = Capabilities(carries=True, ordered=True, deduplicates=True, durable=True)

    def __init__(self, dispatcher: Dispatch) -> None:
        """Deliver to this dispatcher."""
        self._dispatcher = dispatcher

    async def open(self) -> None:
        """Open the dispatcher's connections."""
        await self._dispatcher.open()

    async def close(self) -> None:
        """Close them."""
        await self._dispatcher.close()

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Every consumer gets every event it takes."""
        return await self._dispatcher.dispatch(records)
