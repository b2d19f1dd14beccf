"""What tests of the test kit share: handlers that write to a ledger."""

from typing import Any

from aftercommit.event.envelope import Event
from aftercommit.outbox import Outbox
from tests.support.shop import OrderPlaced

WRITE = "insert into ledger (order_id, note) values (%s, %s)"
LEDGER = "select order_id, note from ledger order by id"


def write_ledger(outbox: Outbox, name: str = "ledger", **options: Any) -> None:
    """A consumer that writes a row per placed order."""
    consumer = outbox.consumer(name, **options)

    @consumer.on(OrderPlaced)
    async def write(event: Event[OrderPlaced], connection: Any) -> None:
        await connection.execute(WRITE, (event.payload.order_id, event.payload.note))


def write_ledger_blocking(outbox: Outbox, name: str = "ledger", **options: Any) -> None:
    """The same, with an ordinary function."""
    consumer = outbox.consumer(name, **options)

    @consumer.on(OrderPlaced)
    def write(event: Event[OrderPlaced], connection: Any) -> None:
        connection.execute(WRITE, (event.payload.order_id, event.payload.note))
