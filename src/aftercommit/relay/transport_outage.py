"""The relay's patience with a transport that is down as a whole."""

import logging
from typing import Final

from aftercommit.backoff import Exponential
from aftercommit.errors import TransportUnavailable
from aftercommit.service import Service
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.relay")

BACKOFF: Final = Exponential(base=0.2, maximum=30.0)


class TransportOutage:
    """Backs off while the transport is down. It logs the beginning and the end of an outage once."""

    def __init__(self, transport_name: str, relay: Service) -> None:
        self._transport_name = transport_name
        self._relay = relay
        self._attempts = 0

    async def wait(self, problem: TransportUnavailable) -> None:
        """The transport is down: pause, longer each time."""
        self._attempts += 1
        if self._attempts == 1:
            fields = {"transport": self._transport_name, "error": str(problem)}
            log_event(logger, logging.WARNING, "transport_is_unavailable", **fields)
        await self._relay.reach("relay.outage", outages=self._attempts)
        await self._relay.pause(BACKOFF(self._attempts, problem) or 0.0)

    def over(self) -> None:
        """The transport works."""
        if self._attempts:
            fields = {"transport": self._transport_name, "attempts": self._attempts}
            log_event(logger, logging.INFO, "transport_is_back", **fields)
        self._attempts = 0
