"""aftercommit: what was committed is what everyone hears about.

The journey of an event, and the room of each step:

    event       what happened: types, payloads, the envelope
    outbox      publish: write it in your transaction
    relay       deliver it to a transport and append it to the log
    consumer    handle it once, with its effects in one transaction

    outbox = Outbox(scope={"tenant_id": str})

    @outbox.event("order.placed", aggregate="order", key="order_id")
    @dataclass
    class OrderPlaced: ...

    with psycopg.connect(dsn) as connection:
        connection.execute("insert into orders …")
        outbox.publish(connection, OrderPlaced(…), tenant_id="acme")

    @outbox.on(OrderPlaced, consumer="order-totals")
    async def count(event, connection): ...

    async with Engine(outbox, Database(dsn)): ...
"""

from aftercommit._version import __version__
from aftercommit.backoff import ByError, Constant, Exponential, Never
from aftercommit.consumer import Done, Park, Retry
from aftercommit.engine import Engine
from aftercommit.errors import AftercommitError, ContractViolation
from aftercommit.event.correlation import correlation
from aftercommit.event.envelope import Event
from aftercommit.outbox import Outbox, Receipt
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import DeclaredView
from aftercommit.relay import RelaySettings
from aftercommit.schema.retention import Retention

__all__ = [
    "AftercommitError",
    "ByError",
    "Constant",
    "ContractViolation",
    "Database",
    "DeclaredView",
    "Done",
    "Engine",
    "Event",
    "Exponential",
    "Never",
    "Outbox",
    "Park",
    "Receipt",
    "RelaySettings",
    "Retention",
    "Retry",
    "__version__",
    "correlation",
]
