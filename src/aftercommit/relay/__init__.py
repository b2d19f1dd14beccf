"""Carry it out: from the outbox to the transport and into the log. Several relays share the lanes; none is a leader."""

from aftercommit.relay.relay import Relay, RelaySettings

__all__ = ["Relay", "RelaySettings"]
