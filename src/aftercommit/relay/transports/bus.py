"""The bus: delivers events to handlers in this process. An event is delivered when all of them have handled it."""

from collections.abc import Sequence
from typing import Protocol

from aftercommit.event.envelope import Record
from aftercommit.relay.transport import Capabilities, Failure, Untried


class _Dispatch(Protocol):
    """Runs the handlers for the bus; returns which consumer failed at which event."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def read_few(self, untried: Untried) -> Sequence[Record]: ...
    async def dispatch(self, records: Sequence[Record]) -> Sequence[Failure]: ...


class BusTransport:
    """In-process delivery with the inbox of each consumer; needs no broker."""

    name = "bus"
    capabilities = Capabilities(carries=True, ordered=True, deduplicates=True, durable=True)

    def __init__(self, dispatcher: _Dispatch) -> None:
        self._dispatcher = dispatcher

    async def open(self) -> None:
        """Open the dispatcher's connections."""
        await self._dispatcher.open()

    async def close(self) -> None:
        """Close them."""
        await self._dispatcher.close()

    async def read_few(self, untried: Untried) -> Sequence[Record]:
        """Read a few untried events on a consumer's connection, and open its transaction for them."""
        return await self._dispatcher.read_few(untried)

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Give every consumer the events that it takes."""
        return await self._dispatcher.dispatch(records)
