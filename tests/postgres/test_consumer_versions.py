"""Versions across a rolling deployment: what older code could not read is taken up by newer code, by itself."""

from dataclasses import dataclass

from aftercommit.event.envelope import Event
from aftercommit.outbox import Outbox
from aftercommit.testing.signals import Signals
from tests.postgres.consuming import append, bus_on, worker_on
from tests.shop import SCHEMA, SCOPE, Shop


@dataclass(frozen=True)
class Placed:
    order_id: str


def declared(version: int) -> tuple[Outbox, list[str]]:
    """The outbox as the code of this version declares it, and what its consumer has handled."""
    outbox, handled = Outbox(SCHEMA, scope=SCOPE), []
    outbox.declare("order.placed", Placed, version=version, aggregate="order", key="order_id")
    if version == 2:
        outbox.upcast("order.placed", from_version=1)(lambda payload: payload)

    @outbox.on(Placed, consumer="index")
    async def handle(event: Event[Placed]) -> None:
        handled.append(event.payload.order_id)

    return outbox, handled


async def test_an_event_of_a_newer_version_waits_for_the_newer_code_and_is_handled_by_it(shop: Shop) -> None:
    new, by_new = declared(2)
    old, by_old = declared(1)
    for outbox, order in ((old, "first"), (new, "second"), (old, "third")):
        with shop.connect() as connection:
            outbox.publish(connection, Placed(order), tenant_id="acme")
    shop.outbox = old
    append(shop)
    async with worker_on(shop, old.consumers["index"]):
        await shop.value_becomes("select position from consumer", 3)
    assert by_old == ["first", "third"]
    assert shop.rows("select status, error_class from dead_letter_events") == [("parked", "NewerSchemaVersion")]
    shop.outbox = new
    async with worker_on(shop, new.consumers["index"], signals=Signals()):
        await shop.value_becomes("select status from dead_letter_events", "resolved")
    assert by_new == ["second"]


async def test_behind_the_bus_a_newer_version_waits_for_the_newer_code_too(shop: Shop) -> None:
    new, by_new = declared(2)
    old, by_old = declared(1)
    for outbox, order in ((old, "first"), (new, "second")):
        with shop.connect() as connection:
            outbox.publish(connection, Placed(order), tenant_id="acme")
    shop.outbox = old
    for _ in range(2):
        async with bus_on(shop, signals=Signals()):
            await shop.value_becomes(
                "select min(status) from outbox where status <> 'pending' or retry_count > 0", "failed"
            )
    assert by_old == ["first"]
    assert shop.rows("select status, attempts, error_class from dead_letter_events") == [
        ("parked", 1, "NewerSchemaVersion")
    ]
    shop.outbox = new
    async with bus_on(shop, signals=Signals()):
        await shop.value_becomes("select status from dead_letter_events", "resolved")
    assert by_new == ["second"]
    assert shop.value("select count(*) from log") == 2
