"""The declaration of an outbox, and publishing in your own transaction."""

from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.insert import Receipt

__all__ = ["Outbox", "Receipt"]
