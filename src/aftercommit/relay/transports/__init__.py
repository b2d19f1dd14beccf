"""The transports: the log alone, or handlers in this process. All pass the same conformance suite."""

from aftercommit.relay.transports.bus import BusTransport
from aftercommit.relay.transports.log import LogTransport

__all__ = ["BusTransport", "LogTransport"]
