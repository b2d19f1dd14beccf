"""Carry events from the outbox to the transport and into the log. Relays share the lanes without a leader."""

from aftercommit.relay.relay import Relay, RelaySettings

__all__ = ["Relay", "RelaySettings"]
