"""What is made of the events of a page before they are handled."""

import gc
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from aftercommit import Event, Outbox
from aftercommit.consumer.slices import SliceItem, prepare
from aftercommit.event.envelope import Record


@dataclass
class Placed:
    """An event with a number."""

    order_id: str
    number: int


def items_of(*payloads: bytes) -> list[SliceItem]:
    outbox = Outbox("shop")
    outbox.declare("order.placed", Placed, aggregate="order", key="order_id")
    consumer = outbox.consumer("index")

    @consumer.on(Placed)
    async def handle(event: Event[Placed]) -> None: ...

    now = datetime.now(UTC)
    placed = ("order.placed", 1, "order", "o-1", now, "c", None)
    return prepare(consumer, [Record(uuid4(), *placed, payload, now, 1, 1) for payload in payloads], attempt=1)


def test_an_event_that_cannot_be_read_is_forgotten_with_its_error() -> None:
    """Its error refers to the place where it was raised, which refers to the events. Only the collector sees that."""
    items = items_of(b'{"order_id": "o-1", "number": 1}', b'{"order_id": "o-1"}')
    assert [item.failure is None for item in items] == [True, False]
    failure = items[1].failure
    assert failure is not None
    kept = weakref.ref(failure)
    del items, failure
    gc.collect()
    assert kept() is None


def test_the_collector_looks_at_no_event_that_can_be_read() -> None:
    item = items_of(b'{"order_id": "o-1", "number": 1}')[0]
    assert not gc.is_tracked(item)
    assert not gc.is_tracked(item.event)
    assert not gc.is_tracked(item.record)
