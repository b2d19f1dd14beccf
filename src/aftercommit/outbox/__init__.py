"""Write it in your transaction: the declaration of an outbox, and publishing on the connection you have."""

from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.insert import Receipt

__all__ = ["Outbox", "Receipt"]
